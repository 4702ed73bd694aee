"""Markdown tables of rows."""

from collections.abc import Sequence

from benchmarks import rows
from benchmarks.providers.names import COMPILED, EAGER, ONE_MAP
from benchmarks.rows.selection import cases_of, disturbance_note, require_one_origin

_ORDER = (EAGER, COMPILED, ONE_MAP)  # of the columns of several machines; others come after them


def markdown(measured: Sequence[rows.Row]) -> str:
    """Tables of times, of the host's part of a call, of memory, of whole steps and of the ceilings, as rows are there.

    Times are medians in milliseconds, with the speed-up over eager and the share of the matrix-product ceiling. A
    provider that was not measured in a case has an empty cell.

    Raises:
        ValueError: the rows come from more than one machine, thread number, version or commit.
    """
    if not measured:
        return ""
    require_one_origin(measured)
    times = [row for row in measured if isinstance(row, rows.TimeRow)]
    memory = [row for row in measured if isinstance(row, rows.MemoryRow)]
    steps = [row for row in measured if isinstance(row, rows.StepRow)]
    blocks = [_time_table(times)] if times else []
    host = [row for row in measured if isinstance(row, rows.HostRow)]
    ceilings = [row for row in measured if isinstance(row, rows.CeilingRow)]
    blocks += [_host_table(host)] if host else []
    blocks += [_memory_table(memory)] if memory else []
    blocks += [_step_table(steps)] if steps else []
    blocks += [_ceiling_line(ceilings)] if ceilings else []
    source = (_legend(times) + " " if times else "") + rows.source_line(measured[0].origin)
    return "\n\n".join([*blocks, source, *disturbance_note([*times, *steps])])


def of_machines(measured: Sequence[rows.Row]) -> str:
    """Times of the cases that every machine has, the machine in the first column, and a line on each below.

    Raises:
        ValueError: rows of one machine come from several versions or commits, or no case is there on all machines.
    """
    times = [row for row in measured if isinstance(row, rows.TimeRow)]
    by_machine: dict[str, list[rows.TimeRow]] = {}
    for row in times:
        by_machine.setdefault(rows.machine_of(row.origin), []).append(row)
    for own in by_machine.values():
        require_one_origin(own)
    found = {machine: cases_of(own) for machine, own in by_machine.items()}
    shared = [case for case in next(iter(found.values()), {}) if all(case in of for of in found.values())]
    if not shared:
        raise ValueError("no case has times on every one of the machines")
    measured_names = dict.fromkeys(row.provider for row in times)
    names = [*(name for name in _ORDER if name in measured_names), *(n for n in measured_names if n not in _ORDER)]
    lines = [
        "| machine | (B,H,L,D) | type | pass | dropout | " + " | ".join(f"{name}, ms" for name in names) + " |",
        "|---|---|---|---|---|" + "---:|" * len(names),
    ]
    for machine, of in found.items():
        for case in shared:
            fixed = [machine, case.place, case.dtype, case.mode, f"{case.dropout:g}"]
            lines.append("| " + " | ".join([*fixed, *(_time_cell(of[case].get(name)) for name in names)]) + " |")
    sources = [rows.source_line(own[0].origin) for own in by_machine.values()]
    return "\n\n".join(["\n".join(lines), _legend(times), *sources, *disturbance_note(times)])


def _legend(times: Sequence[rows.TimeRow]) -> str:
    shares = any(row.share_of_peak is not None for row in times)
    legend = "Medians of interleaved runs, in brackets the speed-up over eager"
    return legend + (" and the share of the matrix-product ceiling." if shares else ".")


def _time_table(times: Sequence[rows.TimeRow]) -> str:
    names = list(dict.fromkeys(row.provider for row in times))
    lines = [
        "| (B,H,L,D) | type | pass | dropout | " + " | ".join(f"{name}, ms" for name in names) + " |",
        "|---|---|---|---|" + "---:|" * len(names),
    ]
    for case, by_provider in cases_of(times).items():
        cells = [_time_cell(by_provider.get(name)) for name in names]
        fixed = [case.place, case.dtype, case.mode, f"{case.dropout:g}"]
        lines.append("| " + " | ".join([*fixed, *cells]) + " |")
    return "\n".join(lines)


def _time_cell(row: rows.TimeRow | None) -> str:
    if row is None:
        return ""
    time = _short(row.median_ms)
    beside = []
    if row.provider != EAGER and row.ratio_to_eager is not None:
        beside.append(f"{row.ratio_to_eager:.1f}x")
    if row.share_of_peak is not None:
        beside.append(f"{row.share_of_peak:.0%}")
    return f"{time} ({', '.join(beside)})" if beside else time


def _host_table(host: Sequence[rows.HostRow]) -> str:
    lines = [
        "| (B,H,L,D) | type | pass | provider | until the call returns, us | quartiles |",
        "|---|---|---|---|---:|---:|",
    ]
    for row in host:
        fixed = [row.case.place, row.dtype, row.mode, row.provider]
        lines.append("| " + " | ".join([*fixed, f"{row.median_us:.1f}", f"{row.q1_us:.1f} to {row.q3_us:.1f}"]) + " |")
    return "\n".join(lines)


def _ceiling_line(ceilings: Sequence[rows.CeilingRow]) -> str:
    """The fastest product of each type."""
    best: dict[str, rows.CeilingRow] = {}
    for row in sorted(ceilings, key=lambda row: row.gflops):
        best[row.dtype] = row
    return "Fastest matrix products: " + "; ".join(map(str, best.values())) + "."


def _memory_table(memory: Sequence[rows.MemoryRow]) -> str:
    lines = [
        "| (B,H,L,D) | type | pass | dropout | provider | inputs, MB | output | saved | gradients | beyond them |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for row in memory:
        sizes = (row.input_mb, row.output_mb, row.saved_mb, row.gradient_mb, row.extra_mb)
        fixed = [row.case.place, row.dtype, row.mode, f"{row.dropout:g}", row.provider]
        lines.append("| " + " | ".join([*fixed, *(f"{size:.1f}" for size in sizes)]) + " |")
    return "\n".join(lines)


def _step_table(steps: Sequence[rows.StepRow]) -> str:
    """Sentences per second, in brackets the speed-up over the released operations in float32."""
    names = list(dict.fromkeys(row.provider for row in steps))
    found = {(row.size, row.mode, row.dtype, row.provider): row for row in steps}
    lines = [
        "| model | step | type | " + " | ".join(f"{name}, sentences/s" for name in names) + " |",
        "|---|---|---|" + "---:|" * len(names),
    ]
    for case in dict.fromkeys(key[:3] for key in found):
        cells = [_step_cell(found.get((*case, name))) for name in names]
        lines.append("| " + " | ".join([*case, *cells]) + " |")
    sources = dict.fromkeys(f"{row.lengths}, {1 - row.tokens / row.cells:.0%} padding" for row in steps)
    return "\n".join(lines) + "\n\nIn brackets the speed-up over released in float32. " + "; ".join(sources) + "."


def _step_cell(row: rows.StepRow | None) -> str:
    if row is None:
        return ""
    ratio = "" if row.ratio_to_released is None else f" ({row.ratio_to_released:.1f}x)"
    return f"{_short(row.sentences_per_second)}{ratio}"


def _short(number: float) -> str:
    """Three digits, or all those before the point."""
    return f"{number:.3g}" if number < 100 else f"{number:.0f}"
