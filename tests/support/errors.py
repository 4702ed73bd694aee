"""Expected errors, written as Python prints them."""

import builtins
import re

import pytest
from qacg_models import errors
from qacg_models.data import DataError


def raises(error: str):
    """Expects an error, for example `with raises("ValueError: heads: expected at least 1, got 0"):`.

    Args:
        error: its type and a part of its message; "..." stands for any text.
    """
    name, _, message = error.partition(": ")
    kind = DataError if name == "DataError" else getattr(errors, name, None) or getattr(builtins, name)
    return pytest.raises(kind, match="(?s)" + ".*".join(map(re.escape, message.split("..."))))


def error_cases(cases: dict):
    """Parametrises a test over `error` and `given`, from a dict of errors as in `raises` and what causes them."""
    return pytest.mark.parametrize(("error", "given"), cases.items(), ids=cases)
