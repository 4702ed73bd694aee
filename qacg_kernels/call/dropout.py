"""Decides which attention entries dropout drops, by a counter-based generator: the same bits in every backend.

Entry (b, h, i, j) is that of sequence b, head h, query i and key j. It is decided by 16 bits of Philox-4x32 with
7 rounds (Salmon et al., SC 2011). The generator's key is the 64-bit seed, and its counter is

    c0 = 16 * (j // 128) + j % 16        c1 = i        c2 = b * H + h        c3 = 0

A counter gives four words of 32 bits, for eight keys of a block of 128: those with the same j % 16. With
m = (j // 16) % 8, the entry uses word m // 2: its low half if m is even, its high half if m is odd. A vector of
16 lanes, or a thread that computes every 16th column, therefore uses all 128 bits of every counter. Positions i
and j count from the start of the sequence, so a packed batch drops the same entries as its padded form.

An entry is dropped when its 16 bits are below `drop_threshold(p)`, which rounds p to a multiple of 2**-16 below 1.
The kept entries are multiplied by `keep_scale(p)`, the inverse of the rounded keep probability. So dropout does not
change the expected value of an entry.
"""

import torch
from torch import Tensor

ROUNDS = 7
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK32 = 0xFFFFFFFF
_CELLS = 1 << 16
_SEED_BITS = 62


def drop_threshold(dropout_p: float) -> int:
    """Returns the threshold, 0 to 65,535: an entry is dropped if its 16 random bits are below this number."""
    return min(int(dropout_p * _CELLS + 0.5), _CELLS - 1)


def keep_scale(dropout_p: float) -> float:
    """The factor on kept entries, 1 / (1 - p) for p rounded as in `drop_threshold`."""
    return _CELLS / (_CELLS - drop_threshold(dropout_p))


def draw_dropout_seed(device: torch.device | str = "cpu") -> Tensor:
    """Draws a dropout seed from torch's generator of a device, reproducible by torch.manual_seed.

    Args:
        device: device of the seed; must be that of the call's query.

    Returns:
        int64 scalar tensor, 0 or more and less than 2**62.

    Example:
        >>> draw_dropout_seed().dtype
        torch.int64
    """
    if not torch.compiler.is_compiling():
        return torch.randint(0, 2**_SEED_BITS, (), dtype=torch.int64, device=device)
    # With an activation_memory_budget below 1, torch draws again in the backward, except what native_dropout draws.
    _, bits = torch.native_dropout(torch.ones(_SEED_BITS, device=device), 0.5, True)
    return (bits.long() << torch.arange(_SEED_BITS, device=device)).sum()


def _multiply(a: Tensor, constant: int) -> tuple[Tensor, Tensor]:
    # The 64-bit product may exceed 2**63. It then wraps, and shifting and masking still give the right bits.
    product = a * constant
    return (product >> 32) & _MASK32, product & _MASK32


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, seed: Tensor) -> list[Tensor]:
    k0, k1 = seed & _MASK32, (seed >> 32) & _MASK32
    c3 = torch.zeros_like(c0)
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK32, (k1 + _WEYL[1]) & _MASK32
    return [c0, c1, c2, c3]


def places_of(
    batch: int | torch.SymInt, heads: int | torch.SymInt, first_sequence: int, device: torch.device
) -> Tensor:
    """b * H + h for each head of `batch` sequences, (batch, heads), the first of which has the index first_sequence."""
    return torch.arange(batch * heads, device=device).view(batch, heads) + first_sequence * heads


def keep_mask_at(seed: Tensor, dropout_p: float, places: Tensor, rows: Tensor, key_length: int) -> Tensor:
    """The keep-mask of some slices and query rows of a call, boolean (batch, heads, len(rows), S).

    `places` are b * H + h for the sequence b and the head h in the whole call (`places_of`), `rows` query positions.
    """
    j = torch.arange(key_length, device=seed.device)
    c0, c1, c2 = torch.broadcast_tensors(
        (j // 128 * 16 + j % 16).view(1, 1, -1), rows.view(1, -1, 1), places.reshape(-1, 1, 1)
    )
    words = torch.stack(_philox(c0, c1, c2, seed))
    slot = (j // 16) % 8
    word = words.gather(0, (slot // 2).view(1, 1, 1, -1).expand(1, *c0.shape))[0]
    draw = (word >> (16 * (slot % 2))) & (_CELLS - 1)
    return (draw >= drop_threshold(dropout_p)).view(*places.shape, rows.shape[0], key_length)
