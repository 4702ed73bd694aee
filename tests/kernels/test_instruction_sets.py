"""The CPU kernels that an older CPU would run, on this one: QACG_CPU_CAPABILITY lowers the choice."""

import re

import pytest
import torch
from cases import LAYOUT_CASES, SMALL, TILED
from full_members import one_other_each
from judging import check

from qacg_kernels.backends import cpu
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are not there")


# bfloat16 has instructions of its own at this level, the others those of the one before.
NAMES = {"avx512_bf16": {"avx512", "avx512_bf16"}, "neon_bf16": {"neon", "neon_bf16"}}


@pytest.fixture(params=[name for name in cpu.CAPABILITIES if name != "amx"])
def capability(request, monkeypatch):
    usual = cpu.instruction_sets()
    monkeypatch.setenv("QACG_CPU_CAPABILITY", request.param)
    chosen = cpu.instruction_sets()
    if request.param not in chosen.values():
        pytest.skip(f"this CPU has no {request.param}")
    if chosen == usual:
        pytest.skip(f"{request.param} is what this CPU runs anyway")
    assert set(chosen.values()) == NAMES.get(request.param, {request.param})


@pytest.mark.parametrize(
    ("case", "dtype"),
    one_other_each(
        SMALL + LAYOUT_CASES + TILED,
        (torch.float32, torch.bfloat16, torch.float16),
        lambda case: case in TILED and case not in TILED[::3],
    ),
)
def test_results(case, dtype, capability):
    check(case, "cpu", dtype, "cpu")


def test_threads(capability):
    inputs = make_inputs(Case("instruction sets", batch=5, queries=150, gate="shared", dropout_p=0.1))
    before = torch.get_num_threads()
    alone = evaluate(inputs, through_backend("cpu"))
    torch.set_num_threads(3)
    try:
        together = evaluate(inputs, through_backend("cpu"))
    finally:
        torch.set_num_threads(before)
    for name, t in together.items():
        assert torch.equal(t, alone[name]), name


def test_bfloat16_is_widened_where_its_own_products_are_no_faster(monkeypatch):
    monkeypatch.delenv("QACG_CPU_CAPABILITY", raising=False)
    measured = re.search(r"vdpbf16ps does (\d+\.\d+) times", cpu.reasons_of_choice()["bfloat16"])
    if measured is None:
        pytest.skip("this CPU has no vdpbf16ps, or AMX beside it")
    gain = float(measured[1])
    assert 0.2 < gain < 8
    assert cpu.instruction_sets()["bfloat16"] == ("avx512_bf16" if gain >= 1.5 else "avx512")
    assert cpu.reasons_of_choice()["bfloat16"] == measured.string, "measured a second time"


def test_a_forced_choice_says_so(capability):
    assert set(cpu.reasons_of_choice().values()) == {"set by QACG_CPU_CAPABILITY"}


def test_unknown_name_is_refused(monkeypatch):
    monkeypatch.setenv("QACG_CPU_CAPABILITY", "sse9")
    with pytest.raises(ValueError, match="QACG_CPU_CAPABILITY: expected " + cpu.CAPABILITIES[0]):
        cpu.instruction_sets()
