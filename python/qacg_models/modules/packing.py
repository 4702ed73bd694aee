"""Packed batches: the tokens of all sequences one after another, (T, ...), without padding."""

from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable


class Packing(NamedTuple):
    """Where the sequences of a packed batch lie.

    Attributes:
        cu_seqlens: (B + 1,) int32 offsets, from 0 to T, never decreasing; sequence b is the tokens from
            cu_seqlens[b] to cu_seqlens[b + 1].
        max_seqlen: length of the longest sequence, or more.
        sequences: (T,) int64, the sequence of each token.
        places: (T,) int64, the place of each token in its sequence.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    sequences: Tensor
    places: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, total: int) -> "Packing":
        """The packing of `total` tokens with these offsets."""
        tokens = torch.arange(total, device=cu_seqlens.device)
        # The first offset beyond a token is its sequence's end; that passes over sequences without tokens.
        sequences = torch.searchsorted(cu_seqlens[1:].long(), tokens, right=True)
        places = tokens - cu_seqlens.long().index_select(0, sequences)
        return cls(cu_seqlens.int(), max_seqlen, sequences, places)

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    def lengths(self) -> Tensor:
        """(B,) number of tokens of each sequence."""
        return self.cu_seqlens.diff()

    def per_token(self, per_sequence: Tensor) -> Tensor:
        """(B, ...) to (T, ...): each token gets the row of its sequence."""
        return per_sequence.index_select(0, self.sequences)

    def first(self, x: Tensor) -> Tensor:
        """(T, N) to (B, N): the first token of each sequence, and 0 for a sequence that has none."""
        if x.shape[0] == 0:
            return x.new_zeros((self.batch, *x.shape[1:]))
        starts = self.cu_seqlens[:-1].long().clamp(max=x.shape[0] - 1)
        return self.cleared(x.index_select(0, starts))

    def cleared(self, x: Tensor) -> Tensor:
        """(B, N) with 0 for each sequence that has no tokens."""
        return x.masked_fill((self.lengths() == 0).unsqueeze(1), 0.0)

    def total(self, x: Tensor) -> Tensor:
        """(T, N) to (B, N): the sum over the tokens of each sequence."""
        return x.new_zeros((self.batch, *x.shape[1:])).index_add(0, self.sequences, x)

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """(T, ...) to (B, max_seqlen, ...), with `fill` where there is no token."""
        padded = x.new_full((self.batch * self.max_seqlen, *x.shape[1:]), fill)
        return padded.index_copy(0, self._cells(), x).unflatten(0, (self.batch, self.max_seqlen))

    def unpad(self, padded: Tensor) -> Tensor:
        """(B, max_seqlen, ...) to (T, ...), the inverse of `pad`."""
        return padded.flatten(0, 1).index_select(0, self._cells())

    def pairs(self) -> Tensor:
        """(B, 1, max_seqlen, max_seqlen), True where `pad` puts both a query and a key."""
        there = torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.lengths().unsqueeze(1)
        return (there.unsqueeze(2) & there.unsqueeze(1)).unsqueeze(1)

    def _cells(self) -> Tensor:
        return self.sequences * self.max_seqlen + self.places


def packing_of(cu_seqlens: object, max_seqlen: int | None, tokens: Tensor) -> Packing:
    """The packing that a caller describes.

    Args:
        cu_seqlens: (B + 1,) int32 or int64, B at least 1.
        max_seqlen: None: read from cu_seqlens, on the CPU and outside torch.compile only.
        tokens: (T, ...), whatever is packed.

    Raises:
        TypeError, ValueError: naming the argument, what came and what was wanted. Offsets are looked at on the
            CPU and outside torch.compile only.
    """
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens: got {type(cu_seqlens).__name__}, wanted an integer tensor")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens: got dtype {cu_seqlens.dtype}, wanted torch.int32 or torch.int64")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(
            f"cu_seqlens: got shape {tuple(cu_seqlens.shape)}, wanted (B + 1,): 0, then the end of each sequence"
        )
    if cu_seqlens.device != tokens.device:
        raise ValueError(f"cu_seqlens: got device {cu_seqlens.device}, wanted {tokens.device} as the tokens have")
    if max_seqlen is not None and (isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int | torch.SymInt)):
        raise TypeError(f"max_seqlen: got {type(max_seqlen).__name__}, wanted an int")
    total = tokens.shape[0]
    if values_readable(cu_seqlens):
        lengths = cu_seqlens.diff()
        if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != total or int(lengths.min()) < 0:
            raise ValueError(
                f"cu_seqlens: got offsets from {int(cu_seqlens[0])} to {int(cu_seqlens[-1])} with lengths of at "
                f"least {int(lengths.min())}, wanted them from 0 to T = {total}, never decreasing"
            )
        longest = int(lengths.max())
        if max_seqlen is None:
            max_seqlen = longest
        elif max_seqlen < longest:
            raise ValueError(f"max_seqlen: got {max_seqlen}, wanted at least {longest}, the longest sequence")
    elif max_seqlen is None:
        raise ValueError(
            "max_seqlen: got None, wanted the length of the longest sequence; it is read from cu_seqlens on the "
            "CPU and outside torch.compile only"
        )
    return Packing.of(cu_seqlens, max_seqlen, total)


def pack_visible(visible: Tensor) -> tuple[Packing, Tensor]:
    """The packing of the tokens of a padded batch, and where they lie in it.

    Args:
        visible: (B, L) booleans, True for tokens. Reading it synchronises with a GPU.

    Returns:
        The packing, and (T,) int64, the index b L + l of each token.
    """
    lengths = visible.sum(1)
    cells = visible.flatten().nonzero().squeeze(1)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return Packing.of(cu_seqlens, int(lengths.max()), cells.shape[0]), cells
