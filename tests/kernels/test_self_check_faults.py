"""Conditional faults of kernels are detected by the first call that they affect, which returns the reference's results.

A call that the fault does not affect runs before, and prints no warning.
"""

import re
import warnings
from dataclasses import dataclass, replace

import pytest
import torch
from test_edges import EMPTY
from unchecked_cpu import GRADIENTS, unchecked_cpu

from qacg_kernels.backends import cpu, reference
from qacg_kernels.call.problem import Options, Problem, Residuals, Saved, Tensors
from qacg_kernels.operators import self_check
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")

PLAIN = Case("plain", queries=5, head_dim=8)
GATED = Case("gated", queries=5, head_dim=8, gate="shared", bias="shared")


@dataclass(frozen=True)
class Fault:
    """A conditional fault of a kernel.

    Attributes:
        happen: function that changes the results of a launch (by name), given the arguments of the call (by name).
        meets: a call that the fault affects.
        clean: a call that the fault does not affect; it runs first.
        prepare: function that changes the inputs of `meets`.
    """

    name: str
    happen: object
    meets: Case
    clean: Case = PLAIN
    backward: bool = False
    dtype: torch.dtype = torch.float32
    prepare: object = None


def copy(results, others):
    for t, other in zip(results.values(), others):
        if other is not None and t.shape == other.shape:
            t.copy_(other)


def instead(condition, **changes):
    """Returns a kernel that computes another call if a condition is true."""

    def happen(results, call):
        if not condition(call):
            return
        call = call | {name: change(call) if callable(change) else change for name, change in changes.items()}
        tensors, options = (kind(*(call[name] for name in kind._fields)) for kind in (Tensors, Options))
        problem = Problem(tensors, options)
        if "grad query" in results:
            copy(results, reference.backward(problem, Saved(**{name: call[name] for name in Saved._fields})))
        else:
            outputs = reference.forward(problem, Residuals())
            results["out"].copy_(outputs.out)
            if results["softmax_out"].numel():
                results["softmax_out"].copy_(outputs.softmax_out)

    return happen


def where(condition, name, change):
    """Returns a kernel that changes one of its results if a condition is true."""

    def happen(results, call):
        if condition(call):
            change(results[name])

    return happen


def scaled(factor, at=...):
    def change(t):
        t[at] *= factor

    return change


def added(value, at=...):
    def change(t):
        t[at] += value

    return change


def sizes(call):
    batch, heads, length, _ = call["query"].shape
    return batch, heads, length, call["key"].shape[2]


def has(*names):
    def condition(call):
        return all(call[n] not in (None, False, 0.0) if not isinstance(call[n], torch.Tensor) else True for n in names)

    return condition


def is_packed(call):
    return call["cu_seqlens"] is not None


def nan_behind_the_lengths(inputs):
    for name in ("key", "value", "context_key"):
        for sequence, length in enumerate(inputs.options["key_lengths"].tolist()):
            inputs.tensors[name][sequence, :, length:] = torch.nan
    return inputs


def misaligned(inputs):
    moved = {n: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for n, t in inputs.tensors.items()}
    return replace(inputs, tensors=moved)


def beside(results, call):
    out = results["out"]
    if out.storage_offset():  # in guarded memory: elsewhere it would be another tensor's
        out.as_strided((4,), (1,), out.storage_offset() + out.numel()).zero_()


def unwritten(results, call):
    if results["out"].storage_offset():
        results["out"][..., -1, :] = torch.nan


_bits = iter(range(10**6))


def unsteady(name):
    def happen(results, call):
        t = results[name]
        if not t.numel():
            return
        first = (0,) * t.dim()
        t[first] = torch.nextafter(t[first], torch.tensor(torch.inf if next(_bits) % 2 else -torch.inf))

    return happen


def few_bits(t):
    t.copy_((t.float() * 8).round() / 8)


