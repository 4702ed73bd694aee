"""The marks this project has set itself: `python -m benchmarks.marks [--out DIR] [--minutes N] [--quick]`.

Prints target and measured value of each, and whether it is met. The first line says what machine and instruction
sets this run had; QACG_CPU_CAPABILITY gives others, whose ceiling is then still torch's own. A run that was cut off, or
whose minutes were spent, is gone on with by the same command, as long as the sources are the same.
"""

import argparse
import math
import sys

import torch

import qacg_kernels as qk
from benchmarks import rows
from benchmarks.cases.case import FORWARD_BACKWARD, MEMORY_SHAPE, SENTENCES, Case
from benchmarks.cli.options import INTERRUPTED, add_common_options
from benchmarks.measure import ceiling, timing, verify
from benchmarks.measure.memory_process import measure_memory
from benchmarks.measure.side_by_side import measure_case
from benchmarks.plans.session import Budget
from benchmarks.providers.registry import BACKENDS, PROVIDERS
from benchmarks.rows.selection import disturbance_note
from benchmarks.targets.cpu_marks import MARKS, judge, judge_memory, rivals_of, without_figure
from benchmarks.targets.verdicts import Verdict, times_of


def _backend(asked: str | None) -> str:
    here = [name for name in BACKENDS if name in qk.available_backends()]
    if asked is None and not here:
        why = "; ".join(PROVIDERS["cpu"].reasons_against(Case(SENTENCES)))
        raise RuntimeError(f"there is no fast backend on this machine: {why}")
    return asked or here[0]


def run(backend: str, effort: timing.Effort, writer: rows.Writer, source: rows.Origin, budget: Budget) -> list[Verdict]:
    """Measures every mark whose rows the writer has not kept, printing each verdict as it falls."""
    verdicts: list[Verdict] = []
    times = [row for row in writer.kept if isinstance(row, rows.TimeRow)]
    memories = [row for row in writer.kept if isinstance(row, rows.MemoryRow)]
    products, tried = ceiling.measure_all((mark.case.dtype for mark in MARKS), source)
    writer.add(tried)

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        print(verdict, flush=True)

    for case in dict.fromkeys(mark.case for mark in MARKS):
        marks = [mark for mark in MARKS if mark.case == case]
        names = [*(rival for mark in marks for rival in rivals_of(mark)), backend]
        if not budget.is_spent() and not all(times_of(times)(case, name) for name in names):
            try:
                measured = measure_case(case, names, effort, source, products[case.dtype])
            except verify.ParityError as error:
                for mark in marks:
                    tell(without_figure(mark, backend, error))
                continue
            writer.add(measured)
            times += measured
        for mark in marks:
            tell(judge(mark, backend, times_of(times)))
    if not memories:
        memories = [measure_memory(Case(MEMORY_SHAPE, mode=FORWARD_BACKWARD), backend, torch.get_num_threads())]
        writer.add(memories)
    tell(judge_memory(memories[-1]))
    for note in disturbance_note(times):
        print(note)
    return verdicts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.marks", description="Measures the project's marks and says which are met."
    )
    add_common_options(parser)
    parser.add_argument("--backend", choices=(*BACKENDS, "reference"), help="the fastest available if not given")
    parser.add_argument("--minutes", type=float, default=math.inf, help="when to stop starting new cases (never)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    source = rows.origin()
    print(rows.heading(source), flush=True)
    try:
        backend = _backend(options.backend)
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        # Few repeats are no figures: they never mix with a file of them.
        name, effort = ("marks-quick", timing.QUICK) if options.quick else ("marks", timing.THOROUGH)
        writer = rows.Writer(options.out, name, source, resume=True)
        verdicts = run(backend, effort, writer, source, Budget(60 * options.minutes))
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept, and the same command goes on from there")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sum(verdict.met for verdict in verdicts)} of {len(verdicts)} marks met")
    return int(not all(verdict.right for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
