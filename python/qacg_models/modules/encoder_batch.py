"""The checked inputs of an encoder, padded or packed."""

from dataclasses import dataclass, replace

from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.modules.input_checks import check_encoder_inputs, check_packed_inputs, check_segments, key_mask
from qacg_models.modules.packing import Packing, pack_visible, packing_of


@dataclass(frozen=True)
class EncoderBatch:
    """The tokens of a batch as the encoder computes them. N is B, L if padded and T if packed.

    Attributes:
        size: B, the number of sequences.
        input_ids: (N), or None with inputs_embeds.
        inputs_embeds: (N, hidden), or None with input_ids.
        token_type_ids: (N); None: all 0.
        position_ids: (N); None: 0 to L - 1 of a padded batch.
        layout: the packing; or, if padded, (B, L) booleans, True for tokens; or None without padding.
        padded_shape: (B, L) of the padded batch that was packed to leave out its padding; else None.
        token_indices: (T,) int64, the position b L + l of each token in that batch; else None.
    """

    size: int
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    layout: Packing | Tensor | None
    padded_shape: tuple[int, int] | None = None
    token_indices: Tensor | None = None

    @property
    def mask(self) -> Packing | Tensor | None:
        """The layout for the layers: a packing, booleans (B, 1, 1, L), or None."""
        return self.layout[:, None, None, :] if isinstance(self.layout, Tensor) else self.layout

    def for_questions(self, text_ids: Tensor) -> tuple["EncoderBatch", Tensor]:
        """The batch with the layout of the texts of N questions, and the rows of its states in those of this batch.

        Args:
            text_ids: (N) int64, the text of each question.
        """
        if not isinstance(self.layout, Packing):
            layout = None if self.layout is None else self.layout.index_select(0, text_ids)
            return replace(self, size=text_ids.shape[0], layout=layout), text_ids
        packing, rows = self.layout.repeated(text_ids)
        if self.padded_shape is None:
            return replace(self, size=text_ids.shape[0], layout=packing), rows
        length = self.padded_shape[1]
        indices = packing.sequences * length + self.token_indices.index_select(0, rows) % length
        shape = (text_ids.shape[0], length)
        return replace(self, size=shape[0], layout=packing, padded_shape=shape, token_indices=indices), rows

    def only_first_needed(self, config, output_hidden_states: bool) -> bool:
        """Whether the pooled output needs only the first token of each sequence after the last attention."""
        return isinstance(self.layout, Packing) and config.pooler == "cls" and not output_hidden_states

    def pooled_from(self, hidden_states: Tensor, first_only: bool) -> tuple[Tensor, Packing | Tensor | None]:
        """The inputs of the pooler: the last hidden states and their layout.

        If only first tokens were computed, (B, hidden), they are a padded batch of one token each.
        """
        if first_only:
            return self.layout.cleared(hidden_states).unsqueeze(1), None
        return hidden_states, self.layout

    def restored(self, x: Tensor) -> Tensor:
        """Per-token values (N, ...) in the form of the caller's batch: (B, L, ...) with 0 at padding, or (T, ...)."""
        if self.padded_shape is None:
            return x
        batch, length = self.padded_shape
        padded = x.new_zeros((batch * length, *x.shape[1:]))
        return padded.index_copy(0, self.token_indices, x).unflatten(0, (batch, length))

    def restored_rows(self, x: Tensor) -> Tensor:
        """Per-head values, (B, H, L, 1) or packed (T, H, 1), in the form of the caller's batch: (B, H, L) or (T, H)."""
        x = x.squeeze(-1)
        return x if self.padded_shape is None else self.restored(x).transpose(1, 2)


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
) -> EncoderBatch:
    """Checks the arguments of an encoder's `forward`, which describes them.

    Args:
        leave_out_padding: pack a batch that has padding. On a GPU, where this would synchronise, and under
            torch.compile, where it would break the graph, the batch stays padded.

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
                    f"got {packing.max_seqlen}"
                )
            position_ids = packing.places
        return EncoderBatch(packing.batch, input_ids, inputs_embeds, token_type_ids, position_ids, packing)
    if max_seqlen is not None:
        raise ValueError("max_seqlen: expected both, or neither for a padded batch, got a length without cu_seqlens")
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

    return EncoderBatch(
        shape[0], packed(input_ids), packed(inputs_embeds), packed(token_type_ids), places, packing, shape, indices
    )
