"""Decoding steps, tiny rows and single keys beside eager: `python -m benchmarks.corners [--out DIR] [--minutes N]`.

Prints the target and the measured ratio of each of the 86 cases of `plans/corner_plan.py`. The same command resumes a
run that was cut off, as long as the sources are the same.
"""

import argparse
import math
import sys

import torch

from benchmarks import rows
from benchmarks.cli.options import INTERRUPTED, add_common_options
from benchmarks.measure import timing, verify
from benchmarks.plans.corner_plan import items
from benchmarks.plans.session import Budget, Session
from benchmarks.providers.registry import BACKENDS
from benchmarks.targets.corner_marks import MARKS
from benchmarks.targets.verdicts import judge_ratio, times_of

EFFORT = timing.Effort(seconds=1.0, fewest_rounds=5, most_rounds=200)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corners", description="Times of few queries and few keys, beside eager."
    )
    add_common_options(parser)
    parser.add_argument("--backend", choices=(*BACKENDS, "reference"), default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to stop starting new cases (never)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    source = rows.origin()
    print(rows.heading(source), flush=True)
    name, effort = ("corners-quick", timing.QUICK) if options.quick else ("corners", EFFORT)
    try:
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        writer = rows.Writer(options.out, name, source, resume=True)
        session = Session(writer, source, effort, Budget(60 * options.minutes))
        for item in items(options.backend):
            session.measure(item)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, and the same command resumes from there")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no measurements:\n{error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    verdicts = [judge_ratio(mark, options.backend, times_of(session.rows)) for mark in MARKS]
    print("\n".join(map(str, verdicts)))
    print(f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)} targets met")
    return int(bool(session.wrong))


if __name__ == "__main__":
    sys.exit(main())
