"""The CPU kernels that read keys and values in place: calls with few queries or few keys."""

import ctypes
import mmap

import pytest
import torch
from full_members import one_other_each
from judging import assert_same_bits, check

import qacg_kernels as qk
from qacg_kernels.backends import cpu
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU kernels are missing")

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def few(name, queries, keys, **options):
    return Case(
        f"{name}, {queries} x {keys}", queries=queries, keys=keys, **dict(batch=2, heads=2, head_dim=32) | options
    )


# Both sides of the limits of 8 queries and 8 keys, of a chunk of 128 keys, and of rows of 512 and 8,192; shapes that
# are no multiples of the blocks of each instruction set.
CASES = (
    few("one key", 1, 1),
    few("one key", 130, 1, batch=1),
    few("one key, many queries", 200, 1, batch=1),
    few("one key of forty", 4, 40, key_lengths=(1, 40)),
    few("one key, shared gate", 1, 1, gate="shared", bias="shared", lambda_gradient=True),
    few("three keys", 70, 3, mask="boolean", batch=1),
    few("eight keys", 20, 8, is_causal=True, dropout_p=0.3),
    few("nine keys", 9, 9, gate="per_head", bias="per_head"),
    few("square", 8, 8, gate="shared", bias="per_head", mask="additive"),
    few("square causal", 8, 8, is_causal=True, gate="shared"),
    few("plain", 5, 17),
    few("strided", 3, 129, layout="strided"),
    few("heads inside", 2, 128, layout="heads_inside", mask="boolean_empty_rows"),
    few("projection", 4, 130, layout="fused_projection", dropout_p=0.2),
    few("column gate", 3, 140, gate="per_head", bias="shared", form="column", key_lengths=(70, 140)),
    few("lengths", 6, 300, key_lengths=(0, 299)),
    few("negative scale", 2, 200, scale=-0.3),
    few("512 keys", 8, 512, mask="additive", batch=1),
    few("513 keys", 7, 513, dropout_p=0.1, batch=1),
    few("513 keys, column gate", 2, 513, gate="shared", form="column", batch=1),
    few("513 keys, causal", 5, 513, is_causal=True, batch=1),
    few("1030 keys", 1, 1030, head_dim=128, mask="minus_infinity", key_lengths=(513, 1030)),
    few("2100 keys", 3, 2100, head_dim=16, heads=1),
    few("8200 keys", 2, 8200, head_dim=16, heads=1, batch=1, mask="additive"),
    few("packed", 0, 0, sequences=(3, 8, 0, 5), gate="shared", bias="shared"),
    few("packed, dropout", 0, 0, sequences=(1, 1, 1, 2), dropout_p=0.2, is_causal=True),
)


@pytest.mark.parametrize(("case", "dtype"), one_other_each(CASES, DTYPES))
def test_few_queries_meet_the_error_rule(case, dtype, capability):
    check(case, "cpu", dtype, "cpu")


@pytest.mark.parametrize("case", [CASES[5], CASES[14], CASES[18], CASES[21]], ids=lambda case: case.name)
def test_few_queries_have_equal_bits_on_any_threads(case, capability, set_threads):
    inputs = make_inputs(case)
    results = []
    for threads in (1, 3):
        set_threads(threads)
        results.append(evaluate(inputs, through_backend("cpu")))
    assert_same_bits(*results)


def test_many_tiny_heads_equal_single_heads(capability):
    """A thread computes several tiny heads at a time."""
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn((403, 1, 1, 64), generator=generator).requires_grad_() for _ in range(5)]
    gate = torch.rand((403, 1, 1), generator=generator)
    out = qk.quasi_attention(*tensors, gate, backend="cpu")
    together = torch.autograd.grad(out.square().sum(), tensors)
    for head in (0, 200, 402):
        one = [t.detach()[head : head + 1].requires_grad_() for t in tensors]
        alone = qk.quasi_attention(*one, gate[head : head + 1], backend="cpu")
        assert torch.equal(alone, out[head : head + 1])
        for mine, theirs in zip(torch.autograd.grad(alone.square().sum(), one), together):
            assert torch.equal(mine, theirs[head : head + 1])


class GuardedPages:
    """Copies tensors so that they end at a protected page."""

    def __init__(self):
        self._maps = []

    def copy(self, t):
        page = mmap.PAGESIZE
        size = -(-t.nbytes // page) * page
        memory = mmap.mmap(-1, size + page)
        self._maps.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        assert protect(address + size, page, 0) == 0
        placed = torch.frombuffer(memory, dtype=t.dtype, count=t.numel(), offset=size - t.nbytes).view(t.shape)
        return placed.copy_(t)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (9, 1), (3, 130), (70, 3)])
def test_memory_beyond_the_last_key_is_not_read(queries, keys, dtype, capability):
    inputs = make_inputs(few("guarded", queries, keys, batch=1, heads=1), dtype)
    clean = evaluate(inputs, through_backend("cpu"))
    pages = GuardedPages()
    for name, t in inputs.tensors.items():
        inputs.tensors[name] = pages.copy(t)
    assert_same_bits(evaluate(inputs, through_backend("cpu")), clean)
