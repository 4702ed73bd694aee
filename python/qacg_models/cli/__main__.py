"""Runs `qacg` as `python -m qacg_models.cli`, the form that torchrun requires."""

import sys

from qacg_models.cli.program import main

sys.exit(main())
