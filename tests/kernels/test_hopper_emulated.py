"""The sources of the Hopper forward in the CPU emulator meet the error rule, and a removed barrier is detected."""

import ctypes
import os
import re
import shutil

import numpy as np
import pytest
import test_edges
import test_hidden_keys
import torch
from cases import LAYOUT_CASES, SMALL, STRIPS, TILED
from cuda_emulator import build
from judging import assert_same_bits, check

import qacg_kernels as qk
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.full
DTYPES = (torch.bfloat16, torch.float16)
LIMIT = 227 * 1024
# Every path of the kernel: both head sizes, one tile, full and partial tiles, blocks without a row or a key.
OWN = (
    Case("hopper, one key", heads=1, queries=130, keys=1, head_dim=64),
    Case("hopper, whole tiles", heads=1, queries=128, keys=512, head_dim=64, mask="boolean"),
    Case("hopper, 128 dims, whole tiles", heads=1, queries=256, keys=256, head_dim=128, mask="additive"),
    Case("hopper, 128 dims, column", heads=1, queries=140, keys=333, head_dim=128, form="column", gate="per_head"),
    Case("hopper, 120 dims, causal", heads=1, queries=200, head_dim=120, is_causal=True, dropout_p=0.2),
    Case("hopper, packed", heads=1, sequences=(300, 0, 129, 1), head_dim=64, is_causal=True, dropout_p=0.1),
    Case("hopper, no key at all", batch=2, heads=1, queries=64, keys=130, head_dim=64, key_lengths=(0, 0)),
    Case("hopper, lengths", batch=3, heads=1, queries=150, keys=300, head_dim=128, key_lengths=(0, 64, 299)),
    Case("hopper, empty rows", heads=1, queries=70, keys=260, head_dim=64, mask="boolean_empty_rows", dropout_p=0.1),
    Case("hopper, bias, whole tiles", heads=1, queries=140, keys=384, head_dim=64, quasi_bias="per_query"),
    Case("hopper, bias, negative scale", heads=1, queries=128, keys=128, head_dim=64, quasi_bias="one", scale=-0.1),
    Case(
        "hopper, bias, 128 dims",
        heads=2,
        queries=140,
        keys=200,
        head_dim=128,
        quasi_bias="per_query",
        gate="shared",
        form="column",
    ),
    Case("hopper, bias, packed", heads=2, sequences=(150, 0, 9), head_dim=64, is_causal=True, quasi_bias="per_query"),
)


@pytest.fixture
def products(emulate_gpu):
    """Returns the number of products of warp groups so far, on an emulated Hopper GPU."""
    return emulate_gpu(LIMIT, "9.0a").qacg_emulator_group_products


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", (*STRIPS, *OWN), ids=lambda case: case.name)
def test_hopper_case_uses_wgmma(case, dtype, products):
    before = products()
    check(case, "hopper", dtype, "cpu")
    has_keys = case.key_lengths is None or any(case.key_lengths)
    assert (products() > before) == has_keys


@pytest.mark.parametrize(
    ("n", "case"), [pytest.param(n, c, id=c.name) for n, c in enumerate(SMALL + LAYOUT_CASES + TILED)]
)
def test_case_meets_the_error_rule(n, case, products):
    if case.head_dim <= 128:
        check(case, "hopper", DTYPES[n % 2], "cpu")


@pytest.mark.parametrize(("n", "case"), [pytest.param(n, case, id=case.name) for n, case in enumerate(OWN)])
def test_tensor_core_rounding_meets_the_error_rule(n, case, products, monkeypatch):
    monkeypatch.setenv("QACG_EMULATOR_ROUNDING", "truncate")
    check(case, "hopper", DTYPES[n % 2], "cpu")


@pytest.mark.parametrize("case", test_edges.EMPTY, ids=lambda case: case.name)
def test_empty_call_gives_zeros(case, products):
    test_edges.test_empty_call_gives_zeros(case, "hopper", torch.bfloat16, "cpu")


@pytest.mark.parametrize(("keys", "tile", "head_dim"), [(420, 128, 64), (230, 64, 128)])
@pytest.mark.parametrize(("kind", "lead"), test_hidden_keys.KEY_MASKS)
def test_key_mask_meets_the_error_rule(kind, lead, keys, tile, head_dim, products):
    dtype = DTYPES[kind == "additive"]
    test_hidden_keys.check_key_mask(kind, lead, keys, tile, head_dim, "hopper", dtype)


def test_nan_stays_in_its_packed_sequence(products):
    test_edges.test_nan_in_one_sequence_reaches_no_other(
        dict(sequences=(14, 25, 9)), dict(), "hopper", torch.bfloat16, "cpu"
    )


@pytest.mark.parametrize("case", OWN[3:6], ids=lambda case: case.name)
def test_order_of_warps_and_copies_changes_no_bit(case, products, monkeypatch):
    inputs = make_inputs(case, torch.bfloat16)
    expected = evaluate(inputs, through_backend("hopper"))
    for seed in range(1, 5):
        monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
        assert_same_bits(evaluate(inputs, through_backend("hopper")), expected)


