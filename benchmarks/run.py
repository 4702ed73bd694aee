"""Side-by-side times: `python -m benchmarks.run --shapes 64,12,128,64 --providers eager cpu --out DIR`."""

import argparse
import sys

import torch

from benchmarks import rows
from benchmarks.analysis.tables import markdown
from benchmarks.cases.case import (
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
from benchmarks.cli.options import INTERRUPTED, add_common_options
from benchmarks.measure import ceiling, timing, verify
from benchmarks.measure.side_by_side import measure_case
from benchmarks.providers.registry import PROVIDERS, default_names


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Times of attention, providers side by side."
    )
    add_common_options(parser)
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", metavar="B,H,L,D")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["float32"])
    parser.add_argument("--modes", choices=MODES, nargs="+", default=[FORWARD, FORWARD_BACKWARD])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0])
    parser.add_argument("--lengths", choices=LENGTHS, nargs="+", default=[FULL])
    parser.add_argument("--providers", choices=PROVIDERS, nargs="+", help="all that take the case, if not given")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    shapes = options.shapes or (QUICK_SHAPES if options.quick else MAIN_SHAPES)
    effort = timing.QUICK if options.quick else timing.THOROUGH
    source = rows.origin()
    print(rows.heading(source), flush=True)
    measured: list[rows.TimeRow] = []
    try:
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        writer = rows.Writer(options.out, "run", source)
        products, tried = ceiling.measure_all(options.dtypes, source)
        writer.add(tried)
        for case in grid(shapes, options.dtypes, options.modes, options.dropouts, options.lengths):
            names = options.providers or default_names(case)
            new = measure_case(case, names, effort, source, products[case.dtype])
            writer.add(new)
            measured += new
            print(f"{case}: " + ", ".join(row.brief for row in new), flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + markdown(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
