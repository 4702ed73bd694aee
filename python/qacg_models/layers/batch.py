"""Batches of an encoder: padded or packed inputs, masks, and the checks of arguments.

Shapes are always checked. Values are checked on the CPU and outside torch.compile only. On a GPU, ids out of range fail
in the device-side assertion of torch's embedding.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from qacg_kernels.utils.torch_internals import values_readable


class Packing(NamedTuple):
    """The positions of the sequences in a packed batch.

    Attributes:
        cu_seqlens: (B + 1,) int32 offsets, from 0 to T, never decreasing; sequence b has the tokens from
            cu_seqlens[b] to cu_seqlens[b + 1] - 1.
        max_seqlen: at least the length of the longest sequence.
        sequences: (T,) int64, the index of the sequence of each token.
        places: (T,) int32 or int64, the position of each token in its sequence.
        window: the largest distance of a token to the tokens that it attends to; None: any distance.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    sequences: Tensor
    places: Tensor
    window: int | None = None

    @classmethod
    def of(cls, cu_seqlens: Tensor, max_seqlen: int, total: int) -> "Packing":
        """Returns the packing of `total` tokens without checking the offsets; `packing_of` checks them."""
        tokens = torch.arange(total, dtype=cu_seqlens.dtype, device=cu_seqlens.device)
        # The first offset above the index of a token is the end of its sequence; empty sequences are skipped.
        sequences = torch.searchsorted(cu_seqlens[1:], tokens, right=True)
        places = tokens - cu_seqlens.index_select(0, sequences)
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
        """Returns the first token of each sequence, (B, ...), from x (T, ...); any row for one without tokens."""
        if x.shape[0] == 0:
            return x.new_zeros((self.batch, *x.shape[1:]))
        return x.index_select(0, self.cu_seqlens[:-1].clamp(max=x.shape[0] - 1))

    def cleared(self, x: Tensor) -> Tensor:
        """Returns x (B, ...) with 0 for each sequence that has no tokens."""
        return x.masked_fill((self.lengths() == 0).view(-1, *[1] * (x.dim() - 1)), 0.0)

    def total(self, x: Tensor) -> Tensor:
        """Returns the sum over each sequence, (B, ...), from x (T, ...); 0 for a sequence without tokens."""
        return x.new_zeros((self.batch, *x.shape[1:])).index_add(0, self.sequences, x)

    def pad(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Pads x (T, ...) to (B, max_seqlen, ...), with the value `fill` where there is no token."""
        padded = x.new_full((self.batch * self.max_seqlen, *x.shape[1:]), fill)
        return padded.index_copy(0, self._indices(), x).unflatten(0, (self.batch, self.max_seqlen))

    def unpad(self, padded: Tensor) -> Tensor:
        """Packs (B, max_seqlen, ...) to (T, ...), the inverse of `pad`."""
        return padded.flatten(0, 1).index_select(0, self._indices())

    def pairs(self) -> Tensor:
        """Returns booleans (B, 1, max_seqlen, max_seqlen), True where query and key are tokens within the window."""
        there = torch.arange(self.max_seqlen, device=self.cu_seqlens.device) < self.lengths().unsqueeze(1)
        pairs = (there.unsqueeze(2) & there.unsqueeze(1)).unsqueeze(1)
        return pairs if self.window is None else pairs & near(self.max_seqlen, self.window, pairs.device)

    def repeated(self, sequences: Tensor, total: int | None) -> tuple["Packing", Tensor]:
        """Returns the packing of selected sequences, and for each of its tokens the index of the token in `self`.

        `sequences` (N) int64 are indices, which may repeat. `total` is their number of tokens; None synchronises with a
        GPU.
        """
        cu_seqlens = pad(self.lengths().index_select(0, sequences).cumsum(0), (1, 0))
        if total is None or values_readable(cu_seqlens):
            found = int(cu_seqlens[-1])
            if total not in (None, found):
                raise ValueError(f"num_tokens: expected {found}, the tokens of the sequences of text_ids, got {total}")
            total = found
        packing = Packing.of(cu_seqlens, self.max_seqlen, total)
        starts = self.cu_seqlens[:-1].index_select(0, sequences)
        return packing, packing.per_token(starts) + packing.places

    def _indices(self) -> Tensor:
        """Returns the index of each token in the flattened padded batch, (T,) int64."""
        return self.sequences * self.max_seqlen + self.places


def near(length: int, window: int, device: torch.device) -> Tensor:
    """Returns booleans (1, 1, length, length), True where the distance of query and key is at most `window`."""
    places = torch.arange(length, device=device)
    return ((places.unsqueeze(1) - places).abs() <= window)[None, None]


def per_token(per_sequence: Tensor, like: Tensor, layout: Packing | Tensor | None) -> Tensor:
    """Expands values per sequence, (B, ...), to packed tokens (T, ...), or to (B, 1, ...) for a padded batch.

    The result has the dtype of `like`, from which that of `per_sequence` may differ under autocast.
    """
    per_sequence = per_sequence.to(like.dtype)
    return layout.per_token(per_sequence) if isinstance(layout, Packing) else per_sequence.unsqueeze(1)


def packing_of(cu_seqlens: object, max_seqlen: int | None, tokens: Tensor) -> Packing:
    """Checks the offsets (B + 1,) of packed tokens (T, ...), and returns their packing.

    If max_seqlen is None, it is read from cu_seqlens, which works on the CPU and outside torch.compile only.
    """
    check_integers("cu_seqlens", cu_seqlens)
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
    """Returns the packing of a padded batch without its padding, and the index b L + l of each token, (T,) int64.

    `visible` is (B, L), True for tokens. Reading it synchronises with a GPU.
    """
    lengths = visible.sum(1)
    indices = visible.flatten().nonzero().squeeze(1)
    return Packing.of(pad(lengths.cumsum(0), (1, 0)), int(lengths.max()), indices.shape[0]), indices


_INPUTS = ("input_ids", "inputs_embeds", "token_type_ids", "position_ids")


@dataclass(frozen=True)
class EncoderBatch:
    """The tokens of a batch in the form that the encoder processes.

    (*) stands for (B, L) in a padded batch, and for (T) in a packed batch.

    Attributes:
        size: B, the number of the caller's sequences.
        input_ids, inputs_embeds: (*) and (*, hidden), one of which is None.
        token_type_ids: (*); None: all 0.
        position_ids: (*), or (1, L) if padded; None, in a padded batch only: 0 to L - 1 in each sequence.
        layout: the packing; for a padded batch (B, L) booleans, True for tokens, or None if every position is a token.
        padded_shape: (B, L) of the caller's batch if it was padded and has been packed; else None.
        token_indices: (T - filler,) int64, the index b L + l of each token in the batch of padded_shape, or None.
        filler: number of filler tokens, which round T up. They follow the caller's tokens, in sequences of their own.
    """

    size: int
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    layout: Packing | Tensor | None
    padded_shape: tuple[int, int] | None = None
    token_indices: Tensor | None = None
    filler: int = 0

    @property
    def mask(self) -> Packing | Tensor | None:
        """The layout in the form that layers accept: a packing, booleans (B, 1, 1, L), or None."""
        return self.layout[:, None, None, :] if isinstance(self.layout, Tensor) else self.layout

    def for_contexts(self, text_ids: Tensor, num_tokens: int | None, may_round: bool) -> tuple["EncoderBatch", Tensor]:
        """Returns the batch of N sequences, the texts of this batch with different contexts; and its rows.

        `text_ids` (N) int64 are the indices of the texts, and `num_tokens` is the number of their tokens or None. The
        rows are the indices of the (N) sequences, or of the (T) tokens if packed, in this batch. Callers must not read
        the ids and embeddings of the new batch, which are None or those of the texts.
        """
        if not isinstance(self.layout, Packing):
            layout = None if self.layout is None else self.layout.index_select(0, text_ids)
            return replace(self, size=text_ids.shape[0], layout=layout), text_ids
        packing, rows = self.layout.repeated(text_ids, num_tokens)
        sequences = EncoderBatch(text_ids.shape[0], None, None, None, None, packing)
        if self.padded_shape is not None:
            length = self.padded_shape[1]
            indices = packing.sequences * length + self.token_indices.index_select(0, rows) % length
            sequences = replace(sequences, padded_shape=(text_ids.shape[0], length), token_indices=indices)
        if may_round:
            sequences = sequences.rounded()
        # Filler repeats the first token.
        return sequences, pad(rows, (0, sequences.filler)) if sequences.filler else rows

    def rounded(self) -> "EncoderBatch":
        """Returns the packed batch with filler tokens if `rounding_pays`, so that T has few different values.

        For T between 2^k and 2^(k + 1), T is rounded up to a multiple of 2^(k - 4). A batch whose T is such a multiple,
        or less than 32, is returned unchanged.
        """
        packing, tokens = self.layout, self.layout.sequences.shape[0]
        if not rounding_pays(packing.cu_seqlens.device):
            return self
        filler = -tokens % (1 << max(0, tokens.bit_length() - 5))
        if not filler:
            return self
        ends = [*range(tokens + packing.max_seqlen, tokens + filler, packing.max_seqlen), tokens + filler]
        cu_seqlens = torch.cat([packing.cu_seqlens, packing.cu_seqlens.new_tensor(ends)])
        inputs = {name: getattr(self, name) for name in _INPUTS}
        extended = {name: pad(x, (*(0, 0) * (x.dim() - 1), 0, filler)) for name, x in inputs.items() if x is not None}
        layout = Packing.of(cu_seqlens, packing.max_seqlen, tokens + filler)
        return replace(self, **extended, layout=layout, filler=filler)

    def with_filler(self, x: Tensor) -> Tensor:
        """Returns x (B), one value per sequence of the caller, then a 0 per filler sequence."""
        return pad(x, (0, self.layout.batch - self.size)) if self.filler else x

    def only_first_needed(self, config, output_hidden_states: bool) -> bool:
        """Returns whether the last layer may compute only first tokens after its attention."""
        return isinstance(self.layout, Packing) and config.pooler == "cls" and not output_hidden_states

    def pooled(self, pooler, hidden_states: Tensor, first_only: bool) -> Tensor:
        """Returns the pooled output (B, hidden); with first_only, hidden states are those of first tokens."""
        if first_only:
            pooled = pooler(self.layout.cleared(hidden_states).unsqueeze(1), None)
        else:
            pooled = pooler(hidden_states, self.layout)
        return pooled[: self.size] if self.filler else pooled

    def restored(self, x: Tensor) -> Tensor:
        """Returns per-token values as (B, L, ...) or (T, ...), like the caller's batch; 0 at removed padding."""
        x = x[: x.shape[0] - self.filler] if self.filler else x
        if self.padded_shape is None:
            return x
        batch, length = self.padded_shape
        padded = x.new_zeros((batch * length, *x.shape[1:]))
        return padded.index_copy(0, self.token_indices, x).unflatten(0, (batch, length))

    def restored_gates(self, x: Tensor) -> Tensor:
        """Returns gates, (B, H, L, 1) or packed (T, H, 1), in the form of the caller's batch: (B, H, L) or (T, H)."""
        x = self.restored(x.squeeze(-1)) if isinstance(self.layout, Packing) else x.squeeze(-1)
        return x if self.padded_shape is None else x.transpose(1, 2)


def rounding_pays(device: torch.device) -> bool:
    """Returns whether adding filler tokens to a packed batch saves time.

    The result is True for bfloat16 autocast on the CPU, outside torch.compile. There, oneDNN compiles a kernel for each
    new shape, which takes longer than a product of a thousand rows. Filler tokens limit the number of shapes.
    """
    return (
        device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and not torch.compiler.is_compiling()
    )


def read_batch(
    config,
    input_ids: Tensor | None,
    attention_mask: Tensor | None,
    token_type_ids: Tensor | None,
    position_ids: Tensor | None,
    inputs_embeds: Tensor | None,
    cu_seqlens: Tensor | None,
    max_seqlen: int | None,
    *,
    leave_out_padding: bool,
    may_round: bool,
) -> EncoderBatch:
    """Checks the arguments of `BertModel.forward`, and returns them as a batch.

    With leave_out_padding, a batch that has padding is packed, except on a GPU, where this would synchronise, and under
    torch.compile, where it would break the graph. With may_round, a packed batch is `rounded`.
    """
    packed = cu_seqlens is not None
    if packed and attention_mask is not None:
        raise ValueError(
            "attention_mask: expected None with cu_seqlens, got a tensor. Packed sequences have no padding."
        )
    if max_seqlen is not None and not packed:
        raise ValueError(
            f"max_seqlen: expected None without cu_seqlens, got {max_seqlen!r}. Omit max_seqlen for a padded batch."
        )
    field = "hidden_size" if config.embedding_size is None else "embedding_size"
    width = getattr(config, field)
    name, tokens = checked_tokens(input_ids, inputs_embeds, config.vocab_size, width, field, packed=packed)
    shape = tuple(tokens.shape[: 1 if packed else 2])
    if token_type_ids is not None:
        check_ids("token_type_ids", token_type_ids, shape, config.type_vocab_size, "type_vocab_size")
        one_segment = getattr(config, "context_standalone", False)  # embeddings of other token types are untrained
        if one_segment and values_readable(token_type_ids) and bool(token_type_ids.any()):
            raise ValueError(
                "token_type_ids: expected 0 for all tokens, since config.context_standalone is True, got a second "
                "segment. Call tokenizer(sentence), without the context. Pass the context as "
                "context_ids=torch.tensor([model.config.context_id(name)])."
            )
    most = config.max_position_embeddings
    if position_ids is not None:
        check_position_ids(position_ids, shape, most)
    if packed:
        packing = packing_of(cu_seqlens, max_seqlen, tokens)
        _check_rotary(config, position_ids, packing)
        if position_ids is None:
            if packing.max_seqlen > most:
                raise ValueError(
                    f"max_seqlen: expected at most max_position_embeddings = {most}, "
                    f"got {packing.max_seqlen}. Shorten the sequences, or pass a smaller max_seqlen."
                )
            position_ids = packing.places
        batch = EncoderBatch(packing.batch, input_ids, inputs_embeds, token_type_ids, position_ids, packing)
        return batch.rounded() if may_round else batch
    _check_rotary(config, position_ids, None)
    if position_ids is None and shape[1] > most:
        raise ValueError(
            f"{name}: expected at most max_position_embeddings = {most} tokens, "
            f"got sequences of {shape[1]}. Shorten the sequences."
        )
    visible = key_mask(attention_mask, shape)
    if not (leave_out_padding and visible is not None and values_readable(visible)):
        return EncoderBatch(shape[0], input_ids, inputs_embeds, token_type_ids, position_ids, visible)

    packing, indices = pack_visible(visible)
    if config.modernbert is not None and not bool((indices % shape[1] == packing.places).all()):
        # Rotary positions are those in the packing, which padding before or between tokens would change.
        return EncoderBatch(shape[0], input_ids, inputs_embeds, token_type_ids, position_ids, visible)
    places = indices % shape[1] if position_ids is None else position_ids.expand(shape).flatten()[indices]
    chosen = (
        None if x is None else x.flatten(0, 1).index_select(0, indices)
        for x in (input_ids, inputs_embeds, token_type_ids)
    )
    batch = EncoderBatch(shape[0], *chosen, places, packing, shape, indices)
    return batch.rounded() if may_round else batch


def check_tensor(name: str, x: object, expected: str = "a torch.Tensor") -> None:
    """Raises TypeError unless `x` is a tensor."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: expected {expected}, got {type(x).__name__}")


def check_shape(name: str, x: object, expected: tuple[int | str, ...]) -> None:
    """Raises TypeError unless `x` is a tensor, and ValueError unless it has the expected shape.

    A string stands for any size.
    """
    check_tensor(name, x)
    if len(x.shape) != len(expected) or any(not isinstance(n, str) and n != s for n, s in zip(expected, x.shape)):
        end = "," if len(expected) == 1 else ""
        raise ValueError(f"{name}: expected shape ({', '.join(map(str, expected))}{end}), got shape {tuple(x.shape)}")


def checked_tokens(
    input_ids: object, inputs_embeds: object, words: int, width: int, field: str = "hidden_size", packed: bool = False
) -> tuple[str, Tensor]:
    """Returns the name of the argument with the tokens, and its value; `field` is the name of the width."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(
            f"input_ids, inputs_embeds: expected exactly one, got {'neither' if input_ids is None else 'both'}"
        )
    if inputs_embeds is None:
        name, tokens = "input_ids", input_ids
        check_ids(name, tokens, None, words, "vocab_size", packed=packed)
    else:
        name, tokens = "inputs_embeds", inputs_embeds
        check_tensor(name, tokens)
        if not tokens.is_floating_point():
            raise TypeError(f"inputs_embeds: expected a floating-point dtype, got dtype {tokens.dtype}")
        if tokens.dim() != (2 if packed else 3) or tokens.shape[-1] != width:
            expected = f"({'T' if packed else 'B, L'}, {field} = {width})"
            raise ValueError(f"inputs_embeds: expected shape {expected}, got shape {tuple(tokens.shape)}")
    if not packed and tokens.shape[1] < 1:
        raise ValueError(f"{name}: expected at least one token per sequence, got shape {tuple(tokens.shape)}")
    return name, tokens


