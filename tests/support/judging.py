"""Compares backends with the float64 reference by the error rule."""

import functools

import torch

from qacg_kernels.testing import (
    assert_within_budget,
    evaluate,
    evaluate_exactly,
    rounding_scales,
    through_backend,
    through_eager,
)
from qacg_kernels.testing.inputs import make_inputs


@functools.cache
def judged_by(case, dtype, device):
    """Returns `judges_of` the inputs of a case; computed once for all backends."""
    return judges_of(make_inputs(case, dtype, device))


def judges_of(inputs):
    """Returns inputs with the results of eager PyTorch, the exact results and the rounding scales."""
    # For 16-bit inputs, eager is computed in float32, as backends accumulate in float32. Eager in 16 bits rounds its
    # scores and would allow ten times the error.
    narrow = inputs.grad_out.dtype in (torch.bfloat16, torch.float16)
    eager = evaluate(inputs.to(torch.float32) if narrow else inputs, through_eager)
    return inputs, eager, evaluate_exactly(inputs), rounding_scales(inputs)


def compare(results, judges, where):
    """Checks results by the error rule; `where` is the call's name for messages."""
    inputs, eager, exact, scales = judges
    for name, t in results.items():
        dtype = inputs.grad_out.dtype
        assert_within_budget(name, t, eager[name], exact[name], scales[name], dtype, where=where)


def check(case, backend, dtype, device):
    """Checks a case with a backend: shape, dtype and values of every tensor, and the output without gradients."""
    judges = judged_by(case, dtype, device)
    inputs = judges[0]
    results = evaluate(inputs, through_backend(backend))
    assert results.keys() == judges[2].keys()
    for name, t in results.items():
        source = inputs.tensors[name.removeprefix("grad ") if name.startswith("grad ") else "query"]
        if name != "lambda":
            assert t.shape == source.shape, f"{name}: expected shape {tuple(source.shape)}, got {tuple(t.shape)}"
        assert t.dtype == source.dtype, f"{name}: expected {source.dtype}, got {t.dtype}"
    compare(results, judges, f"{case.name}, {backend}")
    with torch.no_grad():  # without saved tensors, kernels take another path
        out, _ = through_backend(backend)(inputs, inputs.tensors)
    compare({"out": out}, judges, f"{case.name}, {backend}, no grad")


def assert_same_bits(results, expected):
    """Checks that two dicts of tensors have the same names, and equal tensors bit for bit."""
    assert results.keys() == expected.keys()
    assert [name for name, t in expected.items() if not torch.equal(results[name], t)] == []
