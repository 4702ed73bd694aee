"""The GPU benchmark without a GPU: plan, targets, tiny shapes, records and missing cases."""

import time
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from benchmark_records import ORIGIN, memory, overhead, time_of
from torch.nn.attention.flex_attention import flex_attention

from benchmarks import gpu, plans, records
from benchmarks.cases import (
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    MODES,
    PACKED,
    PADDED,
    SENTENCES,
    TRAINING_FORWARD,
    Case,
    Shape,
    draw_sets,
)
from benchmarks.implementations import baselines
from benchmarks.implementations.registry import (
    COMPOSITION,
    EAGER,
    IMPLEMENTATIONS,
    ONE_MAP,
)
from benchmarks.measure import agreement, timing
from benchmarks.measure.session import TIME, Item, Session, measure_overhead
from benchmarks.targets import kinds
from benchmarks.targets.performance import TARGETS
from qacg_kernels.operators import self_check

TINY = Case(Shape(3, 2, 24, 16), mode=FORWARD_BACKWARD)
NO_EFFORT = timing.Effort(seconds=0, fewest_rounds=2, most_rounds=2, warmup_rounds=1)


def results_of(backend, measured):
    return [target.judge(backend, measured) for target in TARGETS["gpu"]]


def result_of(what, measured, backend="triton"):
    (result,) = (result for result in results_of(backend, measured) if result.what == what)
    return result


MODES_AND_LENGTHS = [*((mode, FULL) for mode in MODES), (FORWARD_BACKWARD, PADDED), (FORWARD_BACKWARD, PACKED)]


@pytest.mark.parametrize(("mode", "lengths"), MODES_AND_LENGTHS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_implementations_agree_in_all_modes_and_lengths(mode, lengths, dtype):
    case = replace(TINY, mode=mode, lengths=lengths, dtype=dtype)
    names = [n for n in ("reference", "cpu") if not IMPLEMENTATIONS[n].unsupported(case)]
    assert "reference" in names
    agreement.require_agreement({n: IMPLEMENTATIONS[n].build(case) for n in names}, case, draw_sets(case)[0])


def test_flex_composition_agrees_with_eager():
    case = replace(TINY, mode=FORWARD)
    call = partial(baselines.flex_composition, F.scaled_dot_product_attention, flex_attention)
    agreement.require_agreement({"through flex": call}, case, draw_sets(case)[0])


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


@pytest.mark.parametrize(("mode", "calls"), [(FORWARD, 0), (TRAINING_FORWARD, 0), (FORWARD_BACKWARD, 21)])
def test_host_overhead_of_a_step_includes_the_backward(mode, calls):
    backwards = []

    def call(query, *_):
        out = query * 2
        if out.requires_grad:
            out.register_hook(backwards.append)
        return out

    measure_overhead(replace(TINY, mode=mode), "reference", call, ORIGIN, repeats=1)
    assert len(backwards) == calls


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


@pytest.mark.parametrize(("factor", "met"), [(1.01, False), (0.99, True)])
def test_long_calls_compare_with_the_best_sdpa(factor, met):
    """Two maps execute twice the FLOP of one map in the forward; 6 are counted instead of 4."""
    case = Case(plans.gpu_shape(16384, 128), plans.GPU_DTYPE, FORWARD, 0.0, "cuda")
    measured = [time_of(case, ONE_MAP, 1.0), time_of(case, "triton", factor * 2.0 / 0.95)]
    result = result_of(f"{case}, triton's rate vs {ONE_MAP}'s", measured)
    assert result.met is met
    assert result.measured == f"{0.7125 / factor:.2f}x"


def a_run(tmp_path, seconds=60.0):
    writer = records.Writer(tmp_path, "gpu", ORIGIN)
    return Session(writer, ORIGIN, NO_EFFORT, time.monotonic() + seconds), writer


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
        "dropout of two separate maps differs from dropout of their sum; FlexAttention is compiled for a GPU",
    ]
    assert "out has error" in run.missing[1]
    assert len(run.wrong) == 1
    assert "reference" in capsys.readouterr().out


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
