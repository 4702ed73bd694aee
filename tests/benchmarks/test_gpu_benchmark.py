"""The GPU benchmark without a GPU: plan, targets, tiny shapes, records and missing cases."""

import time
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from benchmark_records import ORIGIN, memory, overhead, time_of
from torch.nn.attention.flex_attention import flex_attention

import qacg_kernels as qk
from benchmarks import gpu, plans, records
from benchmarks.cases import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    MODES,
    PACKED,
    PADDED,
    SENTENCES,
    VECTORS,
    Case,
    Shape,
    draw_sets,
    offsets,
    sentence_lengths,
)
from benchmarks.implementations import baselines, registry
from benchmarks.implementations.registry import (
    COMPILED,
    COMPOSITION,
    EAGER,
    IMPLEMENTATIONS,
    ONE_MAP,
    ONE_MAP_ON_GPU,
)
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import MEMORY, OVERHEAD, TIME, Budget, Item, Session, measure_overhead
from benchmarks.targets import kinds
from benchmarks.targets.performance import TARGETS
from qacg_kernels.backends import dispatch
from qacg_kernels.operators import self_check

TINY = Case(Shape(3, 2, 24, 16), mode=FORWARD_BACKWARD)
NO_EFFORT = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=1)


def results_of(backend, measured):
    return [target.judge(backend, measured) for target in TARGETS["gpu"]]


def result_of(what, measured, backend="triton"):
    (result,) = (result for result in results_of(backend, measured) if result.what == what)
    return result


def test_products_of_a_case_count_no_padding():
    case = Case(Shape(3, 2, 24, 16), lengths=PADDED)
    expected = 2 * 16 * sum(n * n for n in sentence_lengths(3, 24))
    assert case.products == expected
    assert replace(case, lengths=PACKED).products == expected
    assert replace(case, lengths="full").products == 2 * 16 * 3 * 24 * 24


def test_packed_and_padded_records_count_the_same_work():
    packed, padded = (time_of(replace(TINY, lengths=lengths), "reference", 2.0) for lengths in (PACKED, PADDED))
    expected = pytest.approx(22 * replace(TINY, lengths=PACKED).products / 2e6, rel=1e-4)
    assert (packed.gflops, padded.gflops) == (expected, expected)
    assert packed.case.lengths == PACKED
    assert records.from_line(records.to_line(packed)) == packed


@pytest.mark.parametrize("lengths", ["full", PADDED, PACKED])
@pytest.mark.parametrize("mode", MODES)
def test_implementations_agree_in_all_modes_and_lengths(mode, lengths):
    case = replace(TINY, mode=mode, lengths=lengths)
    names = [n for n in (COMPOSITION, "reference", "cpu") if not IMPLEMENTATIONS[n].unsupported(case)]
    assert COMPOSITION in names
    agreement.require_agreement({n: IMPLEMENTATIONS[n].build(case) for n in names}, case, draw_sets(case)[0])


def test_flex_composition_agrees_with_eager():
    """A composition that omits the factor exp(logsumexp) must fail."""
    case = replace(TINY, mode=FORWARD)
    call = partial(baselines.flex_composition, F.scaled_dot_product_attention, flex_attention)
    agreement.require_agreement({"through flex": call}, case, draw_sets(case)[0])

    def forgetful(query, key, value, context_query, context_key, gate_lambda):
        return call(query, key, value, context_query, context_key, gate_lambda / 24)

    with pytest.raises(agreement.ParityError, match=r"forgetful.*out has error"):
        agreement.require_agreement({"forgetful": forgetful}, case, draw_sets(case)[0])


def test_eager_masks_padding():
    case = replace(TINY, mode=FORWARD, lengths=PADDED)
    inputs = draw_sets(case)[0]
    eager, reference = (IMPLEMENTATIONS[n].build(case)(*inputs.operands) for n in (EAGER, "reference"))
    length = case.sequence_lengths[0]
    torch.testing.assert_close(eager[0, :, :length], reference[0, :, :length])


def test_packed_inputs_match_their_offsets():
    case = replace(TINY, lengths=PACKED)
    inputs = draw_sets(case)[0]
    ends = offsets(case).tolist()
    assert inputs.query.shape == (ends[-1], 2, 16)
    assert inputs.gate[0].shape == (ends[-1], 2)
    assert [b - a for a, b in pairwise(ends)] == list(case.sequence_lengths)


