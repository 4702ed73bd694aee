"""The GPU benchmark without a GPU: plan, marks, rivals at tiny shapes, what it keeps and what it leaves out."""

import json
import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from benchmark_rows import ORIGIN, memory_row
from full_members import members
from torch.nn.attention.flex_attention import flex_attention

import qacg_kernels as qk
from benchmarks import gpu, rows
from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, MODES, PACKED, PADDED, SENTENCES, Case, Shape
from benchmarks.cases.inputs import draw_sets, offsets
from benchmarks.cases.lengths import sentence_lengths
from benchmarks.measure import host, timing, verify
from benchmarks.measure.side_by_side import time_rows
from benchmarks.plans import gpu_plan
from benchmarks.plans.session import HOST, TIME, Budget, Item, Session
from benchmarks.providers import composition, registry
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.providers.registry import PROVIDERS
from benchmarks.static import predictions
from benchmarks.targets import gpu_marks
from qacg_kernels import dispatch

TINY = Case(Shape(3, 2, 24, 16), mode=FORWARD_BACKWARD)
NO_EFFORT = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=1)


def time_row(case, provider, milliseconds, peak=None):
    (row,) = time_rows(case, {provider: PROVIDERS[provider]}, {provider: [1e-3 * milliseconds]}, 0.0, ORIGIN, peak)
    return row


def test_products_of_a_case_count_no_padding():
    case = Case(Shape(3, 2, 24, 16), lengths=PADDED)
    wanted = 2 * 16 * sum(n * n for n in sentence_lengths(3, 24))
    assert case.products == replace(case, lengths=PACKED).products == wanted
    assert replace(case, lengths="full").products == 2 * 16 * 3 * 24 * 24


def test_packed_and_padded_rows_count_the_same_work():
    packed, padded = (time_row(replace(TINY, lengths=lengths), "reference", 2.0) for lengths in (PACKED, PADDED))
    assert packed.gflops == padded.gflops == pytest.approx(22 * replace(TINY, lengths=PACKED).products / 2e6, rel=1e-4)
    assert packed.case.lengths == PACKED
    assert rows.from_line(rows.to_line(packed)) == packed


def test_a_row_from_before_there_were_lengths_is_still_one():
    record = json.loads(rows.to_line(time_row(TINY, "reference", 1.0)))
    del record["lengths"], record["matrix_peak_gflops"]
    assert rows.from_line(json.dumps(record)) == time_row(TINY, "reference", 1.0)


@pytest.mark.parametrize("lengths", ["full", PADDED, PACKED])
@pytest.mark.parametrize("mode", MODES)
def test_providers_agree_in_every_mode_and_form(mode, lengths):
    case = replace(TINY, mode=mode, lengths=lengths)
    names = [n for n in (COMPOSITION, "reference", "cpu") if not PROVIDERS[n].reasons_against(case)]
    assert COMPOSITION in names
    verify.require_agreement({n: PROVIDERS[n].build(case) for n in names}, case, draw_sets(case)[0])


def test_the_composition_through_flex_is_judged():
    """Without the factor exp(logsumexp) it would be another function, and is told so."""
    case = replace(TINY, mode=FORWARD)
    call = partial(composition.through_flex, F.scaled_dot_product_attention, flex_attention)
    verify.require_agreement({"through flex": call}, case, draw_sets(case)[0])

    def forgetful(query, key, value, context_query, context_key, gate_lambda):
        return call(query, key, value, context_query, context_key, gate_lambda / 24)

    with pytest.raises(verify.ParityError, match=r"forgetful.*out is off by"):
        verify.require_agreement({"forgetful": forgetful}, case, draw_sets(case)[0])


def test_eager_hides_padding():
    case = replace(TINY, mode=FORWARD, lengths=PADDED)
    inputs = draw_sets(case)[0]
    eager, reference = (PROVIDERS[n].build(case)(*inputs.operands) for n in (EAGER, "reference"))
    length = case.sequence_lengths[0]
    torch.testing.assert_close(eager[0, :, :length], reference[0, :, :length])


def test_packed_inputs_are_as_long_as_their_offsets_say():
    case = replace(TINY, lengths=PACKED)
    inputs = draw_sets(case)[0]
    ends = offsets(case).tolist()
    assert inputs.query.shape == (ends[-1], 2, 16) and inputs.gate_lambda.shape == (ends[-1], 2)
    assert [b - a for a, b in pairwise(ends)] == list(case.sequence_lengths)


