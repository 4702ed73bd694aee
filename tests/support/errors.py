"""Expected errors, written as Python prints them."""

import builtins
import re

import pytest


def raises(error: str):
    """Expects an error, as in `with raises("ValueError: heads: expected at least 1, got 0"):`; "..." is any text."""
    name, _, message = error.partition(": ")
    kind = getattr(builtins, name, None) or _error_of_the_models(name)
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, message.split("..."))))


def _error_of_the_models(name: str) -> type[Exception]:
    # Imported here, since the operator tests also run on machines that have no transformers.
    from qacg_models import errors
    from qacg_models.sentiment.example import DataError

    return DataError if name == "DataError" else getattr(errors, name)


def error_cases(cases: dict):
    """Parametrises a test over `error` and `given`: keys of the dict are errors as in `raises`, values are causes."""
    return pytest.mark.parametrize(("error", "given"), cases.items(), ids=cases)