def test_step_of_the_backward_does_not_time_the_forward():
    case = replace(TINY, mode=BACKWARD)

    def slow_forward(query, *_others):
        time.sleep(0.05)
        return query * 2.0

    assert timing.make_step(slow_forward, case, draw_sets(case)[:1])(0) < 0.05


def first_comparisons(baselines, count):
    """The (case, baseline) pairs that have records beside all backends among the first `count` records of the plan."""
    backends = ("triton", "cuda", "hopper")
    found, records_so_far = set(), 0
    for item in plans.gpu_items(backends):
        records_so_far += len(item.implementations)
        if records_so_far <= count and item.kind == TIME and set(backends) <= set(item.implementations):
            found |= {(item.case, name) for name in baselines if name in item.implementations}
    return found


SHORT_AND_LONG = {
    plans.gpu_case(shape, mode) for shape in (SENTENCES, plans.gpu_shape(4096, 64)) for mode in (FORWARD, BACKWARD)
}
# On an H200, a run made 68 records in 80 seconds; a report has 240 seconds, of which compilers take a part.


@pytest.mark.parametrize("name", [EAGER, COMPILED, COMPOSITION, ONE_MAP, *ONE_MAP_ON_GPU])
def test_first_90_records_have_every_baseline(name):
    assert first_comparisons([name], 90) >= {(case, name) for case in SHORT_AND_LONG}


def test_gpu_plan_has_all_curves():
    plan = [item for item in plans.gpu_items(("triton", "cuda")) if item.kind == TIME]
    full = [i.case for i in plan if i.case.lengths == "full"]
    assert {(c.shape.length, c.shape.head_dim, c.mode) for c in full if not c.dropout} >= {
        (length, head_dim, mode)
        for length in plans.GPU_LENGTHS
        for head_dim in (64, 128)
        for mode in (FORWARD, BACKWARD, FORWARD_BACKWARD)
    }
    assert {c.shape.length for c in full if c.dropout} >= {128, 16384}
    assert {i.case.lengths for i in plan} == {"full", PADDED, PACKED}
    names = {name for i in plan for name in i.implementations}
    assert names == {EAGER, COMPILED, COMPOSITION, ONE_MAP, *ONE_MAP_ON_GPU, "triton", "cuda"}
    assert {(i.case.shape, i.case.mode) for i in plan if i.case.gate == VECTORS} == {
        (shape, mode) for shape in plans.GPU_SHAPES for mode in plans.GATE_VECTOR_PASSES
    }
    assert all({"triton", "cuda"} <= set(i.implementations) for i in plan)
    assert all(i.case.shape.length <= 8192 for i in plan if EAGER in i.implementations)


def test_gpu_plan_has_overhead_of_replayed_calls():
    plan = [item for item in plans.gpu_items(("triton", "cuda")) if item.kind == OVERHEAD]
    assert {item.case.shape for item in plan} == {SENTENCES}
    for mode in (FORWARD, FORWARD_BACKWARD):
        names = {name for item in plan if item.case.mode == mode for name in item.implementations}
        assert names == {
            "triton",
            "cuda",
            "triton, CUDA graph",
            "cuda, CUDA graph",
            "triton, reduce-overhead",
            "cuda, reduce-overhead",
        }
    assert IMPLEMENTATIONS["triton, CUDA graph"].unsupported(TINY) == ["CUDA graphs require a GPU"]


def test_graph_is_captured_once_per_set_of_operands(monkeypatch):
    captured = []

    def capture(call, operands):
        captured.append(operands)
        return call

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", capture)
    case = replace(TINY, mode=FORWARD)
    replay = registry._build_graphed("reference", case)
    expected = IMPLEMENTATIONS["reference"].build(case)
    sets = draw_sets(case)[:2]
    for _ in range(3):
        for inputs in sets:
            assert torch.equal(replay(*inputs.operands), expected(*inputs.operands))
    assert len(captured) == len(sets)
    with torch.no_grad():
        replay(*sets[0].operands)
    assert len(captured) == len(sets) + 1, "a graph without the backward is a new one"


