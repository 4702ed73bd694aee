"""The marks this project has set itself: `python -m benchmarks.marks [--out DIR] [--quick]`.

Prints target and measured value of each, and whether it is met. They are meant for two threads with AVX-512;
the first line says what this run had.
"""

import argparse
import sys

import torch

import qacg_kernels as qk
from benchmarks import ceiling, rows, table, timing, verify
from benchmarks.providers import BACKENDS, COMPILED, EAGER, ONE_MAP, PROVIDERS
from benchmarks.run import (
    INTERRUPTED,
    add_common_options,
    heading,
    measure_case,
    measure_memory,
)
from benchmarks.shapes import (
    DOCUMENTS,
    FORWARD,
    FORWARD_BACKWARD,
    MAIN_SHAPES,
    MEMORY_SHAPE,
    PARAGRAPHS,
    SENTENCES,
    Case,
)
from benchmarks.verdicts import Ratio, Verdict, judge_ratio, times_of

_DROPOUT = 0.1
MOST_EXTRA_MB = 64.0


def _against_eager(dtype: str, mode: str, dropout: float, targets: tuple[float, float, float]) -> list[Ratio]:
    shapes = (SENTENCES, PARAGRAPHS, DOCUMENTS)
    return [Ratio(Case(s, dtype, mode, dropout), EAGER, target) for s, target in zip(shapes, targets)]


MARKS = [
    *_against_eager("float32", FORWARD, 0.0, (7, 8, 14)),
    *(Ratio(Case(shape), COMPILED, 2.5) for shape in MAIN_SHAPES),
    *(Ratio(Case(shape), ONE_MAP, 1.0) for shape in MAIN_SHAPES),
    *_against_eager("float32", FORWARD_BACKWARD, 0.0, (4.5, 6, 5)),
    *_against_eager("float32", FORWARD_BACKWARD, _DROPOUT, (5, 5, 5)),
    *_against_eager("bfloat16", FORWARD, 0.0, (3, 4, 5)),
]


def without_figure(mark: Ratio, backend: str, why: Exception) -> Verdict:
    """A mark is missed when an answer is wrong; how fast it came is not told."""
    return Verdict(*mark.question(backend), measured=f"no figure: {why}", met=False, right=False)


def judge_memory(row: rows.MemoryRow) -> Verdict:
    """Compares the memory beyond inputs, output, saved tensors and gradients."""
    parts = f"forward {row.forward_extra_mb:.1f}, backward {row.backward_extra_mb:.1f}"
    return Verdict(
        what=f"{row.case}, {row.provider}, memory",
        target=f"at most {MOST_EXTRA_MB:g} MB",
        measured=f"{row.extra_mb:.1f} MB ({parts})",
        met=row.extra_mb <= MOST_EXTRA_MB,
    )


def _backend(asked: str | None) -> str:
    here = [name for name in BACKENDS if name in qk.available_backends()]
    if asked is None and not here:
        why = "; ".join(PROVIDERS["cpu"].reasons_against(Case(SENTENCES)))
        raise RuntimeError(f"there is no fast backend on this machine: {why}")
    return asked or here[0]


def run(backend: str, effort: timing.Effort, writer: rows.Writer, source: rows.Origin) -> list[Verdict]:
    """Measures every mark, printing each verdict as it falls."""
    verdicts: list[Verdict] = []
    times: list[rows.TimeRow] = []
    products, tried = ceiling.measure_all((mark.case.dtype for mark in MARKS), source)
    writer.add(tried)

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        print(verdict, flush=True)

    for case in dict.fromkeys(mark.case for mark in MARKS):
        marks = [mark for mark in MARKS if mark.case == case]
        try:
            names = [*(mark.rival for mark in marks), backend]
            measured = measure_case(case, names, effort, source, products[case.dtype])
        except verify.ParityError as error:
            for mark in marks:
                tell(without_figure(mark, backend, error))
            continue
        writer.add(measured)
        times += measured
        for mark in marks:
            tell(judge_ratio(mark, backend, times_of(measured)))
    memory = measure_memory(Case(MEMORY_SHAPE, mode=FORWARD_BACKWARD), backend, torch.get_num_threads())
    writer.add([memory])
    tell(judge_memory(memory))
    for note in table.disturbance_note(times):
        print(note)
    return verdicts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.marks", description="Measures the project's marks and says which are met."
    )
    add_common_options(parser)
    parser.add_argument(
        "--backend", choices=(*BACKENDS, "reference"), help="the fastest available if not given"
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    source = rows.origin()
    print(heading(source), flush=True)
    try:
        backend = _backend(options.backend)
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        effort = timing.QUICK if options.quick else timing.THOROUGH
        verdicts = run(backend, effort, rows.Writer(options.out, "marks", source), source)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
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