def test_a_step_of_the_backward_leaves_the_forward_out_of_its_clock():
    case = replace(TINY, mode=BACKWARD)

    def slow_forward(query, *_others):
        time.sleep(0.05)
        return query * 2.0

    assert timing.make_step(slow_forward, case, draw_sets(case)[:1])(0) < 0.05


def test_plan_has_the_marks_first_and_all_that_is_promised():
    plan = gpu_plan.items(("triton", "cuda"))
    assert len({item.case for item in plan} | {(i.case, i.providers) for i in plan}) > len(plan)
    plan = [item for item in plan if item.kind == TIME]
    first = [item.case.shape for item in plan[:6]]
    assert set(first) == set(gpu_plan.MARK_SHAPES)
    full = [i.case for i in plan if i.case.lengths == "full"]
    assert {(c.shape.length, c.shape.head_dim, c.mode) for c in full if not c.dropout} >= {
        (length, head_dim, mode)
        for length in gpu_plan.LENGTHS
        for head_dim in (64, 128)
        for mode in (FORWARD, BACKWARD, FORWARD_BACKWARD)
    }
    assert {c.shape.length for c in full if c.dropout} >= {128, 16384}
    assert {i.case.lengths for i in plan} == {"full", PADDED, PACKED}
    assert {name for i in plan for name in i.providers} == {EAGER, COMPILED, COMPOSITION, ONE_MAP, "triton", "cuda"}
    assert all({"triton", "cuda"} <= set(i.providers) for i in plan)
    assert all(i.case.shape.length <= 8192 for i in plan if EAGER in i.providers)


def test_calls_that_are_replayed_have_rows_of_the_host_s_part():
    plan = [item for item in gpu_plan.items(("triton", "cuda")) if item.kind == HOST]
    assert {item.case.shape for item in plan} == {SENTENCES}
    for mode in (FORWARD, FORWARD_BACKWARD):
        names = {name for item in plan if item.case.mode == mode for name in item.providers}
        assert names == {
            "triton",
            "cuda",
            "triton, CUDA graph",
            "cuda, CUDA graph",
            "triton, reduce-overhead",
            "cuda, reduce-overhead",
        }
    assert PROVIDERS["triton, CUDA graph"].reasons_against(TINY) == ["CUDA graphs are a GPU's"]


def test_a_graph_is_captured_once_for_each_set_of_operands(monkeypatch):
    captured = []

    def capture(call, operands):
        captured.append(operands)
        return call

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    case = replace(TINY, mode=FORWARD)
    replay = registry._build_graphed("reference", case)
    wanted = PROVIDERS["reference"].build(case)
    sets = draw_sets(case)[:2]
    for _ in range(3):
        for inputs in sets:
            assert torch.equal(replay(*inputs.operands), wanted(*inputs.operands))
    assert len(captured) == len(sets)
    with torch.no_grad():
        replay(*sets[0].operands)
    assert len(captured) == len(sets) + 1, "a graph without the backward is another"


def test_every_mark_is_measured_by_the_plan():
    """With all of the plan's rows no mark is left without a figure."""
    measured = [
        time_row(item.case, name, 1.0, 8e5)
        for item in gpu_plan.items(("triton",))
        if item.kind == TIME
        for name in item.providers
    ]
    verdicts = gpu_marks.judge("triton", measured)
    missing = [v.what for v in verdicts if v.measured == "not measured"]
    assert len(missing) == 2 and "memory" in missing[0] and "host" in missing[1]


