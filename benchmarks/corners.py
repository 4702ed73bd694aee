"""Decoding steps, tiny sequences and single keys beside eager: `python -m benchmarks.corners [--out DIR]`.

Prints the target and the measured ratio of each of the 86 cases of `plans.CORNER_CASES`: 1 to 8 queries, 1 to 32,768
keys, three dtypes, inference and a training step, and one key for 128 queries. A run that was interrupted resumes with
the same command, as long as the sources are the same.
"""

import argparse
import math
import sys

import torch

from benchmarks import records
from benchmarks.command import add_common_options, exit_status
from benchmarks.implementations.registry import BACKENDS
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import Budget, Session
from benchmarks.targets.kinds import merged_items
from benchmarks.targets.performance import TARGETS

EFFORT = timing.Effort(seconds=1.0, fewest_rounds=5, most_rounds=200)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.corners", description="Times of few queries and few keys, beside eager."
    )
    add_common_options(parser)
    parser.add_argument("--backend", choices=(*BACKENDS, "reference"), default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to stop starting new cases (never)")
    options = parser.parse_args(arguments)
    return exit_status(lambda: _measure(options))


def _measure(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    source = records.origin()
    print(f"{source}\nparity: {agreement.require_parity()} checks passed", flush=True)
    name, effort = ("corners-quick", timing.QUICK) if options.quick else ("corners", EFFORT)
    writer = records.Writer(options.out, name, source, resume=True)
    session = Session(writer, source, effort, Budget(60 * options.minutes))
    for item in merged_items(TARGETS["corners"], options.backend):
        session.measure(item)
    results = [target.judge(options.backend, session.records) for target in TARGETS["corners"]]
    print("\n".join(map(str, results)))
    print(f"{sum(result.met for result in results)} of {len(results)} targets met")
    return int(bool(session.wrong))


if __name__ == "__main__":
    sys.exit(main())
