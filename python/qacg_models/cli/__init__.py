"""The command-line program `qacg`. Importing this is fast: commands import torch and transformers when they run."""

from qacg_models.cli.program import main

__all__ = ["main"]
