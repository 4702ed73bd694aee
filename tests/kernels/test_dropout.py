"""Dropout: the mask equals `keep_mask`, its statistics are correct, and the backward drops the same entries.

If V is made of unit vectors, the output is A. With a positive lambda A has no zeros, so a zero is a dropped entry. With
an upstream gradient of unit vectors, the gradient of V is the transpose of A.
"""

import pytest
import torch
from errors import raises

import qacg_kernels as qk
from qacg_kernels.call.dropout import drop_threshold, keep_scale

# On both sides of the limit of 512 keys of a CPU kernel; 300 and 520 end inside a block of 128 counters.
SHAPES = {"short": (2, 3, 20, 33), "blocks": (1, 2, 70, 300), "long": (1, 2, 65, 520)}


def draw(batch, heads, queries, keys, head_dim, dtype, device):
    generator = torch.Generator().manual_seed(queries * keys)

    def normal(rows):
        return torch.randn(batch, heads, rows, head_dim, generator=generator).to(device, dtype)

    gate = torch.full((batch, heads, queries), 0.5, dtype=dtype, device=device)
    return normal(queries), normal(keys), normal(queries), normal(keys), gate


def unit_vectors(rows, first, head_dim, like):
    """(1, 1, rows, head_dim): the rows from `first` on are those of the identity, the others are zero."""
    row = torch.arange(rows, device=like.device).unsqueeze(1) - first
    return (row == torch.arange(head_dim, device=like.device)).to(like.dtype)[None, None]


def attention_maps_of(backend, shape, dtype, device, **options):
    """Returns the attention matrices that the forward and the backward apply, both (B, H, L, S)."""
    batch, heads, queries, keys = shape
    head_dim = 64
    query, key, context_query, context_key, gate = draw(batch, heads, queries, keys, head_dim, dtype, device)
    forward, backward = [], []
    for first in range(0, keys, head_dim):
        value = unit_vectors(keys, first, head_dim, query).expand(batch, heads, -1, -1)
        arguments = (query, key, value, context_query, context_key, gate)
        forward.append(qk.quasi_attention(*arguments, **options, backend=backend))
    for first in range(0, queries, head_dim):
        value = torch.zeros_like(key).requires_grad_()
        arguments = (query, key, value, context_query, context_key, gate)
        out = qk.quasi_attention(*arguments, **options, backend=backend)
        upstream = unit_vectors(queries, first, head_dim, query).expand_as(out)
        (gradient,) = torch.autograd.grad(out, value, upstream)
        backward.append(gradient.mT)
    return torch.cat(forward, -1)[..., :keys], torch.cat(backward, -2)[..., :queries, :]


@pytest.mark.parametrize("dropout_p", [0.1, 0.75])
@pytest.mark.parametrize("name", SHAPES)
def test_dropped_entries_are_those_of_keep_mask(name, dropout_p, backend, dtype, device):
    seed = torch.tensor(2**61 + 12345, device=device)
    keep = qk.keep_mask(seed, dropout_p, *SHAPES[name])
    options = dict(dropout_p=dropout_p, dropout_seed=seed)
    forward, backward = attention_maps_of(backend, SHAPES[name], dtype, device, **options)
    assert torch.equal(forward != 0, keep)
    assert torch.equal(backward != 0, keep)
    whole, _ = attention_maps_of(backend, SHAPES[name], dtype, device)
    # A and the scaled A are rounded once each; one more unit in the last place is tolerance.
    tolerance = 3 * torch.finfo(dtype).eps
    scaled = whole[keep].double() * keep_scale(dropout_p)
    torch.testing.assert_close(forward[keep].double(), scaled, rtol=tolerance, atol=0)


