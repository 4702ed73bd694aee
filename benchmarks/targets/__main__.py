"""Measures the performance targets: `python -m benchmarks.targets [--out DIR] [--minutes N] [--quick]`.

Prints each target with its measurement. The first line has the machine and the kernels' instruction sets;
QACG_CPU_CAPABILITY selects other instruction sets for the kernels, but not for the ceiling. The same command resumes an
interrupted run, if the checkout has no local changes and neither commit nor versions have changed.

`--corners` measures the targets of `plans.CORNER_CASES` instead, interleaved with eager. They are 86 cases in three
dtypes, inference and training steps, with 1 to 8 queries and 1 to 32,768 keys, or with 128 queries and one key.
`--records FILES` measures nothing and compares stored records of operators, whole steps and applications with the
targets `cpu`, `steps` and, of a processor with AMX, `amx` and `applications`.
"""

import argparse
import math
import sys
import time

import torch

from benchmarks import records
from benchmarks.cases import SENTENCES, Case
from benchmarks.command import RESUMES, add_common_options, exit_status
from benchmarks.implementations.registry import BACKENDS, IMPLEMENTATIONS
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import Session
from benchmarks.targets.kinds import merged_items, print_results
from benchmarks.targets.performance import TARGETS

_CORNER_EFFORT = timing.Effort(seconds=1.0, fewest_rounds=5, most_rounds=200)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.targets",
        description="Measures the performance targets, or compares stored records with them.",
    )
    add_common_options(parser)
    parser.add_argument("--backend", choices=(*BACKENDS, "reference"), help="by default the preferred one for the CPU")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no case is started after this many minutes (default: no limit)"
    )
    parser.add_argument("--corners", action="store_true", help="measure the targets for few queries or keys instead")
    parser.add_argument("--stretch", action="store_true", help="also measure the stretch targets")
    parser.add_argument(
        "--records", nargs="+", metavar="FILE", help="only compare these records, of one machine and commit"
    )
    options = parser.parse_args(arguments)
    if options.records:
        return exit_status(lambda: _judge_files(options))
    return exit_status(lambda: _measure(options), RESUMES if options.out else "")


def _measure(options: argparse.Namespace) -> int:
    torch.set_num_threads(options.threads)
    source = records.origin()
    print(source, flush=True)
    backend = options.backend or _preferred()
    print(f"parity: {agreement.require_parity()} checks passed", flush=True)
    name, groups, effort = "targets", ["cpu", *(["amx"] if source.has_amx else [])], timing.THOROUGH
    if options.corners:
        name, groups, effort = "corners", ["corners"], _CORNER_EFFORT
    if options.quick:
        name, effort = f"{name}-quick", timing.QUICK  # records of few repeats get a file of their own
    writer = records.Writer(options.out, name, source, resume=True)
    session = Session(writer, source, effort, time.monotonic() + 60 * options.minutes)
    targets = [target for group in groups for target in TARGETS[group] if options.stretch or not target.stretch]
    items = merged_items(targets, backend)
    if not options.corners:  # no target of the corner cases is a share of the ceiling
        session.measure_ceilings(dict.fromkeys(item.case.dtype for item in items), "cpu")
    for item in items:
        session.measure(item)
    print_results([target.judge(backend, session.records) for target in targets], session.records)
    if session.missing:
        print("\n".join(["not measured:", *session.missing]))
    return int(bool(session.wrong))


def _judge_files(options: argparse.Namespace) -> int:
    measured = records.load(options.records)
    records.require_one_origin(measured)
    backend = options.backend or "cpu"
    groups = ["cpu", "steps", *(["amx", "applications"] if measured and measured[0].origin.has_amx else [])]
    print_results([target.judge(backend, measured) for group in groups for target in TARGETS[group]], measured)
    return 0


def _preferred() -> str:
    """The first backend in the order of preference that supports calls on the CPU."""
    reasons = {name: IMPLEMENTATIONS[name].unsupported(Case(SENTENCES)) for name in BACKENDS}
    here = [name for name, why in reasons.items() if not why]
    if not here:
        raise RuntimeError(
            f"backend: expected a fused backend for the CPU of this machine, got none: {'; '.join(reasons['cpu'])}"
        )
    return here[0]


if __name__ == "__main__":
    sys.exit(main())
