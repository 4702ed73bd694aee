"""The parts of the benchmark suite that compute: what they time is left out, how they reckon is not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent))  # benchmarks is not part of the package

from benchmarks import ceiling, marks, memory, rows, table, timing, verdicts, verify
from benchmarks.providers import COMPILED, EAGER, ONE_MAP, PROVIDERS, chosen
from benchmarks.shapes import FORWARD, FORWARD_BACKWARD, MAIN_SHAPES, Case, Shape, draw, draw_sets, grid
from qacg_kernels.testing import ParityRow

ORIGIN = rows.Origin(
    machine={
        "cpu": "Some CPU (R) 9000",
        "cores": 2,
        "threads": 2,
        "torch_instruction_set": "AVX512",
        "instruction_sets": {"float32": "avx512", "bfloat16": "avx512_bf16"},
    },
    versions={"qacg_kernels": "0.1.0", "python": "3.12.1", "torch": "2.13.0", "os": "Linux"},
    commit="0123456789ab",
    dirty=False,
    taken="2030-01-02T03:04:05Z",
)
SMALL = Case(Shape(2, 3, 20, 8))


def seconds_rows(case=SMALL, **seconds):
    names = {"eager": EAGER, "compiled": COMPILED, "one_map": ONE_MAP}
    taken = {names.get(name, name): times for name, times in seconds.items()}
    return rows.time_rows(case, {name: PROVIDERS[name] for name in taken}, taken, 0.01, ORIGIN)


def a_product(dtype):
    return ceiling.Product("some product", dtype, flops=1e6, step=lambda turn: 1e-3)


def memory_row(extra_mb):
    return rows.MemoryRow(
        ORIGIN,
        1,
        12,
        8192,
        64,
        "float32",
        FORWARD_BACKWARD,
        0.0,
        "cpu",
        "cpu",
        1,
        2,
        3,
        4,
        5,
        extra_mb,
        extra_mb,
        64,
        "m",
    )


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


def test_table_shows_times_speedups_and_holes():
    times = [
        *seconds_rows(eager=[0.200], cpu=[0.010]),
        *seconds_rows(replace(SMALL, mode=FORWARD_BACKWARD, dropout=0.1), eager=[0.0312], one_map=[0.0156]),
    ]
    assert table.markdown([*times, memory_row(50.0)]).splitlines() == [
        "| (B,H,L,D) | type | pass | dropout | eager, ms | cpu, ms | sdpa-one-map, ms |",
        "|---|---|---|---|---:|---:|---:|",
        "| (2,3,20,8) | float32 | forward | 0 | 200 | 10 (20.0x) |  |",
        "| (2,3,20,8) | float32 | forward+backward | 0.1 | 31.2 |  | 15.6 (2.0x) |",
        "",
        "| (B,H,L,D) | type | pass | dropout | provider | inputs, MB | output | saved | gradients | beyond them |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|",
        "| (1,12,8192,64) | float32 | forward+backward | 0 | cpu | 1.0 | 2.0 | 3.0 | 4.0 | 50.0 |",
        "",
        "Medians of interleaved runs, in brackets the speed-up over eager. Some CPU (R) 9000, 2 threads, "
        "kernels on avx512, avx512_bf16, torch 2.13.0, commit 0123456789ab, 2030-01-02.",
    ]
    assert len(table.markdown([memory_row(50.0)]).splitlines()) == 5


def test_table_shows_shares_of_the_ceiling_lengths_and_the_host():
    case = replace(SMALL, lengths="packed")
    (timed,) = rows.time_rows(case, {"cpu": PROVIDERS["cpu"]}, {"cpu": [1e-3]}, 0.01, ORIGIN, 1e-2)
    assert timed.share_of_peak == pytest.approx(6 * case.products / 1e-3 / 1e9 / 1e-2, rel=1e-3)
    ceilings = [rows.ceiling_row(name, "float32", "cpu", [rate], ORIGIN) for name, rate in (("a", 9.0), ("b", 8.0))]
    where = rows.case_fields(SMALL)
    host = rows.HostRow(ORIGIN, **where, provider="cpu", median_us=12.34, q1_us=12, q3_us=13, repeats=9)
    text = table.markdown([timed, host, *ceilings])
    assert f"| (2,3,20,8) packed | float32 | forward | 0 | 1 ({timed.share_of_peak:.0%}) |" in text
    assert "| (2,3,20,8) | float32 | forward | cpu | 12.3 | 12.0 to 13.0 |" in text
    assert "Fastest matrix products: a in float32: 9 GFLOP/s." in text
    assert "and the share of the matrix-product ceiling" in text


def test_table_refuses_to_mix_origins():
    mixed = [memory_row(1.0), replace(memory_row(1.0), origin=replace(ORIGIN, commit="fedcba987654"))]
    with pytest.raises(ValueError, match="different machines, versions or commits"):
        table.markdown(mixed)
    later = [memory_row(1.0), replace(memory_row(1.0), origin=replace(ORIGIN, taken="2030-01-02T03:05:00Z"))]
    assert table.markdown(later)


def test_plot_writes_the_format_that_the_name_asks_for(tmp_path):
    pytest.importorskip("matplotlib")
    from benchmarks import plot

    measured = seconds_rows(eager=[0.2, 0.3], cpu=[0.1, 0.2], one_map=[0.1, 0.1])
    for name in ("a.svg", "again.svg", "a.png"):
        plot.draw(measured, str(tmp_path / name))
    text = (tmp_path / "a.svg").read_text()
    for shown in ("times as fast as eager", ">1.7<", ">2.5<", "(2,3,20,8)", "Some CPU (R) 9000"):
        assert shown in text
    assert (tmp_path / "again.svg").read_text() == text
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="run eager beside"):
        plot.draw(seconds_rows(cpu=[0.1]), str(tmp_path / "b.svg"))


@pytest.mark.parametrize(("cpu_seconds", "met"), [(0.1, True), (0.101, False)])
def test_mark_compares_medians_with_its_rival(cpu_seconds, met):
    measured = seconds_rows(eager=[9.0], compiled=[0.25], cpu=[cpu_seconds])
    verdict = verdicts.judge_ratio(verdicts.Ratio(SMALL, COMPILED, 2.5), "cpu", verdicts.times_of(measured))
    assert verdict.met is met
    assert verdict.measured == f"{0.25 / cpu_seconds:.2f}x"
    assert ("met" if met else "MISSED") in str(verdict)


@pytest.mark.parametrize(("extra_mb", "met"), [(64.0, True), (64.1, False)])
def test_memory_mark_is_an_upper_bound(extra_mb, met):
    assert marks.judge_memory(memory_row(extra_mb)).met is met


def test_marks_name_only_providers_that_exist_and_each_once():
    assert all(mark.rival in PROVIDERS for mark in marks.MARKS)
    assert len({(mark.case, mark.rival) for mark in marks.MARKS}) == len(marks.MARKS)
    assert {mark.case.shape for mark in marks.MARKS} == set(MAIN_SHAPES)


def test_no_figure_while_parity_fails(monkeypatch, capsys, tmp_path):
    def fail():
        raise verify.ParityError("cpu bfloat16 output: off by 3")

    def never(*_):
        raise AssertionError("measured although parity fails")

    monkeypatch.setattr(verify, "require_parity", fail)
    monkeypatch.setattr(marks, "measure_case", never)
    assert marks.main(["--backend", "reference", "--out", str(tmp_path / "rows")]) == 1
    assert "off by 3" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()


def test_parity_lists_what_fails_and_does_not_pass_on_nothing(monkeypatch):
    good = ParityRow("cpu", "float32", "long rows", "out", 1e-7, 1e-6, True)
    bad = good._replace(tensor="grad key", error=0.5, ok=False)
    monkeypatch.setattr(verify, "parity_report", lambda device: [good, good])
    assert verify.require_parity() == 2
    monkeypatch.setattr(verify, "parity_report", lambda device: [good, bad])
    with pytest.raises(
        verify.ParityError, match=r"^cpu float32, long rows: grad key is off by 0\.5, budget 1e-06$"
    ):
        verify.require_parity()
    monkeypatch.setattr(verify, "parity_report", lambda device: [])
    with pytest.raises(verify.ParityError, match="no rows"):
        verify.require_parity()


def test_a_wrong_answer_misses_its_marks_without_a_figure(monkeypatch, capsys):
    def wrong(case, *_):
        raise verify.ParityError("reference: out is off by 3")

    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    monkeypatch.setattr(marks, "measure_case", wrong)
    monkeypatch.setattr(marks, "measure_memory", lambda *_: memory_row(1.0))
    assert marks.main(["--backend", "reference"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("no figure: reference: out is off by 3") == len(marks.MARKS)
    assert f"1 of {len(marks.MARKS) + 1} marks met" in shown


def test_ctrl_c_ends_marks_with_what_was_measured(monkeypatch, capsys, tmp_path):
    measured = [
        replace(r, provider=n)
        for n, r in zip((EAGER, COMPILED, ONE_MAP, "reference"), 4 * seconds_rows(cpu=[1.0]))
    ]
    calls = []

    def once(case, *_):
        calls.append(case)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return [replace(r, **rows.case_fields(case)) for r in measured]

    monkeypatch.setattr(verify, "require_parity", lambda: 1)
    monkeypatch.setattr(ceiling, "measure", lambda dtype, *_: (a_product(dtype), []))
    monkeypatch.setattr(marks, "measure_case", once)
    assert marks.main(["--backend", "reference", "--out", str(tmp_path)]) == 130
    assert len(rows.load(tmp_path.iterdir())) == 4
    assert "1.00x" in capsys.readouterr().out


def test_steps_take_turns_on_different_inputs():
    log = []

    def step(name):
        return lambda turn: log.append((name, turn)) or float(len(log))

    effort = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=5, warmup_rounds=1)
    taken = timing.interleave({"a": step("a"), "b": step("b")}, effort)
    assert log == [("a", 0), ("b", 1), ("a", 0), ("b", 1), ("a", 1), ("b", 2)]
    assert taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}


def test_a_step_takes_gradients_only_when_asked():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    for mode in (FORWARD, FORWARD_BACKWARD):
        case = replace(SMALL, mode=mode)
        assert timing.make_step(call, case, draw_sets(case)[:2])(5) > 0
    assert seen == [(False, False), (True, True)]


def test_disturbance_is_a_share_or_unknown(monkeypatch, tmp_path):
    share = timing.Disturbance().share()
    assert share is None or 0 <= share <= 1
    monkeypatch.setattr(timing.Disturbance, "_STAT", tmp_path / "absent")
    assert timing.Disturbance().share() is None


def test_a_disturbed_measurement_is_told():
    quiet = seconds_rows(cpu=[0.1])
    assert table.disturbance_note([*quiet, replace(quiet[0], others_share=None)]) == []
    disturbed = [*quiet, replace(quiet[0], others_share=0.42)]
    assert "Not to be quoted: other processes used up to 42% of the processors" in table.markdown(disturbed)


def test_inputs_are_random_different_and_the_same_for_a_seed():
    first, second = draw_sets(SMALL)[:2]
    again = draw(SMALL, torch.Generator().manual_seed(0))
    assert torch.equal(first.query, again.query)
    for name, one, other in zip(first._fields, first, second):
        assert one.std() > 0.3, name
        assert not torch.equal(one, other), name
    assert first.gate_lambda.abs().max() <= 1


def test_grid_has_no_dropout_at_inference():
    cases = grid([SMALL.shape], ["float32"], [FORWARD, FORWARD_BACKWARD], [0.0, 0.1])
    assert [(case.mode, case.dropout) for case in cases] == [
        (FORWARD, 0.0),
        (FORWARD_BACKWARD, 0.0),
        (FORWARD_BACKWARD, 0.1),
    ]


@pytest.mark.parametrize("text", ["1,2,3", "a,1,2,3", "1,2,0,4", "1,2,3,4,5"])
def test_a_wrong_shape_is_refused(text):
    with pytest.raises(ValueError, match="wanted B,H,L,D"):
        Shape.parse(text)


def test_unknown_or_unable_providers_are_refused_with_reasons(monkeypatch):
    with pytest.raises(ValueError, match="got 'fastest', wanted one of eager"):
        chosen(["fastest"], SMALL)
    unable = replace(PROVIDERS["cpu"], reasons_against=lambda case: ["head size is 8", "no compiler"])
    monkeypatch.setitem(PROVIDERS, "cpu", unable)
    with pytest.raises(
        RuntimeError, match=r"'cpu' does not take \(2,3,20,8\).*: head size is 8; no compiler"
    ):
        chosen(["cpu"], SMALL)


@pytest.mark.parametrize("mode", [FORWARD, FORWARD_BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_providers_keep_the_error_rule(mode, dtype):
    case = Case(Shape(2, 3, 20, 8), dtype, mode)
    calls = {name: PROVIDERS[name].build(case) for name in ("reference",)}
    verify.require_agreement(calls, case, draw_sets(case)[0])


def _flipped_gate(q, k, v, cq, ck, lam):
    return _eager(q, k, v, cq, ck, -lam)


def _softmax_alone(q, k, v, cq, ck, lam):
    return _eager(q, k, v, cq, ck, 0 * lam)


def _half_the_gradient(q, k, v, cq, ck, lam):
    return _eager(q, k, v, (cq + cq.detach()) / 2, ck, lam)


def _not_a_number(*operands):
    return _eager(*operands) * float("nan")


def _without_context(q, k, v, *_):
    return q + k + v


_eager = PROVIDERS[EAGER].build(SMALL)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_flipped_gate, "out is off by"),
        (_softmax_alone, "out is off by"),
        (_half_the_gradient, "grad context_query is off by"),
        (_not_a_number, "out is off by"),
        (_without_context, "appears to not have been used"),
    ],
)
def test_a_wrong_provider_is_named(wrong, message):
    case = replace(SMALL, mode=FORWARD_BACKWARD)
    with pytest.raises(verify.ParityError, match=r"wrong, .*" + message):
        verify.require_agreement({EAGER: _eager, "wrong": wrong}, case, draw_sets(case)[0])


def test_eager_drops_cells_of_the_sum_at_the_stated_rate():
    case = Case(Shape(1, 1, 64, 64), mode=FORWARD_BACKWARD, dropout=0.25)
    inputs = draw(case, torch.Generator().manual_seed(0))
    shown = PROVIDERS[EAGER].build(case)(
        *inputs.operands[:2], torch.eye(64)[None, None], *inputs.operands[3:]
    )
    assert (shown == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)


needs_peak = pytest.mark.skipif(
    not memory._CLEAR_REFS.exists(), reason="the peak cannot be set back on this system"
)


@needs_peak
def test_peak_meter_sees_what_was_freed_again():
    # In a process of its own, as the benchmark measures: here the heap may hold free pages of earlier tests.
    script = (
        "import torch; from benchmarks import memory; meter = memory.PeakMeter();"
        "meter.run(lambda: torch.ones(40 * 2**18).sum());"  # starts threads, whose stacks would count
        "print(meter.run(lambda: torch.ones(40 * 2**18).sum())[1], meter.run(lambda: None)[1], memory.control())"
    )
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    peak, quiet, control = map(float, result.stdout.split())
    # A run of nothing reads as the meter's own floor, up to 4 MiB: pages the kernel counts late.
    assert quiet < 4 * 2**20
    assert peak - quiet == pytest.approx(40 * 2**20, abs=2 * 2**20)
    assert control == pytest.approx(64e6, abs=4e6)


@needs_peak
def test_memory_of_inference_and_of_packed_sentences():
    # In one process of its own; the second case reads the first one's freed pages at most low.
    script = (
        "from benchmarks import memory, rows; from benchmarks.shapes import Case, Shape;"
        "print(rows.to_line(memory.measure(Case(Shape(1, 4, 1024, 16)), 'eager')));"
        "packed = Case(Shape(8, 2, 64, 16), mode='forward+backward', lengths='packed');"
        "print(rows.to_line(memory.measure(packed, 'reference')))"
    )
    root = Path(__file__).resolve().parent.parent
    result = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    inference, packed = map(rows.from_line, result.stdout.splitlines())
    one_map = 4 * 1024 * 1024 * 4 / 1e6
    assert (inference.saved_mb, inference.gradient_mb, inference.backward_extra_mb) == (0, 0, 0)
    assert inference.output_mb == pytest.approx(4 * 1024 * 16 * 4 / 1e6, rel=0.01)
    # Both scores, both maps, their sum and its dropout at once, and what the method is off by.
    assert 6 * one_map - 4 < inference.extra_mb < 7 * one_map + 4
    tokens = sum(packed.case.sequence_lengths)
    assert packed.output_mb == pytest.approx(tokens * 2 * 16 * 4 / 1e6, rel=0.01)
    assert packed.gradient_mb == pytest.approx(5 * packed.output_mb + tokens * 2 * 4 / 1e6, rel=0.01)


def test_memory_of_what_compiles_as_it_runs_is_refused():
    with pytest.raises(memory.NotMeasurableError, match="compiles in the process that is measured"):
        memory.measure(SMALL, COMPILED)


def test_memory_is_not_guessed_where_the_peak_cannot_be_set_back(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_CLEAR_REFS", tmp_path / "no" / "such" / "file")
    with pytest.raises(memory.NotMeasurableError, match="cannot be written"):
        memory.PeakMeter().run(lambda: None)


def test_saved_bytes_count_the_maps_of_eager_once():
    case = Case(Shape(1, 2, 32, 8), mode=FORWARD_BACKWARD)
    inputs = draw(case, torch.Generator().manual_seed(0))
    one_map = 2 * 32 * 32 * 4
    # softmax, sigmoid and their gated sum; the unscaled scores are not kept
    assert memory.saved_bytes(PROVIDERS[EAGER].build(case), inputs) == 3 * one_map
