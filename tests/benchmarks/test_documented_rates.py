"""The rates in documents are those of the records, counted by FLOP_CONVENTION, with the executed rate beside them."""

import re
from pathlib import Path

import pytest

from benchmarks.cases import BACKWARD, FORWARD, QUASI_ATTENTION_FLOPS, TILED_FLOPS, Shape

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PASSES = (FORWARD, BACKWARD)


def rates(shape, mode, microseconds):
    """Counted and executed TFLOP/s of a call of tiled rows."""
    entries = shape.batch * shape.heads * shape.length**2 * shape.head_dim
    flops = (QUASI_ATTENTION_FLOPS[mode], TILED_FLOPS[mode])
    return tuple(count * entries / microseconds / 1e6 for count in flops)


def measured_times():
    """Microseconds on the H200 by shape, implementation and pass."""
    line = r"\((\d+), (\d+), (\d+), (\d+)\) (\w+) lambda +fwd +([\d.]+) us.*bwd +([\d.]+) us"
    found = re.findall(line, (RESULTS / "h200" / "rates.txt").read_text(encoding="utf-8"))
    return {
        (Shape(*map(int, sizes)), backend, mode): float(time)
        for *sizes, backend, forward, backward in found
        for mode, time in zip(PASSES, (forward, backward))
    }


def documented_cells():
    """Each cell of the H200 table that has a time and two rates: shape, implementation, pass, and these numbers."""
    text = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8").split("## Operators on an H200")[1]
    text = text[text.index("\n| (B,H,L,D)") :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    header = rows[0]
    for sizes, mode, *cells in rows:
        for backend, cell in zip(header[2:], cells):
            if numbers := re.fullmatch(r"([\d,]+) \((\d+), (\d+)\)", cell):
                shape = Shape(*map(int, sizes.strip("()").split(",")))
                yield pytest.param(
                    shape,
                    backend,
                    mode,
                    [int(n.replace(",", "")) for n in numbers.groups()],
                    id=f"{sizes}-{mode}-{backend}",
                )


def test_h200_table_has_rates_of_all_backends():
    """The next test has a case for each cell that `documented_cells` finds, so it would not notice a missing one."""
    found = {(implementation, mode) for _, implementation, mode, _ in (cell.values for cell in documented_cells())}
    assert found == {(name, mode) for name in ("triton", "cuda") for mode in (FORWARD, BACKWARD)}


@pytest.mark.parametrize(("shape", "implementation", "mode", "numbers"), list(documented_cells()))
def test_h200_table_states_counted_and_executed_rates(shape, implementation, mode, numbers):
    time = measured_times()[shape, implementation, mode]
    assert numbers[0] == pytest.approx(time, abs=0.6)
    assert numbers[1:] == pytest.approx(rates(shape, mode, time), abs=0.6)
