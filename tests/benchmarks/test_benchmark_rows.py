"""Rows: what is computed for them, and that they survive their file."""

import json
from dataclasses import replace

import pytest
import torch
from benchmark_rows import ORIGIN, SMALL, memory_row, seconds_rows

from benchmarks import rows
from benchmarks.cases.case import FORWARD, FORWARD_BACKWARD, Case, Shape


def test_ratio_is_of_medians_and_its_quartiles_are_of_rounds():
    eager, cpu = seconds_rows(eager=[0.010, 0.030, 0.020], cpu=[0.002, 0.005, 0.020])
    assert (eager.median_ms, eager.min_ms, eager.repeats) == (20, 10, 3)
    assert (eager.ratio_to_eager, eager.ratio_q1, eager.ratio_q3) == (1, 1, 1)
    assert cpu.ratio_to_eager == 4  # 20 ms / 5 ms
    assert (cpu.ratio_q1, cpu.ratio_q3) == (3, 5.5)  # rounds: 5, 6, 1


def test_ratio_is_absent_without_eager():
    (cpu,) = seconds_rows(cpu=[0.1])
    assert cpu.ratio_to_eager is None
    assert cpu.ratio_q1 is None
    assert (cpu.q1_ms, cpu.median_ms, cpu.q3_ms) == (100, 100, 100)


@pytest.mark.parametrize(
    ("mode", "quasi", "one_map"), [(FORWARD, 6, 4), (FORWARD_BACKWARD, 22, 14)], ids=["forward", "both"]
)
def test_rate_counts_the_products_of_the_convention(mode, quasi, one_map):
    case = Case(Shape(2, 3, 100, 10), mode=mode)
    cpu, floor = seconds_rows(case, cpu=[1e-3], one_map=[1e-3])
    assert cpu.gflops == pytest.approx(quasi * 2 * 3 * 100 * 100 * 10 / 1e6, rel=1e-4)
    assert floor.gflops == pytest.approx(one_map * 2 * 3 * 100 * 100 * 10 / 1e6, rel=1e-4)


def test_rows_survive_a_file_and_keep_their_case(tmp_path):
    writer = rows.Writer(tmp_path / "new", "marks", ORIGIN)
    times, memory_used = seconds_rows(eager=[0.2], cpu=[0.1]), memory_row(50.0)
    writer.add(times)
    writer.add([memory_used])
    assert writer.path.name == "some-cpu-r-9000-2t-0.1.0-marks.jsonl"
    assert rows.load([writer.path]) == [*times, memory_used]
    assert times[0].case == SMALL
    rows.Writer(tmp_path / "new", "marks", ORIGIN)
    assert rows.load([writer.path]) == []


def test_a_file_tells_once_what_its_rows_share(tmp_path):
    later = replace(ORIGIN, taken="2030-01-02T04:00:00Z")
    other_count = replace(seconds_rows(cpu=[0.3])[0], flop_convention="another one")
    measured = [memory_row(1.0), *seconds_rows(eager=[0.2], cpu=[0.1]), other_count]
    measured.append(replace(memory_row(2.0), origin=later))
    writer = rows.Writer(tmp_path, "marks", ORIGIN)
    for row in measured:
        writer.add([row])
    assert rows.load([writer.path]) == measured
    text = writer.path.read_text()
    assert text.count("Some CPU") == 4  # the origin, twice with a convention that changes, and the later origin
    writer.path.write_text(rows.to_line(measured[0]) + "\n" + text)  # lines that have all to themselves are read too
    assert rows.load([writer.path]) == [measured[0], *measured]


def test_writer_without_a_folder_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows.Writer(None, "marks", ORIGIN).add([memory_row(1.0)])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("median_ms"), r"missing fields \['median_ms'\]"),
        (lambda record: record.update(speed=9), r"unknown fields \['speed'\]"),
        (lambda record: record["origin"].pop("commit"), r"Origin: missing fields \['commit'\]"),
        (lambda record: record.update(kind="guess"), "got 'guess', wanted one of 'time', 'memory'"),
    ],
)
def test_a_malformed_row_is_refused_with_file_and_line(tmp_path, change, message):
    good = rows.to_line(seconds_rows(cpu=[0.1])[0])
    record = json.loads(good)
    change(record)
    path = tmp_path / "rows.jsonl"
    path.write_text(good + "\n" + json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: .*" + message):
        rows.load([path])


def test_origin_is_that_of_this_process():
    source = rows.origin()
    assert source.machine["threads"] == torch.get_num_threads()
    assert source.versions["torch"] == torch.__version__
    assert source.commit
    assert json.loads(json.dumps(source.machine)) == source.machine
