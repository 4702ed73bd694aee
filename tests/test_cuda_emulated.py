"""The CUDA backend's own source, host half and kernels, run on the CPU by tests/cuda_emulator: the error rule holds.

Long rows are slow here, so each goes by one of the 16-bit types, float16 or bfloat16 by turns, and by float32 unless it
is among the slowest; with `--thorough-cuda` by all three.
"""

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import test_edges
import torch
from cases import LARGE_SCORES, LAYOUT_CASES, SMALL, STRIPS, TILED
from cuda_emulator import build
from judging import check, compare, judges_of

from qacg_kernels.backends import cuda
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing_inputs import Case, make_inputs

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LONG = TILED + LARGE_SCORES
SLOWEST = ("1030 row gate", "packed beyond 2048")


@pytest.fixture(scope="module")
def library():
    if build.compiler() is None:
        pytest.skip("no C++ compiler to build the emulator with")
    torch.ops.load_library(build.library())
    return ctypes.CDLL(str(build.library()))


@pytest.fixture(autouse=True)
def emulated(library, monkeypatch):
    """The backend is there and takes CPU tensors."""
    monkeypatch.setattr(cuda, "_missing", [])
    monkeypatch.setattr(cuda, "DEVICE", "cpu")


def pytest_generate_tests(metafunc):
    if "long_case" in metafunc.fixturenames:
        every = metafunc.config.getoption("--thorough-cuda")
        pairs = [
            (case, dtype)
            for n, case in enumerate(LONG)
            for d, dtype in enumerate(DTYPES)
            if every or d == 1 + n % 2 or (d == 0 and case.name not in SLOWEST)
        ]
        metafunc.parametrize(("long_case", "dtype"), pairs, ids=[f"{c.name}-{d}" for c, d in pairs])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", SMALL + LAYOUT_CASES, ids=lambda case: case.name)
def test_small(case, dtype):
    check(case, "cuda", dtype, "cpu")