def check_integers(name: str, x: object) -> None:
    """Raises TypeError unless `x` is an int64 or int32 tensor."""
    check_tensor(name, x)
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name}: expected dtype torch.int64 or torch.int32, got dtype {x.dtype}")


def check_ids(
    name: str,
    ids: object,
    shape: tuple[int | str, ...] | None,
    limit: int,
    field: str = "",
    *,
    packed: bool = False,
    other: tuple[int, str] | None = None,
) -> None:
    """Raises TypeError or ValueError unless `ids` is an int64 or int32 tensor of values in [0, limit).

    `shape` is that of `check_shape`; None: any shape (B, L), or (T) if packed. `field` is the name of the limit.
    `other` is one more value that is allowed, and what it is for.
    """
    check_integers(name, ids)
    if shape is None and ids.dim() != (1 if packed else 2):
        expected = "one dimension (T) with cu_seqlens" if packed else "two dimensions (B, L)"
        raise ValueError(f"{name}: expected {expected}, got shape {tuple(ids.shape)}")
    if shape is not None:
        check_shape(name, ids, shape)
    if not values_readable(ids) or not ids.numel():
        return
    known = ids if other is None else ids.masked_fill(ids == other[0], 0)
    low, high = (int(x) for x in known.aminmax())
    if low < 0 or high >= limit:
        low, high = (int(x) for x in ids.aminmax())
        meaning = f" ({field} is {limit})" if field else ""
        also = "" if other is None else f", or {other[0]} for {other[1]}"
        raise ValueError(f"{name}: expected 0 to {limit - 1}{meaning}{also}, got values from {low} to {high}")