def test_gpu_plan_measures_all_targets():
    """The records of the plan cover all targets except memory and overhead."""
    measured = [
        time_of(item.case, name, 1.0, 8e5)
        for item in plans.gpu_items(("triton",))
        if item.kind == TIME
        for name in item.implementations
    ]
    missing = [v.what for v in results_of("triton", measured) if v.measured == kinds.NOT_MEASURED]
    assert len(missing) == 2
    assert "temporary memory" in missing[0]
    assert "host overhead" in missing[1]


def test_gpu_targets_of_all_kinds():
    device = "cuda"
    long = Case(plans.gpu_shape(4096, 64), plans.GPU_DTYPE, FORWARD, 0.0, device)
    milliseconds = 8 * long.products / 410e9  # 410 TFLOP/s
    sentences = Case(SENTENCES, plans.GPU_DTYPE, FORWARD, 0.0, device)
    used = replace(
        memory(1.0),
        **records.case_fields(Case(plans.GPU_MEMORY_SHAPE, plans.GPU_DTYPE, FORWARD_BACKWARD, 0.0, device)),
        implementation="triton",
    )
    measured = [
        time_of(long, "triton", milliseconds, 8e5),
        time_of(sentences, "triton", 1.0),
        time_of(sentences, EAGER, 5.9),
        time_of(sentences, ONE_MAP, 0.72),
        time_of(replace(sentences, lengths=PADDED), "triton", 0.9),
        time_of(replace(sentences, lengths=PACKED), "triton", 0.25),
        replace(used, extra_mb=0.049 * (1 + 2 + 3)),
        overhead(Case(plans.GPU_OVERHEAD_SHAPE, plans.GPU_DTYPE, FORWARD, 0.0, device), "triton", 30.0, 29, 31),
    ]
    by_what = {v.what: v for v in results_of("triton", measured)}
    rate = by_what[f"{long}, triton, counted 6 L S D"]
    assert rate.met
    assert rate.measured == "307.5 TFLOP/s, 38% of the matrix peak (410 executed, 51%)"
    assert not by_what[f"{sentences}, triton vs eager"].met  # 5.9 < 6
    assert by_what[f"{sentences}, triton vs sdpa-one-map"].met  # 1 / 0.72 < 1.4
    assert by_what[f"{replace(sentences, lengths=PACKED)}, triton vs padded"].met
    assert next(v for what, v in by_what.items() if "memory" in what).met
    assert not next(v for what, v in by_what.items() if "host overhead" in what).met  # not under 30
    assert gpu.on_device(list(by_what.values()), "NVIDIA H100")[0].target.endswith("(H200)")


@pytest.mark.parametrize(("rate", "met"), [(391, False), (392, True)])
def test_long_calls_at_64_compare_with_flash_attention_3(rate, met):
    case = Case(plans.gpu_shape(8192, 64), plans.GPU_DTYPE, FORWARD, 0.0, "cuda")
    measured = [time_of(case, "cuda", 6 * case.products / rate / 1e9)]
    result = result_of(f"{case}, cuda, counted 6 L S D", measured, "cuda")
    assert (result.target, result.met) == ("at least 391.4 TFLOP/s", met)  # 1.05 x 497 with 8 L S D
    backward = result_of(f"{replace(case, mode=BACKWARD)}, cuda, counted 16 L S D", measured, "cuda")
    assert (backward.target, backward.measured) == ("at least 497.7 TFLOP/s", "not measured")


@pytest.mark.parametrize(("mode", "least", "slowest"), [(FORWARD, 0.7125, 2.0 / 0.95), (BACKWARD, 0.95, 1.6 / 0.95)])
@pytest.mark.parametrize(("factor", "met"), [(1.01, False), (0.99, True)])
def test_long_calls_at_128_compare_with_the_best_sdpa(mode, least, slowest, factor, met):
    """Two maps execute twice the FLOP of one map in the forward; in the backward 16 are counted instead of 10."""
    case = Case(plans.gpu_shape(16384, 128), plans.GPU_DTYPE, mode, 0.0, "cuda")
    measured = [time_of(case, ONE_MAP, 1.0), time_of(case, "triton", factor * slowest)]
    result = result_of(f"{case}, triton's rate vs {ONE_MAP}'s", measured)
    assert result.met is met
    assert result.target == f"at least {least:g}x"
    assert result.measured == f"{least / factor:.2f}x"
    without = result_of(result.what, measured[1:])
    assert without.measured == "not measured"
    assert not without.met