def test_other_gpu_runs_the_mma_forward(products, monkeypatch):
    """The operator itself is called, so no dispatch selects another backend."""
    monkeypatch.setenv("QACG_EMULATOR_WGMMA", "0")
    before = products()
    check(OWN[1], "hopper", torch.bfloat16, "cpu")
    assert products() == before


@pytest.mark.parametrize(
    ("case", "dtype", "note"),
    [
        (OWN[1], torch.bfloat16, "forward with wgmma, the rest as backend 'cuda' (forward and backward"),
        (Case("dims off 8", head_dim=20), torch.bfloat16, "as backend 'cuda', without wgmma"),
        (Case("odd strides", head_dim=16, layout="strided"), torch.float16, "as backend 'cuda', without wgmma"),
    ],
    ids=lambda value: value.name if isinstance(value, Case) else "",
)
def test_call_runs_the_path_that_explain_names(case, dtype, note, products):
    inputs = make_inputs(case, dtype)
    before = products()
    explanation = qk.explain(*inputs.arguments(), **inputs.options, backend="hopper")
    assert explanation.selected == "hopper"
    assert note in explanation.notes["hopper"]
    check(case, "hopper", dtype, "cpu")
    assert (products() > before) == ("forward with wgmma" in note)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "reason"),
    [
        (torch.float32, 64, "dtype: expected float16 or bfloat16, got float32"),
        (torch.bfloat16, 136, "head size: expected 1 to 128, got 136"),
    ],
)
def test_unsupported_call_raises(dtype, head_dim, reason, products):
    inputs = make_inputs(Case("unsupported", queries=5, head_dim=head_dim), dtype)
    assert reason in qk.explain(*inputs.arguments(), **inputs.options)["hopper"][0]
    with pytest.raises(RuntimeError, match=re.escape(reason)):
        qk.quasi_attention(*inputs.arguments(), **inputs.options, backend="hopper")


# Synchronisation of threads and tensor cores. Two waits are left out: the kernel is correct without them, they are for
# the assembler, and test_cuda_compiled.py tests their effect.
ORDER = re.compile(
    r"synchronise_block\(\);|wait_for_copies<0>\(\);|show_to_products\(\);|fence_registers\(.*\);|"
    r"wait_for_products<\d>\((?:scores|context_scores|quasi_sum)\);"
)


def without(number, folder):
    """A copy of csrc without one match of ORDER in the Hopper forward, and that match."""
    csrc = folder / "csrc"
    shutil.copytree(build.CSRC, csrc, ignore=shutil.ignore_patterns("cpu"))
    path = csrc / "cuda/hopper_forward.h"
    text = path.read_text()
    place = list(ORDER.finditer(text))[number]
    path.write_text(text[: place.start()] + text[place.end() :])
    return csrc, place[0]


def error_of(csrc):
    """The emulator's error under several seeds, with and without keys, or None."""
    trial = ctypes.CDLL(str(build.single(build.HERE / "hopper_trial.cu", races=True, csrc=csrc)))
    trial.run_hopper.restype = ctypes.c_char_p
    draw = np.random.default_rng(0)
    for keys in (300, 0):
        rows = (200, max(keys, 1), max(keys, 1), 200, max(keys, 1), 1)
        drawn = [draw.standard_normal((n, 64)).astype(np.float32) for n in rows]
        tensors = [torch.from_numpy(t).to(torch.bfloat16) for t in drawn]
        tensors[5] = torch.full((200,), 0.5, dtype=torch.bfloat16)
        tensors.append(torch.empty(200, 64, dtype=torch.bfloat16))
        pointers = (ctypes.c_void_p * 7)(*(t.data_ptr() for t in tensors))
        for seed in range(6):
            os.environ["QACG_EMULATOR_SEED"] = str(seed)
            if error := trial.run_hopper(ctypes.c_int64(200), ctypes.c_int64(keys), pointers):
                return error.decode()
    return None


def pytest_generate_tests(metafunc):
    if "number" in metafunc.fixturenames:
        text = (build.CSRC / "cuda/hopper_forward.h").read_text()
        found = [place[0] for place in ORDER.finditer(text)]
        every = metafunc.config.getoption("--thorough-cuda")
        chosen = [n for n, words in enumerate(found) if every or words == "show_to_products();"]
        metafunc.parametrize("number", chosen, ids=lambda n: f"{n} {found[n]}")


@pytest.fixture
def seed(monkeypatch):
    """Restores the seed and the limit after the test."""
    monkeypatch.setenv("QACG_EMULATOR_SEED", "0")
    monkeypatch.setenv("QACG_EMULATOR_SHARED_LIMIT", str(LIMIT))
    if not build.detects_races():
        pytest.skip("no GCC, which the race detector is built with")


def test_unchanged_kernel_has_no_fault(seed):
    assert error_of(build.CSRC) is None


def test_removed_barrier_or_fence_is_detected(number, seed, tmp_path):
    csrc, removed = without(number, tmp_path)
    assert re.search(r"a race in|^wgmma: ", error_of(csrc) or "no error"), f"without {removed}"
