"""The checked inputs of an encoder, padded or packed."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.modules.input_checks import check_encoder_inputs, check_packed_inputs, check_segments, key_mask
from qacg_models.modules.packing import Packing, SharedTexts, pack_visible, packing_of


@dataclass(frozen=True)
class EncoderBatch:
    """The tokens of a batch in the form that the encoder processes.

    (*) stands for (B, L) in a padded batch, and for (T) in a packed batch.

    Attributes:
        size: B, the number of the caller's sequences.
        input_ids: (*), or None with inputs_embeds.
        inputs_embeds: (*, hidden), or None with input_ids.
        token_type_ids: (*); None: all 0.
        position_ids: (*), or (1, L) if padded; None, in a padded batch only: 0 to L - 1 in each sequence.
        layout: the packing of a packed batch; for a padded batch (B, L) booleans, True for tokens, or None if every
            position is a token.
        padded_shape: (B, L) of the caller's batch if it was padded and has been packed; else None.
        token_indices: (T - filler,) int64, the index of each token in the flattened batch of the caller: b L + l for
            position l of sequence b. None if padded_shape is None.
        filler: number of filler tokens, which round T up. They follow the caller's tokens, in sequences of their own.
            The model does not return their values.
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

    def for_questions(self, text_ids: Tensor, may_round: bool) -> tuple["EncoderBatch", SharedTexts]:
        """Returns the batch of N questions about the texts of this batch.

        A question is a text with one context. The new batch has the size and the layout of the questions. Callers must
        not read its fields input_ids, inputs_embeds, token_type_ids and position_ids, which are None or those of the
        texts.

        Args:
            text_ids: (N) int64, the index of each question's text in this batch.
            may_round: add filler tokens to a packed batch if `rounding_pays` returns True.

        Returns:
            The new batch, and the `SharedTexts` that expands values of this batch to the questions.
        """
        if not isinstance(self.layout, Packing):
            layout = None if self.layout is None else self.layout.index_select(0, text_ids)
            return replace(self, size=text_ids.shape[0], layout=layout), SharedTexts(text_ids, text_ids, None)
        packing, rows = self.layout.repeated(text_ids)
        questions = EncoderBatch(text_ids.shape[0], None, None, None, None, packing)
        if self.padded_shape is not None:
            length = self.padded_shape[1]
            indices = packing.sequences * length + self.token_indices.index_select(0, rows) % length
            questions = replace(questions, padded_shape=(text_ids.shape[0], length), token_indices=indices)
        if may_round and rounding_pays(text_ids.device):
            questions = questions.rounded()
        if questions.filler:
            rows = pad(rows, (0, questions.filler))  # filler repeats the first token
        return questions, SharedTexts(questions.with_filler(text_ids), rows, self.layout)

    def rounded(self) -> "EncoderBatch":
        """Returns the packed batch with filler tokens, so that T has few different values.

        For T between 2^k and 2^(k + 1), T is rounded up to a multiple of 2^(k - 4). A batch whose T is such a multiple,
        or less than 32, is returned unchanged.
        """
        packing, tokens = self.layout, self.layout.sequences.shape[0]
        filler = -tokens % (1 << max(0, tokens.bit_length() - 5))
        if not filler:
            return self
        ends = [*range(tokens + packing.max_seqlen, tokens + filler, packing.max_seqlen), tokens + filler]
        cu_seqlens = torch.cat([packing.cu_seqlens, packing.cu_seqlens.new_tensor(ends)])

        def extended(x: Tensor | None) -> Tensor | None:
            return None if x is None else pad(x, (*(0, 0) * (x.dim() - 1), 0, filler))

        return replace(
            self,
            input_ids=extended(self.input_ids),
            inputs_embeds=extended(self.inputs_embeds),
            token_type_ids=extended(self.token_type_ids),
            position_ids=extended(self.position_ids),
            layout=Packing.of(cu_seqlens, packing.max_seqlen, tokens + filler),
            filler=filler,
        )

    def with_filler(self, x: Tensor) -> Tensor:
        """Returns x (B), one value per sequence of the caller, then a 0 per filler sequence."""
        return pad(x, (0, self.layout.batch - self.size)) if self.filler else x

    def without_filler(self, x: Tensor) -> Tensor:
        """Returns the first B rows of x, which are the values of the caller's sequences."""
        return x[: self.size] if self.filler else x

    def only_first_needed(self, config, output_hidden_states: bool) -> bool:
        """Returns whether the last layer may compute only first tokens after its attention.

        The result is True if the batch is packed, the pooler is "cls", which reads only the first token of each
        sequence, and hidden states are not returned.
        """
        return isinstance(self.layout, Packing) and config.pooler == "cls" and not output_hidden_states

    def pooled_from(self, hidden_states: Tensor, first_only: bool) -> tuple[Tensor, Packing | Tensor | None]:
        """Returns the inputs of the pooler: the last hidden states and their layout.

        With first_only the hidden states are (B, hidden); they become a padded batch of one token per sequence.
        """
        if first_only:
            return self.layout.cleared(hidden_states).unsqueeze(1), None
        return hidden_states, self.layout

    def restored(self, x: Tensor) -> Tensor:
        """Returns per-token values in the form of the caller's batch, (B, L, ...) or (T, ...).

        The values are 0 at padding that was removed.
        """
        x = x[: x.shape[0] - self.filler] if self.filler else x
        if self.padded_shape is None:
            return x
        batch, length = self.padded_shape
        padded = x.new_zeros((batch * length, *x.shape[1:]))
        return padded.index_copy(0, self.token_indices, x).unflatten(0, (batch, length))

    def restored_rows(self, x: Tensor) -> Tensor:
        """Returns the gates in the form of the caller's batch, (B, H, L) or (T, H).

        Args:
            x: (B, H, L, 1), or packed (T, H, 1).
        """
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
    """Checks the arguments of an encoder's `forward`, and returns them as a batch.

    Args:
        config: configuration of the encoder.
        input_ids: (B, L) or packed (T), int64 or int32; None with inputs_embeds.
        attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding. A packed batch requires None.
        token_type_ids: (B, L) or packed (T); None: all 0.
        position_ids: (B, L), (1, L) or packed (T); None: 0, 1, 2, ... in each sequence.
        inputs_embeds: (B, L, hidden_size) or packed (T, hidden_size); None with input_ids.
        cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch; None: the batch is padded.
        max_seqlen: at least the length of the longest packed sequence; None: read from cu_seqlens, which works
            on the CPU and outside torch.compile only. A padded batch requires None.
        leave_out_padding: pack a batch that has padding. On a GPU, where this would synchronise, and under
            torch.compile, where it would break the graph, the batch stays padded.
        may_round: add filler tokens to a packed batch if `rounding_pays` returns True.

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.
    """
    if cu_seqlens is not None:
        if attention_mask is not None:
            raise ValueError(
                "attention_mask: expected None with cu_seqlens, got a tensor. Packed sequences have no padding."
            )
        tokens = check_packed_inputs(config, input_ids, inputs_embeds, token_type_ids, position_ids)
        check_segments(config, token_type_ids)
        packing = packing_of(cu_seqlens, max_seqlen, tokens)
        if position_ids is None:
            if packing.max_seqlen > config.max_position_embeddings:
                raise ValueError(
                    f"max_seqlen: expected at most max_position_embeddings = {config.max_position_embeddings}, "
                    f"got {packing.max_seqlen}. Shorten the sequences, or pass a smaller max_seqlen."
                )
            position_ids = packing.places
        batch = EncoderBatch(packing.batch, input_ids, inputs_embeds, token_type_ids, position_ids, packing)
        return batch.rounded() if may_round and rounding_pays(tokens.device) else batch
    if max_seqlen is not None:
        raise ValueError(
            f"max_seqlen: expected None without cu_seqlens, got {max_seqlen!r}. Omit max_seqlen for a padded batch."
        )
    shape = check_encoder_inputs(config, input_ids, inputs_embeds, token_type_ids, position_ids)
    check_segments(config, token_type_ids)
    visible = key_mask(attention_mask, shape)
    if not (leave_out_padding and visible is not None and values_readable(visible)):
        return EncoderBatch(shape[0], input_ids, inputs_embeds, token_type_ids, position_ids, visible)

    packing, indices = pack_visible(visible)
    places = indices % shape[1]
    if position_ids is not None:
        places = position_ids.expand(shape).flatten()[indices]

    def packed(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flatten(0, 1).index_select(0, indices)

    batch = EncoderBatch(
        shape[0], packed(input_ids), packed(inputs_embeds), packed(token_type_ids), places, packing, shape, indices
    )
    return batch.rounded() if may_round and rounding_pays(indices.device) else batch
