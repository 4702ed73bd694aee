"""The suite on the CPU: `python -m benchmarks.suite --out DIR [--minutes N] [--parts aims calls ...]`.

Goes through `suite_plan.py` in its order, writes each row at once, one file for each number of threads, and stops
starting new cases when the time is spent. The same command again goes on where the last one stopped, as long as the
sources are the same. Then the aims, judged by the rows.
"""

import argparse
import sys

import torch

from benchmarks import rows
from benchmarks.cases import flops
from benchmarks.cases.case import MAIN_DTYPES, SENTENCES, Case
from benchmarks.cli.options import INTERRUPTED, add_common_options
from benchmarks.measure import timing, verify
from benchmarks.plans import suite_plan
from benchmarks.plans.session import Budget, Session
from benchmarks.plans.suite_plan import PARTS, Stage
from benchmarks.providers.registry import PROVIDERS
from benchmarks.rows.selection import disturbance_note
from benchmarks.targets.cpu_aims import judge_operators, notes

MINUTES = 60


class Suite:
    """Runs stages, with a session and a file of rows for each number of threads."""

    def __init__(self, folder: str, name: str, effort: timing.Effort, budget: Budget) -> None:
        self._folder, self._name, self._effort, self.budget = folder, name, effort, budget
        self._sessions: dict[int, Session] = {}

    def session(self, threads: int) -> Session:
        """The session of a thread number, which from here on is torch's."""
        torch.set_num_threads(threads)
        if threads not in self._sessions:
            source = rows.origin()
            writer = rows.Writer(self._folder, self._name, source, resume=True)
            kept = f", {len(writer.kept)} rows kept" if writer.kept else ""
            if source.dirty:
                kept = "; begun anew, as after any local change"
            print(f"{threads} threads: {writer.path}{kept}", flush=True)
            session = Session(writer, source, self._effort, self.budget)
            session.take_ceilings(MAIN_DTYPES, "cpu")
            self._sessions[threads] = session
        return self._sessions[threads]

    def run(self, stages: list[Stage]) -> None:
        """Measures the stages' items in order."""
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


def report(suite: Suite, backend: str, threads: int) -> None:
    """Prints the aims, and what has no row."""
    measured = suite.session(threads).rows
    verdicts = judge_operators(measured, backend)
    times = [row for row in measured if isinstance(row, rows.TimeRow)]
    print("\n".join(map(str, [*verdicts, *notes(measured), *disturbance_note(times)])))
    print(f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)} aims of the operators met")
    print("\n".join(["not measured:", *suite.missing]) if suite.missing else "everything of the plan was measured")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.suite", description="The benchmark suite on the CPU.")
    add_common_options(parser)
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"when to stop starting new cases ({MINUTES})")
    parser.add_argument("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="of the plan; all if not given")
    parser.add_argument("--backend", choices=("cpu", "reference"), default="cpu")
    options = parser.parse_args(arguments)
    if options.out is None:
        parser.error("--out: a folder for the rows is needed, from which a run that was cut off goes on")
    why = PROVIDERS[options.backend].reasons_against(Case(SENTENCES))
    if why:
        print(f"backend {options.backend!r} is not to be had on this machine: {'; '.join(why)}", file=sys.stderr)
        return 1
    # Few repeats are no figures: they never mix with a file of them.
    name, effort = ("suite-quick", timing.QUICK) if options.quick else ("suite", timing.STEADY)
    suite = Suite(options.out, name, effort, Budget(60 * options.minutes))
    torch.set_num_threads(options.threads)
    print(f"{rows.heading(rows.origin())}\n{flops.CONVENTION}", flush=True)
    try:
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        suite.run(suite_plan.stages(options.backend, options.threads, tuple(options.parts)))
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, and the same command goes on from there")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    report(suite, options.backend, options.threads)
    return int(bool(suite.wrong))


if __name__ == "__main__":
    sys.exit(main())
