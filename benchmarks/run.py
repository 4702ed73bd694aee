"""Times implementations interleaved: `python -m benchmarks.run --shapes 64,12,128,64 --implementations eager cpu`.

The exit status is 1 if an implementation fails, is wrong, or does not support a case.
"""

import argparse
import math
import sys

import torch

from benchmarks import records
from benchmarks.cases import (
    DTYPES,
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    LENGTHS,
    MAIN_SHAPES,
    MODES,
    QUICK_SHAPES,
    Shape,
    grid,
)
from benchmarks.command import add_common_options, exit_status
from benchmarks.implementations.registry import IMPLEMENTATIONS, default_names
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import Item, Session
from benchmarks.table import markdown


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Times attention calls, with the implementations interleaved."
    )
    add_common_options(parser)
    parser.add_argument(
        "--shapes", type=Shape.parse, nargs="+", metavar="B,H,L,D", help="sizes of the calls; three shapes by default"
    )
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["float32"], help="float32 by default")
    parser.add_argument(
        "--modes",
        choices=MODES,
        nargs="+",
        default=[FORWARD, FORWARD_BACKWARD],
        help="passes to measure (default: forward and forward+backward); forward is inference, so it has no dropout",
    )
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0], help="dropout probabilities; 0 by default")
    parser.add_argument(
        "--lengths", choices=LENGTHS, nargs="+", default=[FULL], help="lengths of the sequences (default: full)"
    )
    parser.add_argument(
        "--implementations",
        choices=IMPLEMENTATIONS,
        nargs="+",
        help="by default the baselines and fused backends that support the case",
    )
    options = parser.parse_args(arguments)
    return exit_status(lambda: _measure(options), "--out has the records so far" if options.out else "")


def _measure(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    shapes = options.shapes or (QUICK_SHAPES if options.quick else MAIN_SHAPES)
    effort = timing.QUICK if options.quick else timing.THOROUGH
    source = records.origin()
    print(f"{source}\nparity: {agreement.require_parity()} checks passed", flush=True)
    session = Session(records.Writer(options.out, "run", source), source, effort, math.inf)
    session.measure_ceilings(options.dtypes, "cpu")
    for case in grid(shapes, options.dtypes, options.modes, options.dropouts, options.lengths):
        session.measure(Item(case, tuple(options.implementations or default_names(case))))
    print("\n" + markdown(session.records))
    return int(bool(session.missing))


if __name__ == "__main__":
    sys.exit(main())
