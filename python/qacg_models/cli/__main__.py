"""`python -m qacg_models.cli`, as torchrun starts it."""

import sys

from qacg_models.cli.program import main

sys.exit(main())
