"""The command-line program `qacg`. Importing this costs nothing: heavy imports wait for a command to run."""

from qacg_models.cli.program import main

__all__ = ["main"]
