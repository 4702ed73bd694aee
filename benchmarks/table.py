"""Prints records as Markdown tables: `python -m benchmarks.table FILES`."""

import argparse
import sys
from collections.abc import Sequence

from qacg_models.utils.text import markdown_table

from benchmarks import records
from benchmarks.command import exit_status
from benchmarks.implementations.registry import EAGER


def markdown(measured: Sequence[records.Record]) -> str:
    """Formats tables of times, host overhead, memory, whole steps and ceilings.

    Times are medians in milliseconds, with the speed-up over eager and the share of the matrix-product ceiling. If an
    implementation was not measured in a case, its cell is empty. Without records the result is "".
    """
    if not measured:
        return ""
    records.require_one_origin(measured)

    def of(kind: type) -> list:
        return [one for one in measured if isinstance(one, kind)]

    times, steps, applications = of(records.TimeRecord), of(records.StepRecord), of(records.ApplicationRecord)
    tables = (
        (_time_table, times),
        (_overhead_table, of(records.OverheadRecord)),
        (_memory_table, of(records.MemoryRecord)),
        (_step_table, steps),
        (_application_table, applications),
        (_ceiling_line, of(records.CeilingRecord)),
    )
    blocks = [table(found) for table, found in tables if found]
    source = (_legend(times) + " " if times else "") + str(measured[0].origin)
    return "\n\n".join([*blocks, source, *records.state_note(measured), *records.contention_note(measured)])


def _legend(times: Sequence[records.TimeRecord]) -> str:
    shares = any(one.share_of_peak is not None for one in times)
    legend = "Medians of interleaved runs; in brackets the speed-up over eager"
    return legend + (" and the share of the matrix-product ceiling." if shares else ".")


def _time_table(times: Sequence[records.TimeRecord]) -> str:
    names = list(dict.fromkeys(one.implementation for one in times))
    lines = [
        [case.short_name, case.dtype, case.mode, f"{case.dropout:g}", *(_time_cell(found.get(name)) for name in names)]
        for case, found in records.by_case(times).items()
    ]
    return markdown_table(["(B,H,L,D)", "dtype", "pass", "dropout", *(f"{name}, ms" for name in names)], lines, 4)


def _time_cell(record: records.TimeRecord | None) -> str:
    if record is None:
        return ""
    extra = []
    if record.implementation != EAGER and record.ratio_to_eager is not None:
        extra.append(f"{record.ratio_to_eager:.1f}x")
    if record.share_of_peak is not None:
        extra.append(f"{record.share_of_peak:.0%}")
    time = _three_digits(record.median_ms)
    return f"{time} ({', '.join(extra)})" if extra else time


def _overhead_table(found: Sequence[records.OverheadRecord]) -> str:
    lines = [
        [
            one.case.short_name,
            one.dtype,
            one.mode + (f", dropout {one.dropout:g}" if one.dropout else ""),
            one.implementation,
            f"{one.median_us:.1f}",
            f"{one.q1_us:.1f} to {one.q3_us:.1f}",
        ]
        for one in found
    ]
    return markdown_table(["(B,H,L,D)", "dtype", "pass", "implementation", "host overhead, us", "quartiles"], lines, 4)


def _memory_table(found: Sequence[records.MemoryRecord]) -> str:
    lines = []
    for one in found:
        sizes = (one.input_mb, one.output_mb, one.saved_mb, one.gradient_mb, one.extra_mb)
        fixed = [one.case.short_name, one.dtype, one.mode, f"{one.dropout:g}", one.implementation]
        lines.append([*fixed, *(f"{size:.1f}" for size in sizes)])
    sizes = ["inputs, MB", "output", "saved", "gradients", "temporary"]
    return markdown_table(["(B,H,L,D)", "dtype", "pass", "dropout", "implementation", *sizes], lines, 5)


def _ceiling_line(found: Sequence[records.CeilingRecord]) -> str:
    return "Fastest matrix products: " + "; ".join(map(str, records.fastest_products(found).values())) + "."


def _step_table(steps: Sequence[records.StepRecord]) -> str:
    """Formats sentences per second, with the speed-up over the released operations in float32 in brackets."""
    names = list(dict.fromkeys(one.implementation for one in steps))
    found = {(one.size, one.mode, one.dtype, one.implementation): one for one in steps}
    lines = [
        [*case, *(_step_cell(found.get((*case, name))) for name in names)]
        for case in dict.fromkeys(key[:3] for key in found)
    ]
    sources = dict.fromkeys(f"{one.lengths}, {1 - one.tokens / one.padded_tokens:.0%} padding" for one in steps)
    table = markdown_table(["model", "step", "dtype", *(f"{name}, sentences/s" for name in names)], lines, 3)
    return f"{table}\n\nIn brackets the speed-up over released in float32. " + "; ".join(sources) + "."


def _step_cell(record: records.StepRecord | None) -> str:
    if record is None:
        return ""
    ratio = "" if record.ratio_to_released is None else f" ({record.ratio_to_released:.1f}x)"
    return f"{_three_digits(record.sentences_per_second)}{ratio}"


def _application_table(found: Sequence[records.ApplicationRecord]) -> str:
    lines = []
    for one in found:
        equal = "" if one.equal_labels is None else f"{one.equal_labels:.2%}"
        slowest, fastest = (f"{1e3 * one.rows / ms:.0f}" for ms in (one.q3_ms, one.q1_ms))
        lines.append([one.implementation, one.ran, f"{one.rows_per_second:.0f}", f"{slowest} to {fastest}", equal])
    header = ["implementation", "library and precision", "rows/s", "quartiles", "labels equal to those in float32"]
    return f"{markdown_table(header, lines, 2)}\n\n{found[0].rows} rows, medians of interleaved runs."


def _three_digits(number: float) -> str:
    """Formats a number with up to three digits, or with all digits before the decimal point if there are more."""
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.table", description="Prints records as Markdown tables."
    )
    parser.add_argument("files", nargs="+", help="files of records of one machine, thread count and commit")
    parser.add_argument("--dtypes", nargs="+", help="print only the times of these dtypes")
    parser.add_argument("--modes", nargs="+", help="print only the times of these passes")
    parser.add_argument("--dropouts", nargs="+", type=float, help="print only the times with these dropout rates")
    options = parser.parse_args(arguments)

    def print_table() -> int:
        kept = {"dtype": options.dtypes, "mode": options.modes, "dropout": options.dropouts}
        found = records.chosen(records.load(options.files), **kept)
        print(markdown(found))
        return 0

    return exit_status(print_table)


if __name__ == "__main__":
    sys.exit(main())
