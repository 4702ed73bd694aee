"""The command-line program `qacg`. The package is fast to import: commands import torch when they run."""

from qacg_models.cli.program import main

__all__ = ["main"]