def test_off_the_tile(long_case, dtype):
    check(long_case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("case", STRIPS, ids=lambda case: case.name)
def test_tensor_cores(case, dtype, library):
    before = library.qacg_emulator_products()
    check(case, "cuda", dtype, "cpu")
    assert library.qacg_emulator_products() > before, "the call did not go by the tensor cores' path"


@pytest.mark.parametrize("n, case", list(enumerate(STRIPS)), ids=lambda value: getattr(value, "name", ""))
def test_roundings_of_tensor_cores_are_within_the_error_rule(n, case, monkeypatch):
    """Sums that are cut off rather than rounded, as in tests/cuda_emulator/tensor_core_emulator.h."""
    dtype = DTYPES[1 + n % 2]
    inputs = make_inputs(case, dtype)
    nearest = evaluate(inputs, through_backend("cuda"))
    monkeypatch.setenv("QACG_EMULATOR_ROUNDING", "truncate")
    cut = evaluate(inputs, through_backend("cuda"))
    assert any(not torch.equal(t, cut[name]) for name, t in nearest.items()), "the roundings changed nothing"
    check(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@pytest.mark.parametrize("case", test_edges.EMPTY, ids=lambda case: case.name)
def test_empty(case, dtype):
    test_edges.test_empty(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@pytest.mark.parametrize("gate", [dict(), dict(gate="per_head", bias="per_head")], ids=["lambda", "vectors"])
def test_nan_stays_in_its_packed_sequence(gate, dtype):
    test_edges.test_nan_in_one_sequence_stays_there(dict(sequences=(14, 25, 9)), gate, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
@pytest.mark.parametrize("keys", [17, 140])
@pytest.mark.parametrize("name", ["query", "key", "context_query", "context_key", "value", "lambda"])
def test_nan_is_not_swallowed(name, keys, dtype):
    test_edges.test_nan_is_not_swallowed(name, keys, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
def test_padding_of_a_column_gate_is_not_read(dtype):
    gate = dict(gate="shared", form="column", bias="shared")
    unread = ("key", "value", "context_key")
    test_edges.test_keys_beyond_the_length_are_not_read(gate, unread, 140, "cuda", dtype, "cpu")


ORDERED = (
    *STRIPS[1:6],
    Case("order: no key at all", batch=2, queries=64, keys=130, head_dim=64, key_lengths=(0, 0)),
    Case("order: plain path", queries=40, keys=70, head_dim=20, gate="shared", form="column", dropout_p=0.1),
)


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_the_order_of_warps_and_copies_changes_no_bit(case, monkeypatch):
    """A barrier or a wait for copies that is missing shows as a difference."""
    inputs = make_inputs(case, torch.bfloat16)
    wanted = evaluate(inputs, through_backend("cuda"))
    for seed in range(1, 6):
        monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
        for name, t in evaluate(inputs, through_backend("cuda")).items():
            assert torch.equal(t, wanted[name]), f"{name} differs under seed {seed}"


@pytest.mark.parametrize("limit", [48, 99])
def test_a_gpu_with_less_shared_memory_takes_another_path(limit, library, monkeypatch):
    """Whole rows of 128 dims want 131 KiB: below, keys go in tiles (81 KiB); below that, without tensor cores."""
    monkeypatch.setenv("QACG_EMULATOR_SHARED_LIMIT", str(limit * 1024))
    before = library.qacg_emulator_products()
    check(STRIPS[-1], "cuda", torch.bfloat16, "cpu")
    assert (library.qacg_emulator_products() > before) == (limit == 99)


@pytest.mark.parametrize(
    "case",
    [
        Case("dims off 8", head_dim=20),
        Case("rows off 16 bytes", head_dim=16, layout="strided"),
        Case("too many dims", queries=5, head_dim=136),
    ],
    ids=lambda case: case.name,
)
def test_calls_that_do_not_suit_tensor_cores_go_without(case, library):
    before = library.qacg_emulator_products()
    evaluate(make_inputs(case, torch.bfloat16), through_backend("cuda"))
    assert library.qacg_emulator_products() == before


def test_a_backward_without_tensor_cores_after_a_forward_with_them():
    """out.sum() sends back a gradient whose strides are all zero."""
    inputs = make_inputs(STRIPS[1], torch.bfloat16)
    judges = judges_of(replace(inputs, grad_out=torch.ones((), dtype=torch.bfloat16).expand(inputs.grad_out.shape)))
    compare(evaluate(judges[0], through_backend("cuda")), judges, "sum as the loss")


def test_the_host_half_uses_the_stable_abi_alone(library):
    """Its undefined names are C functions, none of torch's C++: so it loads on another torch than it was built with."""
    if shutil.which("nm") is None:
        pytest.skip("nm, which reads the names in a library, is not on this machine")
    names = subprocess.run(
        ["nm", "-D", "--undefined-only", build.library()], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "aoti_torch_library_impl" in names
    assert not [name for name in names if name.startswith("_Z") and re.search("2at|3c10|5torch", name)]


def test_branch_outputs_agree_with_one_another():
    """out = O1 + lambda O2 by the plain path, which alone gives O2; O1 of the tensor cores' path is the same."""
    inputs = make_inputs(replace(STRIPS[5], gate="lambda", mask=None), torch.bfloat16)
    t = inputs.tensors
    absent = [None] * 10
    arguments = (*inputs.arguments(), *absent)
    options = dict(max_seqlen=0, is_causal=False, dropout_p=0.0, scale=0.125, quasi_scale=1.0, beta=1.0, gamma=1.0)
    options |= dict(column_gate=False, save_softmax_out=True)
    run = torch.ops.qacg.cuda_attention
    out, softmax_out, quasi_out, *_ = run(*arguments, **options, save_quasi_out=True)
    fast_out, fast_softmax_out, nothing, *_ = run(*arguments, **options, save_quasi_out=False)
    assert nothing.numel() == 0
    sum_of_branches = softmax_out.float() + t["lambda"].float().unsqueeze(-1) * quasi_out.float()
    torch.testing.assert_close(out.float(), sum_of_branches, rtol=0.02, atol=0.06)
    torch.testing.assert_close(fast_out.float(), out.float(), rtol=0.02, atol=0.06)
    torch.testing.assert_close(fast_softmax_out.float(), softmax_out.float(), rtol=0.02, atol=0.02)

