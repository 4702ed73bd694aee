"""Peak memory, as the benchmark takes it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmark_records import SMALL

from benchmarks import records
from benchmarks.cases import FORWARD_BACKWARD, Case, Shape, draw
from benchmarks.implementations.registry import COMPILED, EAGER, IMPLEMENTATIONS
from benchmarks.measure import memory

needs_peak = pytest.mark.skipif(not memory._CLEAR_REFS.exists(), reason="the peak cannot be set back on this system")


@needs_peak
def test_peak_meter_sees_what_was_freed_again():
    # In a process of its own, as the benchmark measures: here the heap may hold free pages of earlier tests.
    script = (
        "import torch; from benchmarks.measure.memory import PeakMeter, control;"
        "meter = PeakMeter();"
        "meter.run(lambda: torch.ones(40 * 2**18).sum());"  # starts threads, whose stacks would count
        "print(meter.run(lambda: torch.ones(40 * 2**18).sum())[1], meter.run(lambda: None)[1], control())"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    peak, quiet, control = map(float, result.stdout.split())
    # A run of nothing reads as the meter's own floor, up to 4 MiB: pages the kernel counts late.
    assert quiet < 4 * 2**20
    assert peak - quiet == pytest.approx(40 * 2**20, abs=2 * 2**20)
    assert control == pytest.approx(64e6, abs=4e6)


@needs_peak
@pytest.mark.full
def test_memory_of_inference_and_of_packed_sentences():
    # In one process of its own; the second case reads the first one's freed pages at most low.
    script = (
        "from benchmarks import records; from benchmarks.measure.memory import measure_here;"
        "from benchmarks.cases import Case, Shape;"
        "print(records.to_line(measure_here(Case(Shape(1, 4, 1024, 16)), 'eager')));"
        "packed = Case(Shape(8, 2, 64, 16), mode='forward+backward', lengths='packed');"
        "print(records.to_line(measure_here(packed, 'reference')))"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    inference, packed = map(records.from_line, result.stdout.splitlines())
    one_map = 4 * 1024 * 1024 * 4 / 1e6
    assert (inference.saved_mb, inference.gradient_mb, inference.backward_extra_mb) == (0, 0, 0)
    assert inference.output_mb == pytest.approx(4 * 1024 * 16 * 4 / 1e6, rel=0.01)
    # Both scores, both maps, their sum and its dropout at once, and what the method is off by.
    assert 6 * one_map - 4 < inference.extra_mb < 7 * one_map + 4
    tokens = sum(packed.case.sequence_lengths)
    assert packed.output_mb == pytest.approx(tokens * 2 * 16 * 4 / 1e6, rel=0.01)
    assert packed.gradient_mb == pytest.approx(5 * packed.output_mb + tokens * 2 * 4 / 1e6, rel=0.01)


def test_memory_of_what_compiles_as_it_runs_is_refused():
    with pytest.raises(memory.NotMeasurableError, match="compiles in the measured process"):
        memory.measure_here(SMALL, COMPILED)


def test_memory_is_not_guessed_where_the_peak_cannot_be_set_back(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such" / "file")
    with pytest.raises(memory.NotMeasurableError, match="a process can write"):
        memory.PeakMeter().run(lambda: None)


def test_saved_bytes_count_the_maps_of_eager_once():
    case = Case(Shape(1, 2, 32, 8), mode=FORWARD_BACKWARD)
    inputs = draw(case, torch.Generator().manual_seed(0))
    one_map = 2 * 32 * 32 * 4
    # softmax, sigmoid and their gated sum; the unscaled scores are not kept
    assert memory.saved_bytes(IMPLEMENTATIONS[EAGER].build(case), inputs) == 3 * one_map