@pytest.mark.parametrize(("milliseconds", "met"), [(1.39, True), (1.41, False)])
def test_sentences_compare_with_one_map(milliseconds, met):
    for shape in (SENTENCES, plans.gpu_shape(128, 64), plans.gpu_shape(32, 64)):
        case = Case(shape, plans.GPU_DTYPE, FORWARD, 0.0, "cuda")
        measured = [time_of(case, ONE_MAP, 1.0), time_of(case, "triton", milliseconds)]
        assert result_of(f"{case}, triton vs {ONE_MAP}", measured).met is met


def a_run(tmp_path, seconds=60.0):
    writer = records.Writer(tmp_path, "gpu", ORIGIN)
    return Session(writer, ORIGIN, NO_EFFORT, Budget(seconds)), writer


def test_session_keeps_records_and_reasons(tmp_path, monkeypatch, capsys):
    def no_memory(case):
        def call(*operands):
            raise torch.OutOfMemoryError("CUDA out of memory\nmore lines")

        return call

    def wrong(case):
        return lambda *operands: 2 * IMPLEMENTATIONS["reference"].build(case)(*operands)

    monkeypatch.setitem(IMPLEMENTATIONS, EAGER, replace(IMPLEMENTATIONS[EAGER], build=no_memory))
    monkeypatch.setitem(
        IMPLEMENTATIONS, "cpu", replace(IMPLEMENTATIONS["cpu"], build=wrong, unsupported=lambda case: [])
    )
    run, writer = a_run(tmp_path)
    run.measure(Item(TINY, (EAGER, ONE_MAP, "cpu", "reference")))
    run.measure(Item(replace(TINY, mode=FORWARD, dropout=0.1), (COMPOSITION, "reference")))
    assert [(r.implementation, r.dropout) for r in records.load([writer.path])] == [
        (ONE_MAP, 0.0),
        ("reference", 0.0),
        ("reference", 0.1),
    ]
    assert [m.split(": ", 1)[1].split(",")[0] for m in run.missing] == [
        "OutOfMemoryError: CUDA out of memory",
        "cpu",
        "dropout of two separate maps differs from dropout of their sum",
    ]
    assert "out has error" in run.missing[1]
    assert len(run.wrong) == 1
    assert "reference" in capsys.readouterr().out


def test_session_omits_an_implementation_that_fails(tmp_path, monkeypatch):
    class CompilationError(Exception):
        """An error such as Triton's, which is no RuntimeError."""

    def fails(case):
        def call(*operands):
            raise CompilationError("at 12:3: NoneType has no type")

        return call

    monkeypatch.setitem(IMPLEMENTATIONS, EAGER, replace(IMPLEMENTATIONS[EAGER], build=fails))
    run, writer = a_run(tmp_path)
    run.measure(Item(TINY, (EAGER, "reference")))
    assert [row.implementation for row in records.load([writer.path])] == ["reference"]
    assert run.missing == [f"{TINY}, {EAGER}: CompilationError: at 12:3: NoneType has no type"]


@pytest.mark.compiles
@pytest.mark.full
def test_session_resets_the_recompilation_limit(tmp_path, monkeypatch):
    """Every shape compiles the implementation again, which torch would refuse above its recompilation limit."""

    def build(case):
        return torch.compile(IMPLEMENTATIONS["reference"].build(case), backend="eager", fullgraph=True, dynamic=False)

    monkeypatch.setitem(IMPLEMENTATIONS, EAGER, replace(IMPLEMENTATIONS[EAGER], build=build))
    run, writer = a_run(tmp_path)
    with torch._dynamo.config.patch(recompile_limit=2):  # monkeypatch would delete the setting
        for length in range(3, 9):
            run.measure(Item(Case(Shape(1, 1, length, 8), mode=FORWARD), (EAGER,)))
    assert run.missing == []
    assert len(records.load([writer.path])) == 6


def test_kernel_that_fails_the_self_check_is_wrong(tmp_path, monkeypatch):
    def fails(case):
        def call(*operands):
            raise self_check.SelfCheckError("eager: wrong results")

        return call

    monkeypatch.setitem(IMPLEMENTATIONS, EAGER, replace(IMPLEMENTATIONS[EAGER], build=fails))
    run, _ = a_run(tmp_path)
    run.measure(Item(TINY, (EAGER, "reference")))
    assert run.wrong == ["eager: wrong results"]
    assert [record.implementation for record in run.records] == ["reference"]


