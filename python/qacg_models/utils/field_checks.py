"""Checks of arguments and configuration fields, and the largest allowed sizes. This module does not import torch.

Errors have the form `field: expected X, got Y`.
"""

from numbers import Integral
from types import MappingProxyType
from typing import Any

from qacg_models.errors import InputError

# By field of a configuration: the largest allowed value, and published values, which the error prints. The limits are
# above usual sizes. They catch typos before memory of that size is allocated.
MOST = MappingProxyType(
    {
        "vocab_size": (10_000_000, "XLM-V has 901,629"),
        "hidden_size": (65_536, "BERT-large has 1,024"),
        "num_hidden_layers": (1_000, "BERT-large has 24"),
        "num_attention_heads": (1_024, "BERT-large has 16"),
        "intermediate_size": (1_048_576, "usual: 4 * hidden_size; BERT-large has 4,096"),
        "max_position_embeddings": (1_048_576, "BERT has 512"),
        "type_vocab_size": (65_536, "BERT has 2"),
        "num_labels": (1_000_000, "sentiment has 2 to 5"),
        "contexts": (65_536, "SentiHood has 8"),
        "inter_layers": (1_000, "published: 1 to 3"),
        "heads": (1_024, "published: 8"),
        "ff_size": (1_048_576, "published: 2,048"),
        "conv_channels": (65_536, "published: 1,024"),
        "num_question_types": (1_000_000, "published: 6"),
    }
)
SEED = 2**32 - 1  # the largest seed of NumPy's generator, which transformers seeds too
_LARGEST_FLOAT32 = (2 - 2**-23) * 2.0**127


def limit(field: str) -> str:
    """Returns the limit of a field of MOST as text for messages, such as `1,000 (BERT-large has 24)`."""
    most, usual = MOST[field]
    return f"{most:,} ({usual})"


def check_is_integer(name: str, value: object) -> None:
    """Raises TypeError unless `value` is an integer, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name}: expected an integer, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """Raises TypeError unless an argument is an integer, and InputError unless it is at least 1."""
    check_is_integer(name, value)
    if value < 1:
        raise InputError(f"{name}: expected at least 1, got {value}")


def check_integer(field: str, value: object, at_least: int, below: int | None = None) -> None:
    """Raises TypeError unless `value` is an integer, and ValueError unless it is in [at_least, below).

    If `below` is None, there is no upper limit.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field}: expected an integer, got {value!r}")
    if value < at_least:
        raise ValueError(f"{field}: expected at least {at_least}, got {value}")
    if below is not None and value >= below:
        raise ValueError(f"{field}: expected less than {below}, got {value}")


def check_size(field: str, value: Any, at_least: int = 1, path: str = "") -> None:
    """Raises TypeError unless `value` is an integer, and ValueError unless it is from `at_least` to the limit in MOST.

    Messages have `path`, such as `encoder.`, before the name of the field.
    """
    check_integer(path + field, value, at_least)
    if value > MOST[field][0]:
        raise ValueError(f"{path}{field}: expected at most {limit(field)}, got {value}")


def check_number(field: str, value: object, at_least: float | None = None) -> None:
    """Raises TypeError unless `value` is a number, and ValueError unless it is finite and at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{field}: expected a number, got {value!r}")
    if not abs(value) <= _LARGEST_FLOAT32:
        raise ValueError(f"{field}: expected a finite number, got {value}")
    if at_least is not None and value < at_least:
        raise ValueError(f"{field}: expected at least {at_least:g}, got {value}")


def check_probability(field: str, value: Any) -> None:
    """Raises TypeError or ValueError unless `value` is a number in [0, 1), the range of a dropout probability."""
    check_number(field, value)
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{field}: expected a probability in [0, 1), got {value}")


def check_dropout(field: str, value: Any) -> None:
    """Raises TypeError or ValueError unless `value` is a number in [0, 1], the range of torch's dropout."""
    check_number(field, value)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{field}: expected a probability in [0, 1], got {value}")