@pytest.mark.parametrize("dropout_p", [0.01, 0.1, 0.5, 0.9])
def test_keep_mask_is_unbiased_and_uncorrelated(dropout_p):
    keep = qk.keep_mask(torch.tensor(20240607), dropout_p, 4, 4, 128, 256).double()
    count, sigma = keep.numel(), (dropout_p * (1 - dropout_p)) ** 0.5
    # Six sigma: a correct generator fails once in a billion seeds, and this seed is fixed.
    assert abs(keep.mean() - (1 - dropout_p)) < 6 * sigma / count**0.5 + 2**-17
    centred = (keep - keep.mean()) / sigma
    for axis in range(4):
        means = centred.mean([d for d in range(4) if d != axis])
        assert means.abs().max() < 6 / (count / keep.shape[axis]) ** 0.5, f"axis {axis} is biased"
        for shift in (1, 2):
            together = (centred * centred.roll(shift, axis)).mean().abs()
            assert together < 6 / count**0.5, f"neighbours {shift} apart on axis {axis} are correlated"
    # Words and halves of one counter lie 16, 32, ... keys apart.
    for shift in (16, 32, 64, 128):
        assert (centred * centred.roll(shift, 3)).mean().abs() < 6 / count**0.5, f"keys {shift} apart"
    other = qk.keep_mask(torch.tensor(20240608), dropout_p, 4, 4, 128, 256).double()
    assert (centred * (other - other.mean()) / sigma).mean().abs() < 6 / count**0.5


@pytest.mark.parametrize(
    ("dropout_p", "threshold"), [(0.0, 0), (1e-9, 0), (0.5, 32768), (0.1, 6554), (0.99999999, 65535)]
)
def test_dropout_p_is_rounded_to_multiples_of_2_to_minus_16(dropout_p, threshold):
    assert drop_threshold(dropout_p) == threshold
    assert keep_scale(dropout_p) == 1 / (1 - threshold / 65536)


def test_seed_comes_from_the_generator_of_torch(backend, device):
    query, key, context_query, context_key, gate = draw(1, 2, 8, 24, 16, torch.float32, device)

    def call(**options):
        return qk.quasi_attention(
            query, key, key, context_query, context_key, gate, dropout_p=0.3, backend=backend, **options
        )

    torch.manual_seed(1)
    first, second = call(), call()
    torch.manual_seed(1)
    assert torch.equal(call(), first)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(call(dropout_seed=qk.draw_dropout_seed(device)), first)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seed": 7}, "TypeError: seed: expected an int64 scalar tensor, the dropout_seed of the call, got int"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, "TypeError: seed: expected ..., got torch.int64, shape (2,)"),
        ({"dropout_p": 2.0}, "ValueError: dropout_p: expected a probability in [0, 1), got 2.0"),
        ({"heads": -1}, "ValueError: heads: expected at least 0, got -1"),
        ({"rows": torch.tensor([2, -1])}, "ValueError: rows: expected positions of at least 0, got -1"),
        ({"heads": 1.0}, "TypeError: heads: expected an integer, got 1.0"),
        (
            {"rows": [0, 1]},
            "TypeError: rows: expected None or a 1-D integer tensor of positions, got [0, 1]",
        ),
    ],
)
def test_keep_mask_invalid_argument_is_named(change, reason):
    sizes = {"batch": 1, "heads": 1, "query_length": 2, "key_length": 2}
    with raises(reason):
        qk.keep_mask(**{"seed": torch.tensor(1), "dropout_p": 0.5, **sizes, **change})


def test_packed_dropout_equals_that_of_padded_sequences(backend, dtype, device):
    lengths, head_dim, longest = (40, 1, 0, 23), 64, 40
    seed = torch.tensor(77, device=device)
    keep = qk.keep_mask(seed, 0.4, len(lengths), 2, longest, longest)
    query, key, context_query, context_key, gate = draw(1, 2, sum(lengths), sum(lengths), head_dim, dtype, device)
    first = [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    value = torch.cat([unit_vectors(n, 0, head_dim, query) for n in lengths], 2).expand_as(key)
    packed = [t[0].transpose(0, 1) for t in (query, key, value, context_query, context_key, gate)]
    out = qk.quasi_attention_varlen(
        *packed,
        cu_seqlens=torch.tensor(first, device=device),
        max_seqlen=longest,
        dropout_p=0.4,
        dropout_seed=seed,
        backend=backend,
    )
    for n, length in enumerate(lengths):
        seen = out[first[n] : first[n + 1]].transpose(0, 1)[..., :length]
        assert torch.equal(seen != 0, keep[n, :, :length, :length]), f"sequence {n}"