@pytest.mark.full
def test_failed_gpu_ends_the_run_with_a_report(tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr(gpu, "BACKENDS", ("reference",))
    monkeypatch.setenv(self_check.VARIABLE, self_check.OFF)  # restores what the benchmark sets
    monkeypatch.setattr(records, "origin", lambda: ORIGIN)
    monkeypatch.setattr(Session, "measure_ceilings", lambda *_: None)
    items = [Item(replace(TINY, mode=mode), ("reference",)) for mode in MODES]
    monkeypatch.setattr(plans, "gpu_items", lambda backends: items)
    monkeypatch.setattr(timing, "ON_DEVICE", NO_EFFORT)
    assert gpu.main(["--out", str(tmp_path)]) == 1
    (path,) = tmp_path.glob("*-gpu.jsonl")
    assert [row.case.mode for row in records.load([path])] == [MODES[0]]
    shown = capsys.readouterr().out
    assert "the rest of the plan: CUDA error: an illegal memory access" in shown
    assert "targets met on GPU" in shown


def test_spent_budget_lists_the_missing_cases(tmp_path):
    run, _ = a_run(tmp_path, seconds=0.0)
    run.measure(Item(TINY, ("reference",)))
    assert run.records == []
    assert run.missing == [f"{TINY}, time: the time limit is reached"]


@pytest.mark.full
def test_report_has_targets_times_and_missing_cases(tmp_path, capsys):
    run, writer = a_run(tmp_path)
    for mode in MODES:
        run.measure(Item(replace(TINY, mode=mode), (ONE_MAP, "reference")))
    run.missing.append("something: the time limit is reached")
    gpu.report(run, ("reference",), "NVIDIA H200", writer)
    text = writer.path.with_suffix(".txt").read_text()
    assert "reference: 0 of " in text
    assert "targets met on NVIDIA H200" in text
    assert "something: the time limit is reached" in text
    assert text.strip() in capsys.readouterr().out
    assert "| (3,2,24,16) | float32 | backward | 0 |" in text


def test_session_measures_memory_in_a_new_process(tmp_path, monkeypatch):
    requests = []

    def measured(case, name, threads):
        requests.append((case, name, threads))
        if name == EAGER:
            raise RuntimeError("not measured: no such file")
        return replace(memory(1.0), **records.case_fields(case), implementation=name)

    monkeypatch.setattr("benchmarks.measure.session.measure_in_process", measured)
    session, _ = a_run(tmp_path)
    session.measure(Item(TINY, (EAGER, "reference"), MEMORY))
    assert [name for _, name, _ in requests] == [EAGER, "reference"]
    assert session.missing == [f"{TINY}, {EAGER}: not measured: no such file"]
    assert [row.implementation for row in session.records] == ["reference"]


def test_measure_overhead_returns_a_record(tmp_path):
    calls = []
    row = measure_overhead(
        replace(TINY, mode=FORWARD), "reference", lambda *operands: calls.append(torch.is_grad_enabled()), ORIGIN, 30
    )
    assert row.repeats == 30
    assert 0 < row.q1_us <= row.median_us <= row.q3_us < 1e4
    assert len(calls) == 50
    assert not any(calls)
    assert records.from_line(records.to_line(row)) == row


def test_available_on_omits_unsupported_backends(monkeypatch):
    monkeypatch.setattr(qk, "available_backends", lambda: ["triton", "hopper", "cpu"])
    monkeypatch.setattr(dispatch.backend_of("triton"), "not_for", lambda device: [])
    for reasons, expected in (([], ("triton", "hopper")), (["it takes 9.0 alone"], ("triton",))):
        monkeypatch.setattr(dispatch.backend_of("hopper"), "not_for", lambda device, reasons=reasons: reasons)
        assert gpu.available_on(torch.device("cuda", 0)) == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_gpu_benchmark_without_a_gpu_exits(tmp_path, capsys):
    assert gpu.main(["--out", str(tmp_path / "rows")]) == 2
    assert "expected an NVIDIA or AMD GPU" in capsys.readouterr().err
    assert not (tmp_path / "rows").exists()
