"""Packed batches, (T, ...): the tokens of all sequences one after another, no padding."""

from typing import NamedTuple

import torch
from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable


class Packing(NamedTuple):
    """The positions of the sequences in a packed batch.

    Attributes:
        cu_seqlens: (B + 1,) int32 offsets, from 0 to T, never decreasing; sequence b has the tokens from
            cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        max_seqlen: at least the length of the longest sequence.
        sequences: (T,) int64, the index of the sequence of each token.
        places: (T,) int64, the position of each token in its sequence.

    Example:
        >>> packing = packing_of(torch.tensor([0, 2, 5]), None, torch.zeros(5))
        >>> packing.max_seqlen, packing.places.tolist()
        (3, [0, 1, 0, 1, 2])
        >>> packing.pad(torch.arange(5)).tolist()
        [[0, 1, 0], [2, 3, 4]]
    """

    cu_seqlens: Tensor
    max_seqlen: int
    sequences: Tensor
    places: Tensor

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, total: int) -> "Packing":
        """Returns the packing without checking the arguments; `packing_of` checks them.

        Args:
            cu_seqlens: (B + 1,) int32 or int64 offsets.
            max_seqlen: at least the length of the longest sequence.
            total: T, the number of tokens.
        """
        tokens = torch.arange(total, device=cu_seqlens.device)
        # The first offset above the index of a token is the end of its sequence; empty sequences are skipped.
        sequences = torch.searchsorted(cu_seqlens[1:].long(), tokens, right=True)
        places = tokens - cu_seqlens.long().index_select(0, sequences)
        return cls(cu_seqlens.int(), max_seqlen, sequences, places)

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    def lengths(self) -> Tensor:
        """Returns the number of tokens of each sequence, (B,) int32."""
        return self.cu_seqlens.diff()

    def per_token(self, per_sequence: Tensor) -> Tensor:
        """Expands (B, ...) to (T, ...): each token gets the row of its sequence."""
        return per_sequence.index_select(0, self.sequences)

    def first(self, x: Tensor) -> Tensor:
        """Returns the first token of each sequence, (B, ...), from x (T, ...).

        The result is 0 for a sequence without tokens.
        """
        if x.shape[0] == 0:
            return x.new_zeros((self.batch, *x.shape[1:]))
        starts = self.cu_seqlens[:-1].long().clamp(max=x.shape[0] - 1)
        return self.cleared(x.index_select(0, starts))

    def cleared(self, x: Tensor) -> Tensor:
        """Returns x (B, ...) with 0 for each sequence that has no tokens."""
        return x.masked_fill((self.lengths() == 0).view(-1, *[1] * (x.dim() - 1)), 0.0)

    def total(self, x: Tensor) -> Tensor:
        """Returns the sum over each sequence, (B, ...), from x (T, ...).

        The result is 0 for a sequence without tokens.
        """
        return x.new_zeros((self.batch, *x.shape[1:])).index_add(0, self.sequences, x)

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Pads x (T, ...) to (B, max_seqlen, ...), with the value `fill` where there is no token."""
        padded = x.new_full((self.batch * self.max_seqlen, *x.shape[1:]), fill)
        return padded.index_copy(0, self._indices(), x).unflatten(0, (self.batch, self.max_seqlen))

    def unpad(self, padded: Tensor) -> Tensor:
        """Packs (B, max_seqlen, ...) to (T, ...), the inverse of `pad`."""
        return padded.flatten(0, 1).index_select(0, self._indices())

    def pairs(self) -> Tensor:
        """Returns booleans, True where both the query and the key are tokens.

        Their shape is (B, 1, max_seqlen, max_seqlen).
        """
        there = torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.lengths().unsqueeze(1)
        return (there.unsqueeze(2) & there.unsqueeze(1)).unsqueeze(1)

    def repeated(self, sequences: Tensor) -> tuple["Packing", Tensor]:
        """Returns the packing of selected sequences; synchronises with a GPU.

        Args:
            sequences: (N) int64, indices of sequences; an index may occur several times.

        Returns:
            The new packing, and for each of its tokens the index of the same token in `self`.
        """
        cu_seqlens = torch.nn.functional.pad(self.lengths().index_select(0, sequences).cumsum(0), (1, 0))
        packing = Packing.of(cu_seqlens, self.max_seqlen, int(cu_seqlens[-1]))
        starts = self.cu_seqlens[:-1].long().index_select(0, sequences)
        return packing, packing.per_token(starts) + packing.places

    def _indices(self) -> Tensor:
        """Returns the index of each token in the flattened padded batch, (T,) int64."""
        return self.sequences * self.max_seqlen + self.places


def per_token(per_sequence: Tensor, like: Tensor, layout: Packing | Tensor | None) -> Tensor:
    """Expands one value per sequence to its tokens.

    Args:
        per_sequence: (B, ...).
        like: a tensor that has the dtype of the result. Under autocast, per_sequence may have another dtype.
        layout: the packing; any other value for a padded batch.

    Returns:
        Packed (T, ...); for a padded batch (B, 1, ...), which broadcasts over the tokens.

    Example:
        >>> packing = packing_of(torch.tensor([0, 2, 5]), None, torch.zeros(5))
        >>> per_token(torch.tensor([7, 8]), torch.zeros(5), packing).tolist()
        [7.0, 7.0, 8.0, 8.0, 8.0]
    """
    per_sequence = per_sequence.to(like.dtype)
    return layout.per_token(per_sequence) if isinstance(layout, Packing) else per_sequence.unsqueeze(1)


def packing_of(cu_seqlens: object, max_seqlen: int | None, tokens: Tensor) -> Packing:
    """Returns the packing with the given offsets, after checking them.

    Args:
        cu_seqlens: (B + 1,) int32 or int64, B at least 1.
        max_seqlen: at least the length of the longest sequence; None: read from cu_seqlens, which works on
            the CPU and outside torch.compile only.
        tokens: (T, ...), any packed tensor.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it. Offsets are not checked on a GPU or under
            torch.compile.

    Example:
        >>> packing_of(torch.tensor([0, 2, 5]), None, torch.zeros(5)).lengths().tolist()
        [2, 3]
    """
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens: expected an integer tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens: expected dtype torch.int32 or torch.int64, got dtype {cu_seqlens.dtype}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(
            f"cu_seqlens: expected shape (B + 1,) with 0 and the end of each sequence, "
            f"got shape {tuple(cu_seqlens.shape)}"
        )
    if cu_seqlens.device != tokens.device:
        raise ValueError(
            f"cu_seqlens: expected device {tokens.device}, that of the tokens, got device {cu_seqlens.device}"
        )
    if max_seqlen is not None and (isinstance(max_seqlen, bool) or not isinstance(max_seqlen, int | torch.SymInt)):
        raise TypeError(f"max_seqlen: expected an integer, got {type(max_seqlen).__name__}")
    total = tokens.shape[0]
    if values_readable(cu_seqlens):
        lengths = cu_seqlens.diff()
        if int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != total or int(lengths.min()) < 0:
            raise ValueError(
                f"cu_seqlens: expected offsets from 0 to T = {total} that never decrease, got offsets from "
                f"{int(cu_seqlens[0])} to {int(cu_seqlens[-1])} with a smallest difference of {int(lengths.min())}"
            )
        longest = int(lengths.max())
        if max_seqlen is None:
            max_seqlen = longest
        elif max_seqlen < longest:
            raise ValueError(f"max_seqlen: expected at least {longest}, the longest sequence, got {max_seqlen}")
    elif max_seqlen is None:
        raise ValueError(
            "max_seqlen: expected the length of the longest sequence, got None. Pass max_seqlen: it is read from "
            "cu_seqlens only on the CPU and outside torch.compile."
        )
    return Packing.of(cu_seqlens, max_seqlen, total)


def pack_visible(visible: Tensor) -> tuple[Packing, Tensor]:
    """Returns the packing of a padded batch without its padding.

    Args:
        visible: (B, L) booleans, True for tokens. Reading it synchronises with a GPU.

    Returns:
        The packing, and (T,) int64, the index b L + l of each token in the padded batch.

    Example:
        >>> packing, indices = pack_visible(torch.tensor([[True, False], [True, True]]))
        >>> packing.cu_seqlens.tolist(), indices.tolist()
        ([0, 1, 3], [0, 2, 3])
    """
    lengths = visible.sum(1)
    indices = visible.flatten().nonzero().squeeze(1)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return Packing.of(cu_seqlens, int(lengths.max()), indices.shape[0]), indices
