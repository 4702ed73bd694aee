"""The bias of the context scores: its forms, its errors, and what it does to the map."""

import itertools
import math

import pytest
import torch
from errors import error_cases, raises

from qacg_kernels import GateParameters, quasi_attention, quasi_attention_varlen
from qacg_kernels.call.equations import MINUS_LOG_KEYS, visible
from qacg_kernels.functional import problem_of
from qacg_kernels.testing.inputs import MASKS, Case, make_inputs

GENERATOR = torch.Generator().manual_seed(3)
SHAPE = (2, 3, 9, 16)  # B, H, L, D
PACKED = (0, 5, 1, 7)


def operands(*shape, device="cpu", **options):
    return torch.randn(5, *shape, generator=GENERATOR, **options).to(device).unbind()


def gate_of(query):
    return torch.rand(query.shape[:-1], generator=GENERATOR, dtype=torch.float64).to(query)


def counted(problem):
    """The number of keys that each query sees, (B, H, L), where an additive value m counts exp(m) times."""
    mask, weight = problem.attn_mask, torch.ones(1, dtype=torch.float64)
    if mask is not None and mask.dtype != torch.bool:
        weight = mask.double().exp()
    seen = visible(problem) * weight
    keys = problem.key.shape[2]
    return seen.expand(*problem.query.shape[:3], keys).sum(-1)


CALLS = list(itertools.product((None, *MASKS), (False, True), (None, (0, 4))))


@pytest.mark.parametrize(("mask", "is_causal", "lengths"), CALLS, ids=str)
def test_minus_log_keys_counts_the_visible_keys(mask, is_causal, lengths):
    for keys in (9, 4, 12):
        case = Case(f"{mask}", queries=9, keys=keys, mask=mask, is_causal=is_causal, key_lengths=lengths)
        inputs = make_inputs(case, torch.float64)
        problem = problem_of(*inputs.arguments(), **inputs.options, quasi_bias=MINUS_LOG_KEYS)
        count = counted(problem)
        expected = torch.where(count > 0, -count.log(), 0.0)
        got = problem.quasi_bias.expand_as(count)
        assert got.isfinite().all()
        # exp(-10000) is 0, but a row of such values has a logarithm.
        known = count.isfinite() & ((count > 0) | ~visible(problem).any(-1).expand_as(count))
        torch.testing.assert_close(got[known], expected[known])


def test_minus_log_keys_of_a_row_without_keys_or_without_queries():
    for queries, keys in ((0, 3), (3, 0), (0, 0)):
        query, key = torch.randn(2, 1, queries, 8), torch.randn(2, 1, keys, 8)
        for mask in (None, *(torch.ones(1, 1, rows, keys, dtype=torch.bool) for rows in (1, queries))):
            out = quasi_attention(
                query, key, key, query, key, torch.rand(2, 1, queries), attn_mask=mask, is_causal=mask is not None,
                quasi_bias=MINUS_LOG_KEYS, backend="reference",
            )  # fmt: skip
            assert torch.equal(out, torch.zeros(2, 1, queries, 8))


@pytest.mark.parametrize("is_causal", [False, True])
def test_packed_sequences_have_the_bias_of_padded_ones(is_causal, backend, device):
    offsets = torch.tensor([0, *torch.tensor(PACKED).cumsum(0)], device=device)
    tokens, longest = int(offsets[-1]), max(PACKED)
    packed = operands(tokens, 2, 16, device=device)
    lam = gate_of(packed[0])
    got = quasi_attention_varlen(
        *packed, lam, cu_seqlens=offsets, max_seqlen=longest, is_causal=is_causal, quasi_bias=MINUS_LOG_KEYS,
        backend=backend,
    )  # fmt: skip
    for start, length in zip(offsets, PACKED):
        rows = [t[start : start + length].transpose(0, 1).unsqueeze(0) for t in (*packed, lam)]
        alone = quasi_attention(*rows, is_causal=is_causal, quasi_bias=MINUS_LOG_KEYS, backend="reference")
        torch.testing.assert_close(got[start : start + length], alone[0].transpose(0, 1), rtol=1e-5, atol=1e-6)


@pytest.mark.compiles
def test_compiled_calls_have_a_bias(backend, device):
    wide = operands(*SHAPE, device=device)
    lam, lengths = gate_of(wide[0]), torch.tensor([4, 9], device=device)

    def call(*wide):
        number = quasi_attention(*wide, lam, quasi_bias=-2.0, backend=backend)
        return number + quasi_attention(*wide, lam, key_lengths=lengths, quasi_bias=MINUS_LOG_KEYS, backend=backend)

    torch.testing.assert_close(torch.compile(call, fullgraph=True)(*wide), call(*wide))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_bias_of_short_types_is_float32(dtype):
    wide = [t.to(dtype) for t in operands(*SHAPE)]
    problem = problem_of(*wide, gate_of(wide[0]), quasi_bias=MINUS_LOG_KEYS)
    assert problem.quasi_bias.dtype == torch.float32
    assert problem.quasi_bias.item() == pytest.approx(-math.log(9))


ERRORS = {
    "ValueError: quasi_bias: expected a number, a tensor or '-log(keys)', got 'log'": "log",
    "ValueError: quasi_bias: expected a finite number, got nan": math.nan,
    "ValueError: quasi_bias: expected a shape that broadcasts to (B, H, L) = (2, 3, 9)": torch.zeros(8),
    "TypeError: quasi_bias: expected dtype torch.float32, got": torch.zeros(9, dtype=torch.float16),
    "ValueError: quasi_bias: expected device cpu like query, got meta": torch.zeros(9, device="meta"),
    "ValueError: quasi_bias: expected a tensor without gradient": torch.zeros(9, requires_grad=True),
}


@error_cases(ERRORS)
def test_a_wrong_bias_is_refused(error, given):
    wide = operands(*SHAPE)
    with raises(error):
        quasi_attention(*wide, gate_of(wide[0]), quasi_bias=given)


def test_gradients_with_a_bias():
    inputs = [t.requires_grad_() for t in operands(1, 2, 4, 3, dtype=torch.float64)]
    gate = GateParameters(*(torch.randn(3, dtype=torch.float64, generator=GENERATOR) for _ in range(4)))
    bias = torch.randn(2, 1, dtype=torch.float64, generator=GENERATOR)
    for b in (-0.7, MINUS_LOG_KEYS, bias):
        assert torch.autograd.gradcheck(
            lambda *wide, b=b: quasi_attention(*wide, gate, is_causal=True, quasi_bias=b, backend="reference"), inputs
        )
