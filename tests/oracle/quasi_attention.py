"""Quasi-attention by the formulas of MATH.md, one row at a time, in float64.

It shares no code with the package: it gathers the visible keys of each row instead of masking, uses autograd instead of
derived gradients, and draws dropout with Python integers.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# A summand at or below it hides the key: half the lowest finite number of float32, which float64 has in common with it.
HIDING = -(2 - 2**-23) * 2.0**126


class Result(NamedTuple):
    out: Tensor  # (B, H, L, D)
    attention: Tensor  # A, (B, H, L, S)
    softmax: Tensor  # P, (B, H, L, S)
    gated: Tensor  # lambda G, (B, H, L, S)
    gate: Tensor  # lambda, (B, H, L, S); a row gate repeats along S


def philox(counter: tuple[int, ...], key: tuple[int, int], rounds: int) -> tuple[int, ...]:
    """Philox-4x32: four 32-bit words from a counter of four words and a key of two."""
    low_word = (1 << 32) - 1
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for _ in range(rounds):
        first, second = 0xD2511F53 * x0, 0xCD9E8D57 * x2
        x0, x2 = (second >> 32) ^ x1 ^ k0, (first >> 32) ^ x3 ^ k1
        x1, x3 = second & low_word, first & low_word
        k0, k1 = (k0 + 0x9E3779B9) & low_word, (k1 + 0xBB67AE85) & low_word
    return x0, x1, x2, x3


def kept_row(seed: int, dropout_p: float, sequence_head: int, i: int, keys: int) -> list[bool]:
    """Which entries of one row are kept, by the counter layout that qacg_kernels/call/dropout.py documents."""
    below = min(int(dropout_p * 65536 + 0.5), 65535)
    words: dict[int, tuple[int, ...]] = {}
    row = []
    for j in range(keys):
        block, inside = divmod(j, 128)
        slot, lane = divmod(inside, 16)
        counter = 16 * block + lane
        if counter not in words:
            words[counter] = philox((counter, i, sequence_head, 0), (seed % 2**32, seed >> 32), rounds=7)
        half = words[counter][slot // 2]
        draw = half >> 16 if slot % 2 else half % 65536
        row.append(draw >= below)
    return row


def kept(seed: int, dropout_p: float, shape: tuple[int, int, int, int], first_sequence: int = 0) -> Tensor:
    """The keep-mask of a call, boolean (B, H, L, S)."""
    batch, heads, queries, keys = shape
    rows = [
        kept_row(seed, dropout_p, (first_sequence + b) * heads + h, i, keys)
        for b in range(batch)
        for h in range(heads)
        for i in range(queries)
    ]
    return torch.tensor(rows, dtype=torch.bool).reshape(shape)


def _of_head(parameter: Tensor | None, h: int, shared_dims: int) -> Tensor | float:
    if parameter is None:
        return 0.0
    if parameter.dim() == shared_dims:
        return parameter
    return parameter[0] if parameter.shape[0] == 1 else parameter[h]


def _sees(i: int, j: int, mask_cell, length: int | None, causal: bool) -> bool:
    if causal and j > i:
        return False
    if length is not None and j >= length:
        return False
    if mask_cell is None:
        return True
    return bool(mask_cell) if mask_cell.dtype == torch.bool else float(mask_cell) > HIDING


def quasi_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_query: Tensor,
    context_key: Tensor,
    *,
    lam: Tensor | None = None,
    vectors: tuple[Tensor, Tensor, Tensor, Tensor] | None = None,
    biases: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None] = (None, None, None, None),
    beta: float = 1.0,
    gamma: float = 1.0,
    column: bool = False,
    mask: Tensor | None = None,
    key_lengths: list[int] | None = None,
    causal: bool = False,
    scale: float | None = None,
    alpha: float = 1.0,
    bias: Tensor | None = None,
    keep: Tensor | None = None,
    dropout_p: float = 0.0,
) -> Result:
    """The forward formulas; differentiable in every tensor but mask and keep.

    Args:
        lam: lambda (B, H, L), or None when `vectors` (vq, vqc, vk, vkc), each (D), (1, D) or (H, D), are given.
        biases: bq, bqc, bk and bkc, each None, (), (1) or (H).
        mask: boolean or float64, broadcastable to (B, H, L, S).
        bias: added to the context scores of each query; broadcastable to (B, H, L).
        keep: boolean (B, H, L, S) with `dropout_p`, from `kept`.
    """
    batch, heads, queries, head_dim = query.shape
    keys = key.shape[2]
    s = head_dim**-0.5 if scale is None else scale
    mask = None if mask is None else mask.broadcast_to(batch, heads, queries, keys)
    kept_scale = 1.0
    if keep is not None:
        kept_scale = 65536 / (65536 - min(int(dropout_p * 65536 + 0.5), 65535))

    rows: dict[str, list[Tensor]] = {name: [] for name in Result._fields}
    for b in range(batch):
        for h in range(heads):
            if vectors is not None:
                vq, vqc, vk, vkc = (_of_head(v, h, 1) for v in vectors)
                bq, bqc, bk, bkc = (_of_head(c, h, 0) for c in biases)
            for i in range(queries):
                js = [
                    j
                    for j in range(keys)
                    if _sees(
                        i,
                        j,
                        None if mask is None else mask[b, h, i, j],
                        None if key_lengths is None else key_lengths[b],
                        causal,
                    )
                ]
                q, qc = query[b, h, i], context_query[b, h, i]
                k, kc, v = key[b, h, js], context_key[b, h, js], value[b, h, js]
                t, tc = s * (k * q).sum(-1), s * (kc * qc).sum(-1)
                if mask is not None and mask.dtype != torch.bool:
                    t, tc = t + mask[b, h, i, js], tc + mask[b, h, i, js]
                if bias is not None:
                    tc = tc + bias.broadcast_to(batch, heads, queries)[b, h, i]
                e = torch.exp(t - t.detach().max()) if js else t
                p = e / e.sum()
                g = alpha * torch.sigmoid(tc)

                if lam is not None:
                    gate = lam[b, h, i].expand(len(js))
                else:
                    lq = torch.sigmoid((q * vq).sum() + (qc * vqc).sum() + bq + bqc)
                    if column:
                        lk = torch.sigmoid((k * vk).sum(-1) + (kc * vkc).sum(-1) + bk + bkc)
                    else:
                        own_key, own_context = key[b, h, i], context_key[b, h, i]
                        lk = torch.sigmoid((own_key * vk).sum() + (own_context * vkc).sum() + bk + bkc)
                    gate = (1 - (beta * lq + gamma * lk)).expand(len(js))
                z = torch.ones(len(js), dtype=torch.float64)
                if keep is not None:
                    z = keep[b, h, i, js].double() * kept_scale
                a = z * (p + gate * g)
                rows["out"].append((a.unsqueeze(-1) * v).sum(0))
                for name, values in (("attention", a), ("softmax", p), ("gated", gate * g), ("gate", gate)):
                    spread = torch.zeros(keys, dtype=torch.float64)
                    rows[name].append(spread.index_put((torch.tensor(js, dtype=torch.int64),), values))

    def gather(name: str, width: int) -> Tensor:
        flat = torch.stack(rows[name]) if rows[name] else torch.zeros(0, width, dtype=torch.float64)
        return flat.reshape(batch, heads, queries, width)

    return Result(gather("out", head_dim), *(gather(name, keys) for name in Result._fields[1:]))