FORWARD = (
    Fault(
        "more than 4096 keys",
        instead(lambda c: sizes(c)[3] > 4096, attn_mask=lambda c: torch.arange(4097).view(1, 1, 1, -1) < 4096),
        Case("a", batch=1, heads=1, queries=3, keys=4097, head_dim=4),
    ),
    Fault(
        "misaligned pointers",
        where(lambda c: c["query"].data_ptr() % 16, "out", scaled(0, (0, 0, 0))),
        PLAIN,
        prepare=misaligned,
    ),
    Fault(
        "NaN behind key_lengths",
        where(lambda c: c["key"].isnan().any(), "out", scaled(torch.nan, (0, 0, 0))),
        Case("a", queries=9, head_dim=8, key_lengths=(4, 9)),
        prepare=nan_behind_the_lengths,
    ),
    Fault(
        "dropout beyond key 512",
        instead(lambda c: c["dropout_p"] > 0 and sizes(c)[3] > 512, dropout_seed=lambda c: c["dropout_seed"] + 1),
        Case("a", queries=3, keys=513, head_dim=4, dropout_p=0.3),
        Case("b", queries=3, keys=512, head_dim=4, dropout_p=0.3),
    ),
    Fault(
        "causal ignores key_lengths",
        instead(has("is_causal", "key_lengths"), key_lengths=None),
        Case("a", queries=9, head_dim=8, is_causal=True, key_lengths=(3, 9)),
        Case("b", queries=9, head_dim=8, is_causal=True),
    ),
    Fault(
        "negative scale",
        instead(lambda c: c["scale"] < 0, scale=lambda c: -c["scale"]),
        Case("a", queries=5, head_dim=8, scale=-0.3),
    ),
    Fault(
        "first token after an empty sequence",
        where(lambda c: is_packed(c) and (c["cu_seqlens"].diff() == 0).any(), "out", scaled(2, 4)),
        Case("a", sequences=(4, 0, 5), head_dim=8),
        Case("b", sequences=(4, 5), head_dim=8),
    ),
    Fault("write beside the output", beside, PLAIN, replace(PLAIN, queries=0)),
    Fault("unwritten last row", unwritten, PLAIN, replace(PLAIN, queries=0)),
    Fault("unsteady bits", unsteady("out"), PLAIN, replace(PLAIN, queries=0)),
    Fault(
        "saved branch output",
        where(lambda c: sizes(c)[3] > 512, "softmax_out", scaled(1.01)),
        Case("a", batch=1, heads=1, queries=513, head_dim=4),
    ),
    Fault("query gate", where(has("is_causal"), "query_gate", scaled(1.001)), replace(GATED, is_causal=True), GATED),
    Fault(
        "few bits in bfloat16",
        where(lambda c: sizes(c)[2] > 16, "out", few_bits),
        Case("a", queries=17, head_dim=8),
        dtype=torch.bfloat16,
    ),
)

BACKWARD = (
    Fault(
        "gate gradients of more than 32 slices",
        where(lambda c: sizes(c)[0] * sizes(c)[1] > 32, "grad gate_query", scaled(0.9)),
        Case("a", batch=3, heads=11, queries=5, head_dim=8, gate="shared"),
        GATED,
    ),
    Fault(
        "last key of a long row",
        where(lambda c: sizes(c)[3] > 64, "grad key", scaled(2, (..., -1, slice(None)))),
        Case("a", queries=3, keys=65, head_dim=4),
    ),
    Fault(
        "gradient of value under dropout",
        where(has("dropout_p"), "grad value", scaled(0.98)),
        Case("a", queries=5, head_dim=8, dropout_p=0.3),
    ),
    Fault(
        "gate's share in the gradient of key",
        instead(has("key_lengths"), gate_key=lambda c: torch.zeros_like(c["gate_key"])),
        replace(GATED, key_lengths=(3, 5)),
        GATED,
    ),
    Fault(
        "gradient that arrives through lambda",
        instead(lambda c: c["grad_query_gate"] is not None, grad_query_gate=None),
        replace(GATED, lambda_gradient=True),
        GATED,
    ),
)
FAULTS = tuple(replace(fault, backward=False) for fault in FORWARD) + tuple(replace(f, backward=True) for f in BACKWARD)