def check_position_ids(position_ids: object, shape: tuple[int, ...], limit: int) -> None:
    """Checks position ids of the shape of a batch, (B, L) or packed (T), or (1, L); `limit` is their number."""
    one_for_all = len(shape) == 2 and isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,)
    check_ids("position_ids", position_ids, (1, *shape[1:]) if one_for_all else shape, limit, "max_position_embeddings")


def _check_rotary(config, position_ids: Tensor | None, packing: Packing | None) -> None:
    """Raises ValueError unless position ids are the places of tokens, from which rotary positions are computed."""
    if position_ids is None or config.modernbert is None or not values_readable(position_ids):
        return
    places = torch.arange(position_ids.shape[-1], device=position_ids.device) if packing is None else packing.places
    if not bool((position_ids == places).all()):
        raise ValueError(
            "position_ids: expected 0, 1, 2, ... in every sequence, since positions are rotary, got others. Omit "
            "position_ids."
        )


def checked_head_mask(head_mask: object, layers: int, heads: int) -> Tensor:
    """Returns `head_mask`, (H) or (layers, H), as (layers, H); raises TypeError or ValueError for another value."""
    check_tensor("head_mask", head_mask, "a torch.Tensor or None")
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(
            f"head_mask: expected shape ({heads},) or ({layers}, {heads}), got shape {tuple(head_mask.shape)}"
        )
    return head_mask.expand(layers, heads)


