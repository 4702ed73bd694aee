"""Runs `qacg` as `python -m qacg_models`."""

import qacg_models.cli.__main__  # noqa: F401
