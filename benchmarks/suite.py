"""The benchmark suite on the CPU: `python -m benchmarks.suite --out DIR [--minutes N] [--parts targets ...]`.

Measures the plan of `plans.py` in order and stores each record at once, in one file per number of threads. It starts no
new case after the time limit. At the end it prints the performance targets. The same command resumes an interrupted
run, if the checkout has no local changes and neither commit nor versions have changed.
"""

import argparse
import sys

import torch

from benchmarks import plans, records
from benchmarks.cases import FLOP_CONVENTION, MAIN_DTYPES, SENTENCES, Case
from benchmarks.command import RESUMES, add_common_options, exit_status
from benchmarks.implementations.registry import IMPLEMENTATIONS
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import Budget, Session
from benchmarks.targets.kinds import print_results
from benchmarks.targets.performance import TARGETS

MINUTES = 60


class Suite:
    """Runs the stages of a plan, with a separate Session and file of records for each number of threads."""

    def __init__(self, folder: str, name: str, effort: timing.Effort, budget: Budget) -> None:
        self._folder, self._name, self._effort, self.budget = folder, name, effort, budget
        self._sessions: dict[int, Session] = {}

    def session(self, threads: int) -> Session:
        """Sets the number of torch's threads and returns the session for it."""
        torch.set_num_threads(threads)
        if threads not in self._sessions:
            source = records.origin()
            writer = records.Writer(self._folder, self._name, source, resume=True)
            kept = f", {len(writer.kept)} records kept" if writer.kept else ""
            if source.dirty:
                kept = "; keeps no earlier records, since the checkout has local changes"
            print(f"{threads} thread{'' if threads == 1 else 's'}: {writer.path}{kept}", flush=True)
            session = Session(writer, source, self._effort, self.budget)
            session.measure_ceilings(MAIN_DTYPES, "cpu")
            self._sessions[threads] = session
        return self._sessions[threads]

    def run(self, stages: list[plans.Stage]) -> None:
        """Measures the items of the stages in order."""
        total, place = sum(len(stage.items) for stage in stages), 0
        for stage in stages:
            session = self.session(stage.threads)
            for item in stage.items:
                place += 1
                minutes = max(0.0, self.budget.left()) / 60
                session.measure(item, f"[{place}/{total}, {minutes:.0f} min left] ")

    @property
    def missing(self) -> list[str]:
        return [f"{threads} threads: {line}" for threads, session in self._sessions.items() for line in session.missing]

    @property
    def wrong(self) -> list[str]:
        return [line for session in self._sessions.values() for line in session.wrong]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description="The benchmark suite on the CPU.")
    add_common_options(parser, "folder for the records, required; an interrupted run resumes from it")
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"no case is started after this many minutes (default: {MINUTES})",
    )
    parser.add_argument("--parts", choices=plans.PARTS, nargs="+", default=list(plans.PARTS), help="all by default")
    parser.add_argument("--backend", choices=("cpu", "reference"), default="cpu")
    options = parser.parse_args(arguments)
    if options.out is None:
        parser.error("--out: expected a folder for the records, got none. An interrupted run resumes from this folder.")
    reasons = IMPLEMENTATIONS[options.backend].unsupported(Case(SENTENCES))
    if reasons:
        print(f"--backend: {options.backend!r} is not available on this machine: {'; '.join(reasons)}", file=sys.stderr)
        return 1
    return exit_status(lambda: _measure(options), RESUMES)


def _measure(options: argparse.Namespace) -> int:
    # Records of few repeats get a file of their own.
    name, effort = ("suite-quick", timing.QUICK) if options.quick else ("suite", timing.STEADY)
    suite = Suite(options.out, name, effort, Budget(60 * options.minutes))
    torch.set_num_threads(options.threads)
    print(f"{records.origin()}\n{FLOP_CONVENTION}", flush=True)
    print(f"parity: {agreement.require_parity()} checks passed", flush=True)
    suite.run(plans.suite_stages(options.backend, options.threads, tuple(options.parts)))
    measured = suite.session(options.threads).records
    print_results([target.judge(options.backend, measured) for target in TARGETS["cpu"]], measured)
    print("\n".join(["not measured:", *suite.missing]) if suite.missing else "every case of the plan was measured")
    return int(bool(suite.wrong))


if __name__ == "__main__":
    sys.exit(main())
