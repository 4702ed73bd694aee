"""The check of a variant's first call: when it runs, its results, and that it adds no overhead to later calls."""

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from unchecked_cpu import unchecked_cpu

import qacg_kernels as qk
from qacg_kernels.backends import cpu
from qacg_kernels.operators import self_check
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")
CASE = Case("self-check", queries=9, head_dim=8, gate="shared", bias="shared")
FORWARD = ["forward", "forward"]  # once in guarded memory, once as usual
BACKWARD = ["backward", "backward"]


@pytest.fixture(autouse=True)
def first(monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "first")


@pytest.fixture
def inputs():
    return make_inputs(CASE, torch.float32)


def attend(inputs, tensors=None, **options):
    return qk.quasi_attention(*inputs.arguments(tensors), **inputs.options | options, backend="cpu")


def wrong_output(results, call):
    results["out"][0, 0, 0, 0] += 0.25


def test_right_variant_is_launched_by_the_library(inputs):
    """A check launches the kernel twice; later launches run no Python code."""
    with unchecked_cpu() as launched, torch.no_grad():
        results = [attend(inputs) for _ in range(3)]
        assert launched == FORWARD
        assert self_check.summary(torch.device("cpu")) == "1 kernel variants passed, 0 failed"
    assert all(torch.equal(t, results[0]) for t in results)


def test_checked_result_has_usual_memory_and_bits(inputs):
    with torch.no_grad():
        expected = attend(inputs)
        with unchecked_cpu():
            got = attend(inputs)
    assert torch.equal(got, expected)
    assert got.untyped_storage().nbytes() == expected.untyped_storage().nbytes()


def test_wrong_variant_warns_once_and_gives_reference(inputs):
    with torch.no_grad():
        expected = qk.quasi_attention(*inputs.arguments(), **inputs.options, backend="reference")
        with unchecked_cpu(wrong_output) as launched:
            with pytest.warns(
                UserWarning, match=r"backend 'cpu' fails .*: out\[0, 0, 0, 0\]: expected .*, got"
            ) as caught:
                first = attend(inputs)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                second = attend(inputs)
            assert launched == FORWARD
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    text = str(caught[0].message)
    assert "float32" in text
    assert f"torch {torch.__version__}" in text
    assert "B*H<=8" in text


def test_wrong_variant_disables_the_backend(inputs):
    """Calls of other variants, right ones included, then run elsewhere."""
    other = make_inputs(Case("another", queries=50, head_dim=8), torch.float32)
    with unchecked_cpu(lambda results, call: wrong_output(results, call) if call["is_causal"] else None) as launched:
        attend(other)
        causal = make_inputs(Case("causal", queries=9, head_dim=8, is_causal=True), torch.float32)
        with torch.no_grad(), pytest.warns(UserWarning, match="Backend 'cpu' is disabled on cpu: calls run in another"):
            attend(causal)
        launched.clear()
        expected = qk.quasi_attention(*other.arguments(), **other.options, backend="reference")
        assert torch.equal(attend(other), expected)
        assert qk.explain(*other.arguments()).selected == "reference"
        assert qk.explain(*other.arguments()).reasons["cpu"][0].startswith("self-check: expected right results on cpu")
        assert not launched


def test_backward_after_the_backend_is_disabled_is_right(inputs):
    """The reference runs it: `row_max` of the kernel's forward has another unit than the reference's."""
    expected = evaluate(inputs, through_backend("reference"))
    tensors = {name: t.clone().requires_grad_() for name, t in inputs.tensors.items()}
    with unchecked_cpu(lambda results, call: wrong_output(results, call) if call["is_causal"] else None):
        out = attend(inputs, tensors)
        with torch.no_grad(), pytest.warns(UserWarning):
            attend(make_inputs(Case("causal", queries=9, head_dim=8, is_causal=True), torch.float32))
        grads = torch.autograd.grad(out, list(tensors.values()), inputs.grad_out)
    for name, t in zip(tensors, grads):
        torch.testing.assert_close(t, expected[f"grad {name}"])


def test_strict_raises_and_names_the_environment_variable(inputs, monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "strict")
    with unchecked_cpu(wrong_output):
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"expected .*, got .*QACG_BACKEND=reference"):
                attend(inputs)