def test_marks_judge_rates_ratios_memory_and_the_host():
    device = "cuda"
    long = Case(gpu_plan.curve_shape(4096, 64), gpu_plan.DTYPE, FORWARD, 0.0, device)
    milliseconds = 8 * long.products / 410e9  # 410 TFLOP/s
    sentences = Case(SENTENCES, gpu_plan.DTYPE, FORWARD, 0.0, device)
    memory = replace(
        memory_row(1.0),
        **rows.case_fields(Case(gpu_plan.MEMORY_SHAPE, gpu_plan.DTYPE, FORWARD_BACKWARD, 0.0, device)),
        provider="triton",
    )
    host_case = rows.case_fields(Case(gpu_plan.HOST_SHAPE, gpu_plan.DTYPE, FORWARD, 0.0, device))
    measured = [
        time_row(long, "triton", milliseconds, 8e5),
        time_row(sentences, "triton", 1.0),
        time_row(sentences, EAGER, 5.9),
        time_row(sentences, ONE_MAP, 0.72),
        time_row(replace(sentences, lengths=PADDED), "triton", 0.9),
        time_row(replace(sentences, lengths=PACKED), "triton", 0.25),
        replace(memory, extra_mb=0.049 * (1 + 2 + 3)),
        rows.HostRow(ORIGIN, **host_case, provider="triton", median_us=30.0, q1_us=29, q3_us=31, repeats=200),
    ]
    by_what = {v.what: v for v in gpu_marks.judge("triton", measured)}
    rate = by_what[f"{long}, triton, 8 S^2 D"]
    assert rate.met and rate.measured == "410 TFLOP/s (51% of the matrix peak)"
    assert not by_what[f"{sentences}, triton vs eager"].met  # 5.9 < 6
    assert by_what[f"{sentences}, triton vs sdpa-one-map"].met  # 1 / 0.72 < 1.4
    assert by_what[f"{replace(sentences, lengths=PACKED)}, triton vs padded"].met
    assert next(v for what, v in by_what.items() if "memory" in what).met
    assert not next(v for what, v in by_what.items() if "host" in what).met  # not under 30
    assert gpu_marks.named(list(by_what.values()), "NVIDIA H100")[0].target.endswith("(H200)")


@pytest.mark.parametrize(("rate", "met"), [(521, False), (522, True)])
def test_long_rows_of_64_features_are_held_to_flash_attention_3(rate, met):
    case = Case(gpu_plan.curve_shape(8192, 64), gpu_plan.DTYPE, FORWARD, 0.0, "cuda")
    verdicts = gpu_marks.judge("cuda", [time_row(case, "cuda", 8 * case.products / rate / 1e9)])
    (verdict,) = (v for v in verdicts if v.what == f"{case}, cuda, 8 S^2 D")
    assert (verdict.target, verdict.met) == ("at least 522 TFLOP/s", met)
    (backward,) = (v for v in verdicts if v.what == f"{replace(case, mode=BACKWARD)}, cuda, 16 S^2 D")
    assert (backward.target, backward.measured) == ("at least 498 TFLOP/s", "not measured")


@pytest.mark.parametrize(("mode", "of_one_map"), [(FORWARD, 2.0), (BACKWARD, 1.6)])
@pytest.mark.parametrize(("share", "met"), [(0.94, False), (0.96, True)])
def test_long_rows_of_128_features_are_held_to_the_best_of_torch_s_attention(mode, of_one_map, share, met):
    """By rates: two maps are twice the products forward, and 16 for 10 backward."""
    case = Case(gpu_plan.curve_shape(16384, 128), gpu_plan.DTYPE, mode, 0.0, "cuda")
    measured = [time_row(case, ONE_MAP, 1.0), time_row(case, "triton", of_one_map / share)]
    (verdict,) = (v for v in gpu_marks.judge("triton", measured) if v.what == f"{case}, triton's rate vs {ONE_MAP}'s")
    assert verdict.met is met and verdict.measured.startswith(f"{share:.2f}x (")
    (without,) = (v for v in gpu_marks.judge("triton", measured[1:]) if v.what == verdict.what)
    assert without.measured == "not measured" and not without.met


@pytest.mark.parametrize(("milliseconds", "met"), [(1.39, True), (1.41, False)])
def test_sentences_take_little_more_than_one_map(milliseconds, met):
    for shape in (SENTENCES, gpu_plan.curve_shape(128, 64), gpu_plan.curve_shape(32, 64)):
        case = Case(shape, gpu_plan.DTYPE, FORWARD, 0.0, "cuda")
        measured = [time_row(case, ONE_MAP, 1.0), time_row(case, "triton", milliseconds)]
        (verdict,) = (v for v in gpu_marks.judge("triton", measured) if v.what == f"{case}, triton vs {ONE_MAP}")
        assert verdict.met is met


def a_run(tmp_path, seconds=60.0):
    writer = rows.Writer(tmp_path, "gpu", ORIGIN)
    return Session(writer, ORIGIN, NO_EFFORT, Budget(seconds)), writer


