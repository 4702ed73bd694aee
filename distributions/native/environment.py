"""Environment variables of the build; setup.py lists them all."""

import os


def build_option(variable: str) -> str:
    """The value of QACG_BUILD_CPU or QACG_BUILD_CUDA: "auto" (also if it is not set), "0" or "1".

    Raises:
        RuntimeError: it has another value.
    """
    value = os.environ.get(variable, "auto")
    if value not in ("auto", "0", "1"):
        raise RuntimeError(f"{variable}: expected 0, 1 or auto, got {value!r}")
    return value


def debugging() -> bool:
    return os.environ.get("DEBUG") == "1"


def jobs() -> int | None:
    """The number of compile jobs at a time (MAX_JOBS); None if it is not set or empty.

    Raises:
        RuntimeError: it is no positive integer.
    """
    value = os.environ.get("MAX_JOBS")
    if not value:
        return None
    if not value.isdecimal() or not int(value):
        raise RuntimeError(f"MAX_JOBS: expected a positive integer, got {value!r}")
    return int(value)