@pytest.fixture(autouse=True)
def first(monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "first")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_detected_at_its_first_call(fault):
    inputs = make_inputs(fault.meets, fault.dtype)
    inputs = fault.prepare(inputs) if fault.prepare else inputs
    expected = evaluate(inputs, through_backend("reference"))
    with unchecked_cpu(fault.happen, fault.backward):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            evaluate(make_inputs(fault.clean, fault.dtype), through_backend("cpu"))
        with pytest.warns(UserWarning, match="backend 'cpu' fails") as caught:
            got = evaluate(inputs, through_backend("cpu"))
    assert sum("fails for this kind" in str(warning.message) for warning in caught) == 1
    assert ("backward" if fault.backward else "forward") in str(caught[0].message)
    for name, t in expected.items():
        if name.startswith("grad") or not fault.backward:
            assert torch.equal(got[name], t), name


# Beyond the budget only a few slices, or a few rows of them, are compared.
MANY = Case("many slices", batch=20, heads=5, queries=17, head_dim=4, gate="per_head", bias="per_head")
PACKED = Case(
    "many sequences", heads=2, sequences=(5, 19, 3, *[7] * 20, 40, 6), head_dim=4, gate="shared", dropout_p=0.2
)
LONG = Case("long rows", batch=2, heads=2, queries=150, head_dim=4, gate="shared", is_causal=True, mask="additive")
COLUMN = Case(
    "long rows, column gate", batch=1, heads=3, queries=90, keys=120, head_dim=4, gate="shared", form="column"
)


@pytest.fixture
def small_budget(monkeypatch):
    monkeypatch.setattr(self_check, "_WHOLE_ENTRIES", {"cpu": 1 << 12})
    monkeypatch.setattr(self_check, "_SHARE", 1 << 20)
    monkeypatch.setattr(self_check, "_AT_A_TIME", {"cpu": 1 << 10})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [MANY, PACKED, LONG, COLUMN], ids=lambda case: case.name)
@pytest.mark.filterwarnings("error")
def test_sampled_correct_call_prints_no_warning(case, dtype, small_budget):
    inputs = make_inputs(case, dtype)
    with unchecked_cpu() as launched:
        evaluate(inputs, through_backend("cpu"))
        assert launched == ["forward"] * 2 + ["backward"] * 3


@pytest.mark.filterwarnings("error")
def test_tensor_used_as_query_and_key_prints_no_warning(small_budget):
    inputs = make_inputs(LONG, torch.float32)
    inputs.tensors.update(key=inputs.tensors["query"], context_key=inputs.tensors["context_query"])
    with unchecked_cpu():
        evaluate(inputs, through_backend("cpu"))
        with torch.no_grad():
            through_backend("cpu")(inputs, inputs.tensors)


@pytest.mark.parametrize("case", EMPTY, ids=lambda case: case.name)
@pytest.mark.filterwarnings("error")
def test_empty_call_prints_no_warning(case):
    with unchecked_cpu():
        evaluate(make_inputs(case, torch.float32), through_backend("cpu"))


@pytest.mark.parametrize("case", [MANY, PACKED, LONG, COLUMN], ids=lambda case: case.name)
@pytest.mark.parametrize("name", [*GRADIENTS[:5], "grad gate_query", "grad gate_context_key"])
def test_gradients_of_sampled_call_are_compared(name, case, small_budget):
    inputs = make_inputs(case, torch.float32)
    expected = evaluate(inputs, through_backend("reference"))
    fault = where(bool, name, scaled(0.97))
    with unchecked_cpu(fault, backward=True), pytest.warns(UserWarning, match=re.sub("gate_.*", "gate", name)):
        got = evaluate(inputs, through_backend("cpu"))
    assert all(torch.equal(got[n], t) for n, t in expected.items() if n.startswith("grad"))


@pytest.mark.parametrize(("case", "at"), [
    (MANY, (0, 0)), (MANY, (-1, -1)), (PACKED, slice(0, 5)), (PACKED, slice(-6, None)), (PACKED, slice(24, 27)),
    (PACKED, slice(-46, -6)), (LONG, (0, 0, 0)), (LONG, (-1, -1, -1)), (COLUMN, (0, -1, -1)),
])  # fmt: skip
def test_ends_of_sampled_call_are_compared(case, at, small_budget):
    """Always compared: the first, last, shortest and longest sequence, and the first and last row of each."""
    with unchecked_cpu(where(bool, "out", added(0.5, at))), pytest.warns(UserWarning, match="out"):
        evaluate(make_inputs(case, torch.float32), through_backend("cpu"))