def test_a_run_keeps_rows_and_reasons(tmp_path, monkeypatch, capsys):
    def no_memory(case):
        def call(*operands):
            raise torch.OutOfMemoryError("CUDA out of memory\nmore lines")

        return call

    def wrong(case):
        return lambda *operands: 2 * PROVIDERS["reference"].build(case)(*operands)

    monkeypatch.setitem(PROVIDERS, EAGER, replace(PROVIDERS[EAGER], build=no_memory))
    monkeypatch.setitem(PROVIDERS, "cpu", replace(PROVIDERS["cpu"], build=wrong, reasons_against=lambda case: []))
    run, writer = a_run(tmp_path)
    run.measure(Item(TINY, (EAGER, ONE_MAP, "cpu", "reference")))
    run.measure(Item(replace(TINY, mode=FORWARD, dropout=0.1), (COMPOSITION, "reference")))
    assert [(r.provider, r.dropout) for r in rows.load([writer.path])] == [
        (ONE_MAP, 0.0),
        ("reference", 0.0),
        ("reference", 0.1),
    ]
    assert [m.split(": ", 1)[1].split(",")[0] for m in run.missing] == [
        "OutOfMemoryError: CUDA out of memory",
        "cpu",
        "its two maps would drop cells apart",
    ]
    assert "out is off by" in run.missing[1] and len(run.wrong) == 1
    assert "reference" in capsys.readouterr().out


def test_a_provider_whose_compiler_fails_is_left_out_whatever_it_raises(tmp_path, monkeypatch):
    class CompilationError(Exception):
        """As Triton's: no RuntimeError."""

    def fails(case):
        def call(*operands):
            raise CompilationError("at 12:3: NoneType has no type")

        return call

    monkeypatch.setitem(PROVIDERS, EAGER, replace(PROVIDERS[EAGER], build=fails))
    run, writer = a_run(tmp_path)
    run.measure(Item(TINY, (EAGER, "reference")))
    assert [row.provider for row in rows.load([writer.path])] == ["reference"]
    assert run.missing == [f"{TINY}, {EAGER}: CompilationError: at 12:3: NoneType has no type"]


@pytest.mark.compiles
@pytest.mark.full
def test_items_do_not_use_up_one_anothers_recompilations(tmp_path, monkeypatch):
    """The same function compiled for one shape after another, as the composition is."""

    def build(case):
        return torch.compile(PROVIDERS["reference"].build(case), backend="eager", fullgraph=True, dynamic=False)

    monkeypatch.setitem(PROVIDERS, EAGER, replace(PROVIDERS[EAGER], build=build))
    run, writer = a_run(tmp_path)
    with torch._dynamo.config.patch(recompile_limit=2):  # undone by monkeypatch, the setting would be gone
        for length in range(3, 9):
            run.measure(Item(Case(Shape(1, 1, length, 8), mode=FORWARD), (EAGER,)))
    assert run.missing == [] and len(rows.load([writer.path])) == 6


@pytest.mark.parametrize("error", members([RuntimeError, KeyError], fast=[KeyError]))
def test_a_backend_that_fails_its_parity_is_told_and_has_no_figures(error, monkeypatch, capsys):
    assert gpu.is_sound("reference", "cpu")
    assert "parity of reference: " in capsys.readouterr().out

    def fails(*_):
        raise error("no kernel image")

    monkeypatch.setattr(verify, "parity_report", fails)
    assert not gpu.is_sound("reference", "cpu")
    told = capsys.readouterr().err
    assert "parity of reference fails" in told and "no kernel image" in told


@pytest.mark.full
def test_a_gpu_that_fails_for_good_ends_the_run_with_a_report_of_what_was_measured(tmp_path, monkeypatch, capsys):
    def dead():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    for name, stand_in in dict(
        is_available=lambda: True,
        set_device=lambda n: None,
        get_device_name=lambda: "GPU",
        get_device_capability=lambda device: (9, 0),
        empty_cache=dead,
    ).items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(gpu, "BACKENDS", ("reference", "cpu"))
    monkeypatch.setattr(gpu, "is_sound", lambda name: name == "reference")
    monkeypatch.setattr(rows, "origin", lambda: ORIGIN)
    monkeypatch.setattr(Session, "take_ceilings", lambda *_: None)
    items = [Item(replace(TINY, mode=mode), ("reference",)) for mode in MODES]
    monkeypatch.setattr(gpu_plan, "items", lambda backends: items if backends == ("reference",) else [])
    monkeypatch.setattr(timing, "ON_DEVICE", NO_EFFORT)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*-gpu.jsonl")
    assert [row.case.mode for row in rows.load([path])] == [MODES[0]]
    told = capsys.readouterr().out
    assert "the rest of the plan: CUDA error: an illegal memory access" in told and "marks met on GPU" in told
    assert ("cpu: parity fails" in told) == ("cpu" in qk.available_backends())


