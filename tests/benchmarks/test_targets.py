"""Performance targets: compared with records, and measured by the command."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from benchmark_records import ORIGIN, SMALL, memory, time_of, times

from benchmarks import records
from benchmarks.cases import (
    FORWARD,
    FORWARD_BACKWARD,
    PACKED,
    SENTENCES,
    Case,
)
from benchmarks.implementations.registry import COMPILED, EAGER, ONE_MAP
from benchmarks.measure import agreement, ceiling, session
from benchmarks.targets import __main__ as command, kinds
from benchmarks.targets.performance import TARGETS

CPU = TARGETS["cpu"]
REQUIRED = [target for target in CPU if not target.stretch]


@pytest.mark.parametrize(("cpu_seconds", "met"), [(0.1, True), (0.101, False)])
def test_speed_up_compares_medians(cpu_seconds, met):
    measured = times(eager=[9.0], compiled=[0.25], cpu=[cpu_seconds])
    result = kinds.SpeedUp(SMALL, baseline=COMPILED, at_least=2.5).judge("cpu", measured)
    assert result.met is met
    assert result.measured == f"{0.25 / cpu_seconds:.2f}x"
    assert ("met" if met else "MISSED") in str(result)


@pytest.mark.parametrize(("at_least", "met"), [(0.999, True), (1.001, False)])
def test_ceiling_share_uses_the_product_of_the_rounds(at_least, met):
    (one,) = times(cpu=[0.1])
    target = kinds.CeilingShare(SMALL, at_least=at_least)
    result = target.judge("cpu", [replace(one, matrix_peak_gflops=one.gflops)])
    assert result.met is met
    assert result.measured.startswith("100% (")
    assert target.judge("cpu", [one]).measured == kinds.NOT_MEASURED


@pytest.mark.parametrize(("cpu_seconds", "met"), [(0.149, True), (0.151, False)])
def test_rate_over_baseline_counts_the_work_of_each(cpu_seconds, met):
    """Quasi-attention has 6 FLOP per entry of the forward, softmax attention 4: 1.5 times the time is the same rate."""
    measured = times(one_map=[0.1], cpu=[cpu_seconds])
    assert kinds.RateOverBaseline(SMALL, baseline=ONE_MAP).judge("cpu", measured).met is met


def test_speed_up_over_case_divides_by_the_product_times():
    both = Case(SENTENCES, mode=FORWARD_BACKWARD)
    dropout = replace(both, dropout=0.1)
    # The machine ran at half its speed in the second case: dropout cost 1.1 times as much, not 2.2 times.
    measured = [time_of(both, "cpu", 10.0, peak=100.0), time_of(dropout, "cpu", 22.0, peak=50.0)]
    result = kinds.SpeedUpOverCase(dropout, other=both, at_least=1 / 1.25).judge("cpu", measured)
    assert result.measured == "0.91x"
    assert result.met


@pytest.mark.parametrize(("tiles", "measured"), [(700.0, "1.00x"), (400.0, kinds.OTHER_STATE)])
def test_cases_are_compared_in_one_state_of_the_tiles(tiles, measured):
    other = replace(SMALL, dropout=0.1, mode=FORWARD_BACKWARD)
    rates = ({"fma": 100.0, "amx": 850.0}, {"fma": 110.0, "amx": tiles})
    found = [replace(time_of(case, "cpu", 1.0), product_gflops=one) for case, one in zip((SMALL, other), rates)]
    assert kinds.SpeedUpOverCase(SMALL, other=other, at_least=1.0).judge("cpu", found).measured == measured


@pytest.mark.parametrize(("milliseconds", "met"), [(-0.01, True), (0.1, False)])
def test_packed_cost_is_at_most_the_share_of_tokens(milliseconds, met):
    packed = Case(SENTENCES, lengths=PACKED)
    tokens = sum(packed.sequence_lengths) / (64 * 128)
    measured = [time_of(Case(SENTENCES), "cpu", 10.0), time_of(packed, "cpu", 10 * tokens + milliseconds)]
    assert kinds.PackedCost(packed).judge("cpu", measured).met is met


def test_stored_records_are_compared(tmp_path, capsys):
    writer = records.Writer(tmp_path, "targets", ORIGIN)
    writer.add([time_of(Case(SENTENCES), "cpu", 1.0), time_of(Case(SENTENCES), EAGER, 10.0)])
    assert command.main(["--records", str(writer.path)]) == 0
    shown = capsys.readouterr().out
    assert "10.00x" in shown
    assert "1 of 23 stretch targets met" in shown
    assert command.main(["--records", str(tmp_path / "nothing")]) == 1


def test_targets_of_amx_are_for_its_records_only(tmp_path, capsys):
    sets = {"instruction_sets": {"float32": "amx", "bfloat16": "amx"}}
    (target, *_) = TARGETS["amx"]
    for source, shown in ((ORIGIN, False), (replace(ORIGIN, machine=ORIGIN.machine | sets), True)):
        writer = records.Writer(tmp_path / str(shown), "targets", source)
        times = ((ONE_MAP, 1.0), ("cpu", 0.5))
        writer.add([replace(time_of(target.case, name, time), origin=source) for name, time in times])
        assert command.main(["--records", str(writer.path)]) == 0
        assert ("(16,12,128,64) bfloat16 forward, cpu vs sdpa-one-map" in capsys.readouterr().out) is shown


@pytest.fixture
def measuring(monkeypatch):
    """The command on sources without local changes, with simulated measurements; returns the measured cases."""
    source = replace(ORIGIN, dirty=False)
    monkeypatch.setattr(agreement, "require_parity", lambda: 1)
    fastest = partial(ceiling.Product, "some product", flops=1e6, step=lambda turn: 1e-3)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (fastest(dtype=dtype), []))
    monkeypatch.setattr(records, "origin", lambda: source)
    measured = []

    def measure(self, item):
        measured.append(item.case)
        names = item.implementations
        if item.kind == "memory":
            return [replace(memory(1.0), **records.case_fields(item.case), implementation=name) for name in names]
        return [time_of(item.case, name, 1.0) for name in names]

    monkeypatch.setattr(session.Session, "_in_this_process", lambda self, item, names: measure(self, item))
    monkeypatch.setattr(session, "measure_in_process", lambda case, name, threads: measure(None, _memory_item(case))[0])
    return measured


def _memory_item(case):
    return session.Item(case, ("reference",), "memory")


def test_command_while_parity_fails_measures_nothing(measuring, monkeypatch, capsys, tmp_path):
    def fail():
        raise agreement.ParityError("cpu bfloat16 output: off by 3")

    monkeypatch.setattr(agreement, "require_parity", fail)
    assert command.main(["--backend", "reference", "--out", str(tmp_path / "records")]) == 1
    assert "off by 3" in capsys.readouterr().err
    assert not measuring
    assert not (tmp_path / "records").exists()


def test_command_with_a_wrong_result_fails(measuring, monkeypatch, capsys):
    def wrong(self, item, names):
        self.wrong.append("reference: out has error 3")
        return []

    monkeypatch.setattr(session.Session, "_in_this_process", wrong)
    assert command.main(["--backend", "reference"]) == 1
    assert f"1 of {len(REQUIRED)} targets met" in capsys.readouterr().out


def test_command_resumes_after_its_minutes(measuring, monkeypatch, capsys, tmp_path):
    clock = SimpleNamespace(monotonic=lambda: 60 * len(measuring))  # each case takes a minute
    for module in (command, session):
        monkeypatch.setattr(module, "time", clock)
    arguments = ["--backend", "reference", "--out", str(tmp_path)]
    command.main([*arguments, "--minutes", "2"])
    assert len(measuring) == 2
    assert "the time limit is reached" in capsys.readouterr().out
    command.main(arguments)
    assert set(measuring) == {target.case for target in REQUIRED}
    assert len(measuring) == len(set(measuring))
    assert "not measured:" not in capsys.readouterr().out
    command.main(arguments)
    assert len(measuring) == len(set(measuring))
    assert {one.mode for one in records.load(tmp_path.iterdir())} == {FORWARD, FORWARD_BACKWARD}
