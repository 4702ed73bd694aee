"""The CPU kernels of older processors, which QACG_CPU_CAPABILITY selects on this one."""

import re

import pytest
import torch
from cases import LAYOUT_CASES, SMALL, TILED
from full_members import one_other_each
from judging import assert_same_bits, check
from processes import run_python

from qacg_kernels import explain, quasi_attention
from qacg_kernels.backends import cpu
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing")


# At these levels only bfloat16 has new instructions.
NAMES = {"avx512_bf16": {"avx512", "avx512_bf16"}, "neon_bf16": {"neon", "neon_bf16"}}


@pytest.fixture(params=[name for name in cpu.CAPABILITIES if name != "amx"])
def capability(request, monkeypatch):
    usual = cpu.instruction_sets()
    monkeypatch.setenv("QACG_CPU_CAPABILITY", request.param)
    chosen = cpu.instruction_sets()
    if request.param not in chosen.values():
        pytest.skip(f"this CPU does not have {request.param}")
    if chosen == usual:
        pytest.skip(f"{request.param} is the default of this CPU")
    assert set(chosen.values()) == NAMES.get(request.param, {request.param})


@pytest.mark.parametrize(
    ("case", "dtype"),
    one_other_each(
        SMALL + LAYOUT_CASES + TILED,
        (torch.float32, torch.bfloat16, torch.float16),
        lambda case: case in TILED and case not in TILED[::3],
    ),
)
def test_older_kernels_meet_the_error_rule(case, dtype, capability):
    check(case, "cpu", dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", [name for name in cpu.CAPABILITIES if name != "amx"])
def test_gradient_of_saturated_sigmoids_vanishes(name, dtype, monkeypatch):
    monkeypatch.setenv("QACG_CPU_CAPABILITY", name)
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(1, 1, 8, 64, generator=generator).to(dtype) for _ in range(5)]
    gate = torch.rand(1, 1, 8, generator=generator).to(dtype)

    def gradient(bias, backend, convert):
        inputs = [x.to(convert, copy=True).requires_grad_() for x in tensors]
        quasi_attention(*inputs, gate.to(convert), quasi_bias=bias, backend=backend).sum().backward()
        return inputs[4].grad.double()

    for bias in (12.0, 20.0, 1e4):  # 1 - sigmoid is e^-bias
        expected = gradient(bias, "reference", torch.float64)
        # Beyond the digits of float32, 1 - sigmoid is 0 or one unit in the last place.
        allowed = 0.1 * expected.abs().max() + 2e-6
        assert (gradient(bias, "cpu", dtype) - expected).abs().max() <= allowed


def test_older_kernels_have_equal_bits_on_3_threads(capability, set_threads):
    inputs = make_inputs(Case("instruction sets", batch=5, queries=150, gate="shared", dropout_p=0.1))
    expected = evaluate(inputs, through_backend("cpu"))
    set_threads(3)
    assert_same_bits(evaluate(inputs, through_backend("cpu")), expected)


def test_bfloat16_is_widened_unless_its_products_are_faster(monkeypatch):
    monkeypatch.delenv("QACG_CPU_CAPABILITY", raising=False)
    measured = re.search(r"vdpbf16ps computes (\d+\.\d+) times", cpu.reasons_of_choice()["bfloat16"])
    if measured is None:
        pytest.skip("this CPU does not have vdpbf16ps, or also has AMX")
    gain = float(measured[1])
    assert 0.2 < gain < 8
    assert cpu.instruction_sets()["bfloat16"] == ("avx512_bf16" if gain >= 1.5 else "avx512")
    assert cpu.reasons_of_choice()["bfloat16"] == measured.string, "measured a second time"


def test_forced_choice_has_its_reason(capability):
    assert set(cpu.reasons_of_choice().values()) == {"set by QACG_CPU_CAPABILITY"}
    head = torch.randn(1, 1, 1, 8)
    note = explain(head, head, head, head, head, torch.rand(1, 1, 1)).notes["cpu"]
    assert note == f"{cpu.instruction_sets()['float32']}: set by QACG_CPU_CAPABILITY"


SMALL_SIGNAL_STACK = """
import ctypes
from qacg_kernels import info

class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]

memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
print(info.render(info.collect()))
"""


def test_refused_amx_is_reported_with_its_cause(monkeypatch):
    monkeypatch.delenv("QACG_CPU_CAPABILITY", raising=False)
    if cpu.instruction_sets()["float32"] != "amx":
        pytest.skip("this CPU does not have AMX")
    cause = "; Linux refused AMX with errno 28: a thread of this process has a signal stack below AT_MINSIGSTKSZ"
    assert run_python("-c", SMALL_SIGNAL_STACK).stdout.count(cause) == 2  # float32 and bfloat16


def test_unknown_instruction_set_raises(monkeypatch):
    monkeypatch.setenv("QACG_CPU_CAPABILITY", "sse9")
    with pytest.raises(ValueError, match="QACG_CPU_CAPABILITY: expected " + cpu.CAPABILITIES[0]):
        cpu.instruction_sets()
