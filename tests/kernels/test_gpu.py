"""Tests that need a GPU: graphs, streams, several devices, asynchronous calls, tensors beyond 2**31 elements."""

import fcntl
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from judging import assert_same_bits
from torch._dynamo.utils import counters

import qacg_kernels as qk
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.gpu

CASES = (
    Case("gpu: short rows", batch=3, queries=50, head_dim=64, gate="shared", bias="shared"),
    Case("gpu: long rows, dropout", batch=1, queries=300, head_dim=64, gate="per_head", dropout_p=0.1),
    Case("gpu: column gate, mask", batch=1, queries=200, head_dim=32, gate="shared", form="column", mask="boolean"),
    Case("gpu: packed", sequences=(40, 3, 170), head_dim=64, gate="shared", is_causal=True),
)


@pytest.fixture(autouse=True)
def on_cuda(device):
    if not device.startswith("cuda"):
        pytest.skip("run with --device cuda")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_captured_call_equals_eager_call(case, kernel, device):
    inputs = make_inputs(case, torch.bfloat16, device)
    attend = through_backend(kernel)
    expected = evaluate(inputs, attend)
    static = {name: t.detach().clone() for name, t in inputs.tensors.items()}
    captured = replace(inputs, tensors=static)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # compiles outside the graph
        evaluate(captured, attend)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = evaluate(captured, attend)
    for t in static.values():
        t.zero_()
    graph.replay()
    for name, t in static.items():
        t.copy_(inputs.tensors[name])
    graph.replay()
    torch.cuda.synchronize()
    assert_same_bits(results, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_second_call_is_prepared(case, device, monkeypatch):
    inputs = make_inputs(case, torch.bfloat16, device)
    attend = through_backend("triton")
    expected = evaluate(inputs, attend)
    monkeypatch.setattr("qacg_kernels.backends.triton.first_calls.CHECK", None)  # Python code would fail
    assert_same_bits(evaluate(inputs, attend), expected)


@pytest.mark.compiles
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_reduce_overhead_replays_equal_eager_calls(case, kernel, device):
    """torch.compile(mode="reduce-overhead") captures a call's kernels at its second run and replays them afterwards."""
    inputs = make_inputs(case, torch.bfloat16, device)
    torch.compiler.reset()
    attend = torch.compile(through_backend(kernel), fullgraph=True, mode="reduce-overhead")
    skipped = counters["inductor"]["cudagraph_skips"]
    for factor in (1.0, 0.5, -1.0, 0.25):
        drawn = replace(inputs, tensors={name: factor * t.detach() for name, t in inputs.tensors.items()})
        torch.compiler.cudagraph_mark_step_begin()
        got = {name: t.clone() for name, t in evaluate(drawn, attend).items()}
        torch.testing.assert_close(got, evaluate(drawn, through_backend(kernel)))
    assert counters["inductor"]["cudagraph_skips"] == skipped, "no graph was captured"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_run_in_the_current_stream(case, kernel, device):
    """A side stream writes the inputs after a delay: a kernel in another stream would read the old values."""
    inputs = make_inputs(case, torch.bfloat16, device)
    expected = evaluate(inputs, through_backend(kernel))
    late = {name: torch.full_like(t, 7.0) for name, t in inputs.tensors.items()}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        for name, t in late.items():
            t.copy_(inputs.tensors[name])
        results = evaluate(replace(inputs, tensors=late), through_backend(kernel))
    side.synchronize()
    assert_same_bits(results, expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_call_does_not_synchronise_with_the_device(case, kernel, device):
    inputs = make_inputs(case, torch.bfloat16, device)
    evaluate(inputs, through_backend(kernel))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        evaluate(inputs, through_backend(kernel))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_lengths_beyond_int32_are_clamped(kernel, device):
    """Reading the values would synchronise with the GPU, so that only the kernels see them."""
    inputs = make_inputs(Case("gpu: lengths", batch=2, queries=40), torch.bfloat16, device)
    expected, clamped = (
        qk.quasi_attention(*inputs.arguments(), key_lengths=torch.tensor(lengths, device=device), backend=kernel)
        for lengths in ((40, 0), (2**32 + 9, 9 - 2**32))  # the low halves are 9
    )
    assert torch.equal(clamped, expected)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_tensors_of_another_device_are_computed_on_it(case, kernel, device):
    expected = evaluate(make_inputs(case, torch.bfloat16, "cuda:0"), through_backend(kernel))
    assert torch.cuda.current_device() == 0
    got = evaluate(make_inputs(case, torch.bfloat16, "cuda:1"), through_backend(kernel))
    assert {t.device for t in got.values()} == {torch.device("cuda:1")}
    assert_same_bits({name: t.to("cuda:0") for name, t in got.items()}, expected)


@pytest.fixture
def most_of_the_memory():
    """A lock between processes whose tests need most of the memory."""
    with Path(tempfile.gettempdir(), f"qacg-gpu-memory-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


@pytest.mark.usefixtures("most_of_the_memory")
@pytest.mark.parametrize("length", [64, 256], ids=["single-tile", "tiled"])
def test_tensors_beyond_2_to_the_31_elements_are_addressed(length, kernel, device):
    """The first and the last sequence of a huge batch equal those of a batch of one."""
    head_dim = 64
    batch = 2**31 // (length * head_dim) + 3
    needed = 12 * batch * length * head_dim * 2
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"takes {needed / 2**30:.0f} GiB of free memory")
    # One buffer is all five inputs: only addresses are tested.
    x = torch.randn(batch, 1, length, head_dim, device=device, dtype=torch.bfloat16).requires_grad_()
    gate = torch.full((batch, 1, length), 0.5, device=device, dtype=torch.bfloat16)
    out = qk.quasi_attention(x, x, x, x, x, gate, backend=kernel)
    (gradient,) = torch.autograd.grad(out, x, torch.ones_like(out))
    for index in (0, batch - 1):
        alone = x.detach()[index : index + 1].clone().requires_grad_()
        expected = qk.quasi_attention(alone, alone, alone, alone, alone, gate[:1], backend=kernel)
        (expected_gradient,) = torch.autograd.grad(expected, alone, torch.ones_like(expected))
        assert torch.equal(out[index], expected[0])
        assert torch.equal(gradient[index], expected_gradient[0])
