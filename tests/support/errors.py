"""Expected errors, written as Python prints them."""

import builtins
import re

import pytest
from qacg_models import errors
from qacg_models.data import DataError


def raises(error: str):
    """Returns a context manager that expects an error.

    For example, `with raises("ValueError: heads: expected at least 1, got 0"):`.

    Args:
        error: the error's type and a part of its message; "..." stands for any text.
    """
    name, _, message = error.partition(": ")
    kind = DataError if name == "DataError" else getattr(errors, name, None) or getattr(builtins, name)
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, message.split("..."))))


def error_cases(cases: dict):
    """Parametrises a test over `error` and `given`: keys of the dict are errors as in `raises`, values are causes."""
    return pytest.mark.parametrize(("error", "given"), cases.items(), ids=cases)