def test_a_spent_budget_leaves_cases_out_by_name(tmp_path):
    run, _ = a_run(tmp_path, seconds=0.0)
    run.measure(Item(TINY, ("reference",)))
    assert run.rows == [] and run.missing == [f"{TINY}, time: the time is spent"]


@pytest.mark.full
def test_report_tells_the_marks_what_is_missing_and_draws(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    run, writer = a_run(tmp_path)
    for mode in MODES:
        run.measure(Item(replace(TINY, mode=mode), (ONE_MAP, "reference")))
    run.missing.append("something: the time is spent")
    gpu.report(run, ("reference",), "NVIDIA H200", writer, "sm_90", "cpu")
    text = writer.path.with_suffix(".txt").read_text()
    assert "reference: 0 of " in text and "marks met on NVIDIA H200" in text and "something: the time is spent" in text
    assert text.strip() in capsys.readouterr().out
    drawing = writer.path.with_suffix(".svg").read_text()
    for shown in ("TFLOP/s", "D = 16, backward", "reference", "Some CPU (R) 9000"):
        assert shown in drawing


def test_predictions_stand_beside_what_was_measured(tmp_path, monkeypatch):
    long, short = Shape(4, 12, 4096, 64), Shape(64, 12, 128, 64)
    lines = [{"kind": "static", "arch": "sm_90"}, {"kernel": "tiled_forward", "pass": FORWARD}]
    lines += [{"shape": list(shape), "pass": FORWARD, "predicted_ms": 2.0} for shape in (long, short)]
    (tmp_path / "sm_90.jsonl").write_text("\n".join(map(json.dumps, lines)))
    monkeypatch.setattr(predictions, "FOLDER", tmp_path)

    def row(shape, milliseconds, provider="triton", **changes):
        case = Case(shape, gpu_plan.DTYPE, FORWARD, 0.0, "cuda")
        return time_row(replace(case, **changes), provider, milliseconds)

    others = [row(long, 9.0, EAGER), row(long, 9.0, dropout=0.1), row(long, 9.0, mode=BACKWARD)]
    told = predictions.beside([row(short, 1.0), *others, row(long, 2.2)], "sm_90")
    assert told == [
        "(4,12,4096,64) bfloat16 forward on cuda: measured 2.2 ms, predicted 2 ms",
        "(64,12,128,64) bfloat16 forward on cuda: measured 1 ms, predicted 2 ms",
        "predicted without a GPU, off by a factor of at most 2.00",
    ]
    assert predictions.beside([row(long, 2.2)], "sm_80") == ["no prediction for sm_80 to put beside these rows"]


def test_host_time_is_a_row(tmp_path):
    calls = []
    row = host.measure(
        replace(TINY, mode=FORWARD), "reference", lambda *operands: calls.append(torch.is_grad_enabled()), ORIGIN, 30
    )
    assert row.repeats == 30 and 0 < row.q1_us <= row.median_us <= row.q3_us < 1e4
    assert len(calls) == 50 and not any(calls)
    assert rows.from_line(rows.to_line(row)) == row


def test_backends_that_take_no_call_on_the_gpu_are_left_out(monkeypatch):
    monkeypatch.setattr(qk, "available_backends", lambda: ["triton", "hopper", "cpu"])
    monkeypatch.setattr(dispatch.backend_of("triton"), "not_for", lambda device: [])
    for reasons, wanted in (([], ("triton", "hopper")), (["it takes 9.0 alone"], ("triton",))):
        monkeypatch.setattr(dispatch.backend_of("hopper"), "not_for", lambda device, reasons=reasons: reasons)
        assert gpu.available_on(torch.device("cuda", 0)) == wanted


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_refuses(tmp_path, capsys):
    assert gpu.main(["--out", str(tmp_path / "rows")]) == 2
    assert "no NVIDIA GPU" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()
