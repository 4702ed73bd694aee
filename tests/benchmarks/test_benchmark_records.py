"""Benchmark records: computed fields and files."""

import json
from dataclasses import replace

import pytest
from benchmark_records import ORIGIN, SMALL, memory, times, to_line

from benchmarks import records
from benchmarks.cases import FORWARD, FORWARD_BACKWARD, Case, Shape


def test_ratio_to_eager_is_of_medians_quartiles_of_rounds():
    eager, cpu = times(eager=[0.010, 0.030, 0.020], cpu=[0.002, 0.005, 0.020])
    assert (eager.median_ms, eager.min_ms, eager.repeats) == (20, 10, 3)
    assert (eager.ratio_to_eager, eager.ratio_q1, eager.ratio_q3) == (1, 1, 1)
    assert cpu.ratio_to_eager == 4  # 20 ms / 5 ms
    assert (cpu.ratio_q1, cpu.ratio_q3) == (3, 5.5)  # rounds: 5, 6, 1


@pytest.mark.parametrize(
    ("mode", "quasi", "one_map"), [(FORWARD, 6, 4), (FORWARD_BACKWARD, 22, 14)], ids=["forward", "both"]
)
def test_rate_counts_the_flop_convention(mode, quasi, one_map):
    case = Case(Shape(2, 3, 100, 10), mode=mode)
    cpu, floor = times(case, cpu=[1e-3], one_map=[1e-3])
    assert cpu.gflops == pytest.approx(quasi * 2 * 3 * 100 * 100 * 10 / 1e6, rel=1e-4)
    assert floor.gflops == pytest.approx(one_map * 2 * 3 * 100 * 100 * 10 / 1e6, rel=1e-4)


def test_writer_stores_records_and_replaces_a_file(tmp_path):
    writer = records.Writer(tmp_path / "new", "targets", ORIGIN)
    measured, memory_used = times(eager=[0.2], cpu=[0.1]), memory(50.0)
    writer.add(measured)
    writer.add([memory_used])
    assert writer.path.name == "some-cpu-r-9000-2t-0.1.0-targets.jsonl"
    assert records.load([writer.path]) == [*measured, memory_used]
    assert measured[0].case == SMALL
    records.Writer(tmp_path / "new", "targets", ORIGIN)
    assert records.load([writer.path]) == []


def test_writer_stores_shared_fields_once(tmp_path):
    later = replace(ORIGIN, measured_at="2030-01-02T04:00:00Z")
    counted_otherwise = replace(times(cpu=[0.3])[0], flop_convention="another one")
    measured = [memory(1.0), *times(eager=[0.2], cpu=[0.1]), counted_otherwise]
    measured.append(replace(memory(2.0), origin=later))
    writer = records.Writer(tmp_path, "targets", ORIGIN)
    for row in measured:
        writer.add([row])
    assert records.load([writer.path]) == measured
    text = writer.path.read_text()
    assert text.count("Some CPU") == 4  # the origin, twice with a convention that changes, and the later origin
    writer.path.write_text(to_line(measured[0]) + "\n" + text)  # lines with all fields are read too
    assert records.load([writer.path]) == [measured[0], *measured]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.pop("median_ms"), "missing 1 required positional argument: 'median_ms'"),
        (lambda record: record.update(speed=9), "unexpected keyword argument 'speed'"),
        (lambda record: record.update(origin=3), "must be a mapping, not int"),
        (lambda record: record["origin"].pop("commit"), "missing 1 required positional argument: 'commit'"),
        (lambda record: record.update(kind="guess"), "KeyError"),
    ],
)
def test_malformed_record_raises_with_file_and_line(tmp_path, change, message):
    good = to_line(times(cpu=[0.1])[0])
    record = json.loads(good)
    change(record)
    path = tmp_path / "records.jsonl"
    path.write_text(good + "\n" + json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=r"records\.jsonl:2: .*" + message):
        records.load([path])


def test_writer_resumes_records_of_the_same_sources_only(tmp_path):
    writer = records.Writer(tmp_path, "targets", ORIGIN)
    writer.add([memory(1.0)])
    writer.path.write_text(writer.path.read_text() + '{"kind": "time", "half a li')  # killed while writing a record
    later = replace(ORIGIN, measured_at="2031-01-01T00:00:00Z")
    assert records.Writer(tmp_path, "targets", later, resume=True).kept == [memory(1.0)]
    for other in (replace(ORIGIN, commit="fedcba987654"), replace(ORIGIN, dirty=True)):
        records.Writer(tmp_path, "targets", ORIGIN).add([memory(1.0)])
        assert records.Writer(tmp_path, "targets", other, resume=True).kept == []
        assert records.load([writer.path]) == []
