"""What a text must be before a tokenizer may have it."""

from __future__ import annotations

from qacg_models.errors import InputError
from qacg_models.utils.plain_text import lone_surrogate


def check_text(argument: str, text: str) -> None:
    """Raises InputError, beginning with the argument's name, for a text that UTF-8 cannot write."""
    if half := lone_surrogate(text):
        raise InputError(f"{argument}: holds {half}, which is half a character; wanted text that UTF-8 can write")
