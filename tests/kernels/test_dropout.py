"""Dropout: the mask can be rebuilt cell by cell, its statistics are right, backward drops what forward did.

With V made of unit vectors the output is A itself, and A has no zero of its own when lambda is positive: what
is zero was dropped. The same with unit vectors upstream shows the transpose of A in the gradient of V.
"""

import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.call.dropout import drop_threshold, keep_scale

# On both sides of the CPU kernel's border of 512 keys; 300 and 520 end inside a block of 128 counters.
SHAPES = {"short": (2, 3, 20, 33), "blocks": (1, 2, 70, 300), "long": (1, 2, 65, 520)}


def draw(batch, heads, queries, keys, head_dim, dtype, device):
    generator = torch.Generator().manual_seed(queries * keys)

    def normal(rows):
        return torch.randn(batch, heads, rows, head_dim, generator=generator).to(device, dtype)

    gate = torch.full((batch, heads, queries), 0.5, dtype=dtype, device=device)
    return normal(queries), normal(keys), normal(queries), normal(keys), gate


def unit_vectors(rows, first, head_dim, like):
    """(1, 1, rows, head_dim): the rows from `first` on are those of the identity, all others are zero."""
    row = torch.arange(rows, device=like.device).unsqueeze(1) - first
    return (row == torch.arange(head_dim, device=like.device)).to(like.dtype)[None, None]


def maps_seen_by(backend, shape, dtype, device, **options):
    """A as the forward uses it, and as the backward does, both (B, H, L, S)."""
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
def test_dropped_cells_are_those_of_keep_mask(name, dropout_p, backend, dtype, device):
    seed = torch.tensor(2**61 + 12345, device=device)
    keep = qk.keep_mask(seed, dropout_p, *SHAPES[name])
    options = dict(dropout_p=dropout_p, dropout_seed=seed)
    forward, backward = maps_seen_by(backend, SHAPES[name], dtype, device, **options)
    assert torch.equal(forward != 0, keep)
    assert torch.equal(backward != 0, keep)
    whole, _ = maps_seen_by(backend, SHAPES[name], dtype, device)
    # One rounding of A and one of its scaled form: two units in the last place, and one to spare.
    tolerance = 3 * torch.finfo(dtype).eps
    scaled = whole[keep].double() * keep_scale(dropout_p)
    torch.testing.assert_close(forward[keep].double(), scaled, rtol=tolerance, atol=0)


def test_gradients_of_the_scores_use_the_same_mask(backend, device):
    """A key whose every cell is dropped gets no gradient from any score or value."""
    shape = (1, 1, 4, 600)
    query, key, context_query, context_key, gate = draw(*shape, 16, torch.float32, device)
    seed = torch.tensor(5, device=device)
    keep = qk.keep_mask(seed, 0.6, *shape)
    gone = ~keep[0, 0].any(0)
    assert 20 < gone.sum() < 200
    tensors = [t.requires_grad_() for t in (query, key, torch.randn_like(key), context_query, context_key, gate)]
    out = qk.quasi_attention(*tensors, dropout_p=0.6, dropout_seed=seed, backend=backend)
    _, d_key, d_value, _, d_context_key, _ = torch.autograd.grad(out.square().sum(), tensors)
    assert d_value[0, 0, gone].eq(0).all()
    assert d_context_key[0, 0, gone].eq(0).all()
    # The softmax still normalises over dropped keys, so their scores keep a gradient: -P delta.
    assert d_key[0, 0, gone].ne(0).all()
    assert d_value[0, 0, ~gone].ne(0).all()


def test_packed_sequences_drop_the_cells_of_their_padded_form(backend, dtype, device):
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


@pytest.mark.parametrize("dropout_p", [0.01, 0.1, 0.5, 0.9])
def test_statistics_of_the_mask(dropout_p):
    keep = qk.keep_mask(torch.tensor(20240607), dropout_p, 4, 4, 128, 256).double()
    count, sigma = keep.numel(), (dropout_p * (1 - dropout_p)) ** 0.5
    # Six sigma: a sound generator fails one time in a billion, and this seed is fixed.
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
def test_probability_is_rounded_to_multiples_of_2_to_minus_16(dropout_p, threshold):
    assert drop_threshold(dropout_p) == threshold
    assert keep_scale(dropout_p) == 1 / (1 - threshold / 65536)


def test_mean_over_seeds_is_the_output_without_dropout(backend, device):
    query, key, context_query, context_key, gate = draw(1, 2, 8, 24, 16, torch.float32, device)
    arguments = (query, key, torch.randn_like(key), context_query, context_key, gate)
    whole = qk.quasi_attention(*arguments, backend=backend)
    drawn = torch.stack(
        [
            qk.quasi_attention(*arguments, dropout_p=0.3, dropout_seed=torch.tensor(s, device=device), backend=backend)
            for s in range(400)
        ]
    )
    error = (drawn.mean(0) - whole) / (drawn.std(0) / 20)
    assert error.abs().max() < 6
    assert error.std() < 1.5


def test_seed_is_drawn_from_torchs_generator(backend, device):
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