@pytest.mark.parametrize(("mode", "expected"), [("off", ["forward"]), ("first", FORWARD), ("always", FORWARD * 2)])
def test_mode_selects_the_calls_that_are_checked(mode, expected, inputs, monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", mode)
    with unchecked_cpu() as launched, torch.no_grad():
        attend(inputs), attend(inputs)
        assert launched == expected


def test_unknown_value_raises(inputs, monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "sometimes")
    with unchecked_cpu(), pytest.raises(ValueError, match=r"QACG_SELF_CHECK: expected one of 'first', .*'sometimes'"):
        attend(inputs)


def test_an_interrupted_check_is_repeated(inputs):
    """The interruption keeps its type when it passes through the library, and the state of the check is reset."""

    def interrupt(results, call):
        if launched == ["forward"]:
            raise KeyboardInterrupt

    with unchecked_cpu(interrupt) as launched, torch.no_grad():
        with pytest.raises(KeyboardInterrupt):
            attend(inputs)
        attend(inputs)
        assert launched == ["forward", *FORWARD]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.filterwarnings("error")
def test_non_finite_values_print_no_warning(bad):
    inputs = make_inputs(Case("not finite", queries=9, head_dim=8), torch.float32)
    inputs.tensors["key"][0, 0, 2, 1] = bad
    with unchecked_cpu():
        evaluate(inputs, through_backend("cpu"))


@pytest.mark.filterwarnings("error")
def test_call_without_finite_values_stays_unchecked(inputs):
    tensors = {name: torch.full_like(t, torch.nan) for name, t in inputs.tensors.items()}
    with unchecked_cpu() as launched, torch.no_grad():
        attend(inputs, tensors)
        launched.clear()
        attend(inputs)
        assert launched == FORWARD


def test_capture_leaves_the_variant_unchecked(inputs, monkeypatch):
    with unchecked_cpu() as launched, torch.no_grad():
        monkeypatch.setattr(self_check, "_can_check_now", lambda query: False)
        attend(inputs)
        assert launched == ["forward"]
        monkeypatch.undo()
        monkeypatch.setenv("QACG_SELF_CHECK", "first")
        attend(inputs)
        assert launched == ["forward", *FORWARD]


def test_device_error_names_the_environment_variable(inputs):
    def fail(results, call):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    with (
        unchecked_cpu(fail),
        pytest.raises(RuntimeError, match=r"backend 'cpu' failed: CUDA error.*QACG_BACKEND=reference"),
    ):
        attend(inputs)


def test_error_of_the_compiler_falls_back(inputs):
    class OutOfResources(Exception):
        pass

    OutOfResources.__module__ = "triton.runtime.errors"

    def fail(results, call):
        raise OutOfResources("out of resource: shared memory")

    with torch.no_grad(), unchecked_cpu(fail), pytest.warns(UserWarning, match="does not run: OutOfResources: out of"):
        got = attend(inputs)
    assert torch.equal(got, qk.quasi_attention(*inputs.arguments(), backend="reference"))


class Model(torch.nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.inputs = inputs

    def forward(self, query):
        return attend(self.inputs, self.inputs.tensors | {"query": query})


@pytest.mark.compiles
@pytest.mark.parametrize("way", ["compile", "export"])
def test_graph_is_checked_when_it_runs(way, inputs):
    model, query = Model(inputs), inputs.tensors["query"]
    expected = qk.quasi_attention(*inputs.arguments(), **inputs.options, backend="reference")
    with unchecked_cpu(wrong_output) as launched, torch.no_grad():
        if way == "compile":
            torch.compiler.reset()
            program = torch.compile(model, backend="aot_eager", fullgraph=True)
        else:
            program = torch.export.export(model, (query,)).module()
            assert not launched
        with pytest.warns(UserWarning, match="backend 'cpu' fails"):
            got = program(query)
        assert launched == FORWARD
        assert torch.equal(got, expected)
        assert torch.equal(program(query), expected)
        assert launched == FORWARD


def test_fake_tensors_are_not_checked(inputs):
    from torch._subclasses import FakeTensorMode

    with unchecked_cpu() as launched, FakeTensorMode() as mode:
        out = attend(inputs, {name: mode.from_tensor(t) for name, t in inputs.tensors.items()})
    assert out.shape == inputs.tensors["query"].shape
    assert not launched


def test_two_threads_check_without_waiting_for_each_other(inputs):
    from concurrent.futures import ThreadPoolExecutor

    with unchecked_cpu(), ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: evaluate(inputs, through_backend("cpu")), range(2))
        assert self_check.summary(torch.device("cpu")).startswith("2 kernel variants passed")
    assert all(torch.equal(t, second[name]) for name, t in first.items())


def test_backend_disabled_during_a_check_stays_disabled(inputs):
    """Another thread may disable the backend while a right call is compared."""

    def disable(results, call):
        self_check._disabled["cpu", torch.device("cpu")] = "a wrong result in another thread"
        self_check._restart()

    with unchecked_cpu(disable) as launched, torch.no_grad():
        attend(inputs)
        launched.clear()
        expected = qk.quasi_attention(*inputs.arguments(), **inputs.options, backend="reference")
        assert torch.equal(attend(inputs), expected)
        assert not launched


def test_check_on_a_gpu_waits_for_one_stream(monkeypatch):
    """Waiting for the whole device would break the CUDA graph capture of another thread."""
    device, waited = torch.device("cuda", 0), []
    stream = SimpleNamespace(synchronize=lambda: waited.append("stream"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *device: waited.append("device"))
    self_check._wait(device)
    assert waited == ["stream"]


@pytest.mark.gpu
def test_first_call_on_a_gpu_passes(kernel, device):
    inputs = make_inputs(Case("gpu self-check", head_dim=64, gate="shared", dropout_p=0.1), torch.bfloat16, device)
    self_check.forget()
    evaluate(inputs, through_backend(kernel))
    summary = self_check.summary(inputs.grad_out.device)
    assert summary is None or summary.endswith("0 failed")
