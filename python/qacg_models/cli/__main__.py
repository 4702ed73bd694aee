"""Runs `qacg` as `python -m qacg_models.cli`, which torchrun needs."""

import sys

from qacg_models.cli.program import main

sys.exit(main())
