"""float16 on the CPU kernels, which compute in float32 and round at the end."""

import pytest
import torch

from qacg_kernels.backends import cpu
from qacg_kernels.testing import evaluate, evaluate_exactly, through_backend, through_eager
from qacg_kernels.testing.inputs import Case, make_inputs

SETS = ["native", *(name for name in ("plain", "avx2", "avx512") if name in cpu.CAPABILITIES)]
pytestmark = [
    pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing"),
    pytest.mark.usefixtures("capability"),
    pytest.mark.parametrize("capability", SETS, indirect=True),
]

LARGEST, SMALLEST = 65504.0, 2.0**-24
ROWS = Case("float16 rows", batch=1, heads=2, queries=21, keys=37, head_dim=24)


def inputs_with(factor: torch.Tensor | float, *names: str):
    inputs = make_inputs(ROWS, torch.float16)
    for name in names:
        inputs.tensors[name].copy_(inputs.tensors[name].float() * factor)
    return inputs


def test_output_beyond_the_largest_number_is_infinite():
    every_third = torch.where(torch.arange(ROWS.head_dim) % 3 == 0, 2e4, 1.0)
    inputs = inputs_with(every_third, "value")
    out, exact = (f(inputs)["out"] for f in (lambda i: evaluate(i, through_backend("cpu")), evaluate_exactly))
    eager = evaluate(inputs, through_eager)["out"]
    beyond = exact.abs() > LARGEST + 16
    assert beyond.any()
    assert (exact[..., ::3].abs() < LARGEST).any()
    assert not out.isnan().any()
    clear = beyond | (exact.abs() < 0.99 * LARGEST)
    assert torch.equal(out.isinf()[clear], beyond[clear])
    assert torch.equal(out[beyond], eager[beyond])  # also in sign


def test_gradient_is_infinite_only_beyond_the_largest_number():
    inputs = make_inputs(ROWS, torch.float16)
    inputs.tensors["lambda"].abs_()  # the terms of a sum over queries have one sign
    inputs.grad_out.copy_((inputs.grad_out.float().abs() * 20000).clamp(max=60000))
    got, exact = evaluate(inputs, through_backend("cpu")), evaluate_exactly(inputs)
    beyond = exact["grad value"].abs() > LARGEST + 16
    assert beyond.any()
    assert not beyond.all()
    for name, t in got.items():
        clear = (exact[name].abs() > 1.01 * LARGEST) | (exact[name].abs() < 0.99 * LARGEST)
        assert torch.equal(t.isinf()[clear], (exact[name].abs() > LARGEST)[clear]), name
        assert not t.isnan().any(), name


def test_subnormal_output_is_rounded_and_not_flushed():
    inputs = inputs_with(2.0**-18, "value")
    out, exact = evaluate(inputs, through_backend("cpu"))["out"], evaluate_exactly(inputs)["out"]
    subnormal = exact.abs() < 2.0**-14
    assert subnormal.any()
    assert out[subnormal].any()
    assert (out - exact)[subnormal].abs().max() <= 0.51 * SMALLEST + 1e-3 * 2.0**-14