def checked_context_ids(config, context_ids: Tensor | None, batch: int) -> Tensor:
    """Returns `context_ids`, (B) or (B, 1), as (B); raises TypeError or ValueError if they are None or invalid."""
    if context_ids is None:
        raise ValueError(
            f"context_ids: expected one id per sequence, 0 to {config.num_contexts - 1}, got None. "
            "config.context_id(name) returns the id of a context."
        )
    rows = (batch, 1) if isinstance(context_ids, Tensor) and context_ids.dim() == 2 else (batch,)
    check_ids("context_ids", context_ids, rows, config.num_contexts, "num_contexts")
    return context_ids.reshape(-1)


def key_mask(attention_mask: object, shape: tuple[int, ...]) -> Tensor | None:
    """Returns the attention mask (B, L) as booleans, True for tokens; None without padding, if values are read."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask, "a torch.Tensor or None")
    if tuple(attention_mask.shape) != shape:
        raise ValueError(f"attention_mask: expected shape (B, L) = {shape}, got shape {tuple(attention_mask.shape)}")
    visible = attention_mask != 0
    if values_readable(attention_mask):
        if bool((visible & (attention_mask != 1)).any()):
            raise ValueError("attention_mask: expected 1 for tokens and 0 for padding, got values other than 0 and 1")
        if bool(visible.all()):
            return None
    return visible
