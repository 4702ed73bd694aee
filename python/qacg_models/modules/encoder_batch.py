"""What an encoder is given, checked and brought into the form it runs on: padded, or packed."""

from dataclasses import dataclass

from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable
from qacg_models.modules.input_checks import check_encoder_inputs, check_packed_inputs, check_segments, key_mask
from qacg_models.modules.packing import Packing, pack_visible, packing_of


@dataclass(frozen=True)
class EncoderBatch:
    """The tokens of a batch as an encoder runs them. N stands for B, L padded and for T packed.

    Attributes:
        size: B, the number of sequences.
        input_ids, inputs_embeds: (N) or (N, hidden), one of them.
        token_type_ids, position_ids: (N), or None for the defaults of a padded batch.
        layout: packed: the packing. Padded: (B, L) booleans, True for tokens, or None if all are.
        taken_from: (B, L) of the padded batch whose padding was left out, with `cells`; else None.
        cells: (T,) where its tokens lay, b L + l; else None.
    """

    size: int
    input_ids: Tensor | None
    inputs_embeds: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    layout: Packing | Tensor | None
    taken_from: tuple[int, int] | None = None
    cells: Tensor | None = None

    @property
    def mask(self) -> Packing | Tensor | None:
        """The layout as layers take it: a packing, or booleans (B, 1, 1, L), or None."""
        return self.layout[:, None, None, :] if isinstance(self.layout, Tensor) else self.layout

    def only_first_needed(self, config, output_hidden_states: bool) -> bool:
        """Whether, with the pooled output alone wanted, the last layer need not go on with other tokens."""
        return isinstance(self.layout, Packing) and config.pooler == "cls" and not output_hidden_states

    def pooled_from(self, hidden_states: Tensor, first_only: bool) -> tuple[Tensor, Packing | Tensor | None]:
        """What a pooler is given: the last hidden states and their layout. First tokens alone, (B, hidden), are a
        padded batch of one token each."""
        if first_only:
            return self.layout.cleared(hidden_states).unsqueeze(1), None
        return hidden_states, self.layout

    def restored(self, x: Tensor) -> Tensor:
        """What was computed for each token, (N, ...), in the form of the caller's batch: (B, L, ...), 0 at
        padding that was left out, or (T, ...)."""
        if self.taken_from is None:
            return x
        batch, length = self.taken_from
        padded = x.new_zeros((batch * length, *x.shape[1:]))
        return padded.index_copy(0, self.cells, x).unflatten(0, (batch, length))

    def restored_rows(self, x: Tensor) -> Tensor:
        """What self-attention gives for each head and token, padded (B, H, L, 1) or packed (T, H, 1), in the form
        of the caller's batch: (B, H, L) or (T, H)."""
        x = x.squeeze(-1)
        return x if self.taken_from is None else self.restored(x).transpose(1, 2)


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
    """Checks the arguments of an encoder's forward, which documents them.

    Args:
        leave_out_padding: pack a padded batch that has padding. It stays as it is on a GPU, where that would
            synchronise, and under torch.compile, where it would break the graph.

    Raises:
        TypeError, ValueError: naming the argument, what came and what was wanted.
    """
    if cu_seqlens is not None:
        if attention_mask is not None:
            raise ValueError("attention_mask: got one beside cu_seqlens; packed sequences have no padding to mask")
        tokens = check_packed_inputs(config, input_ids, inputs_embeds, token_type_ids, position_ids)
        check_segments(config, token_type_ids)
        packing = packing_of(cu_seqlens, max_seqlen, tokens)
        if position_ids is None:
            if packing.max_seqlen > config.max_position_embeddings:
                raise ValueError(
                    f"max_seqlen: got {packing.max_seqlen}, wanted at most max_position_embeddings = "
                    f"{config.max_position_embeddings}"
                )
            position_ids = packing.places
        return EncoderBatch(packing.batch, input_ids, inputs_embeds, token_type_ids, position_ids, packing)
    if max_seqlen is not None:
        raise ValueError("max_seqlen: got a length without cu_seqlens, wanted both, or neither for a padded batch")
    shape = check_encoder_inputs(config, input_ids, inputs_embeds, token_type_ids, position_ids)
    check_segments(config, token_type_ids)
    visible = key_mask(attention_mask, shape)
    if not (leave_out_padding and visible is not None and values_readable(visible)):
        return EncoderBatch(shape[0], input_ids, inputs_embeds, token_type_ids, position_ids, visible)

    packing, cells = pack_visible(visible)
    places = cells % shape[1]
    if position_ids is not None:
        places = position_ids.expand(shape).flatten()[cells]

    def packed(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.flatten(0, 1).index_select(0, cells)

    return EncoderBatch(
        shape[0], packed(input_ids), packed(inputs_embeds), packed(token_type_ids), places, packing, shape, cells
    )
