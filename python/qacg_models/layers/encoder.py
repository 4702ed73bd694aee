"""The layers of the encoders, which all models share.

A layer of BERT is an attention block and a feed-forward block. Layers below `context_from_layer` are those of BERT in
every model. A context, one embedding Ec per sequence, enters the other layers:

- In CG-BERT and QACG-BERT, each of these layers i has a context layer, which mixes Ec with the hidden states X:
  c = W_i [Ec ; X] + b_i + Ec. The self-attention of layer i reads c and X (`ContextBertLayer.forward`, `context.py`).
- In Aspect-BERT these layers are those of BERT too, and the input of the first of them is X + Ec.

Layers of ModernBERT (Warner et al., 2024; `config.modernbert`) normalise the inputs of both blocks instead of their
outputs, except the input of the first layer's attention block; the output of the last layer is normalised too. Their
feed-forward block is gated, and their attention has rotary positions (`RotaryPositions`). Layers that read a context
read normalised hidden states.

N sequences may be B texts with different contexts. The layers below `context_from_layer` then run once per text.
"""

from collections.abc import Callable, Iterable

from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_models.layers.attention import BertSelfAttention, RotaryPositions
from qacg_models.layers.batch import Packing, per_token
from qacg_models.layers.context import ContextFold, project
from qacg_models.layers.embeddings import Dropout


def layer_norm(config, exists: bool) -> nn.Module:
    """Returns a LayerNorm, or an Identity where a layer has none."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if exists else nn.Identity()


class BertResidualOutput(nn.Module):
    """LayerNorm(residual + dropout(dense(x))), the end of both the attention block and the feed-forward block."""

    def __init__(self, config, input_size: int, norm: bool):
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = layer_norm(config, norm)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Maps x (..., input_size) and residual (..., hidden_size) to (..., hidden_size)."""
        return self.LayerNorm(residual + self.dropout(self.dense(x)))


class AttentionBlock(nn.Module):
    """Self-attention with residual and LayerNorm.

    The attribute names `self` and `output` are those of checkpoints.
    """

    def __init__(self, config, self_attention: nn.Module):
        super().__init__()
        self.self = self_attention
        self.output = BertResidualOutput(config, config.hidden_size, norm=config.modernbert is None)

    def forward(
        self,
        inputs: Tensor | tuple[Tensor, ...],
        residual: Tensor,
        mask: Packing | Tensor | None,
        first_only: bool,
        **options,
    ) -> tuple[Tensor | None, ...]:
        """Returns hidden states, (B, hidden) with first_only, then the other outputs of the self-attention.

        The residual has the shape of the hidden states.
        """
        attended, *others = self.self(inputs, mask, first_only=first_only, **options)
        return self.output(attended, residual), *others


class BertIntermediate(nn.Module):
    """activation(dense(x)), the first layer of the feed-forward block; in ModernBERT, of normalised x and gated."""

    def __init__(self, config):
        super().__init__()
        self.gated = config.modernbert is not None
        self.norm = layer_norm(config, self.gated)
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size * (2 if self.gated else 1))
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """Maps (..., hidden_size) to (..., intermediate_size)."""
        x = self.dense(self.norm(x))
        if not self.gated:
            return self.activation(x)
        x, gate = x.chunk(2, -1)
        return self.activation(x) * gate


class BertLayer(GradientCheckpointingLayer):
    """Layer number `index` of BERT or ModernBERT: attention block and feed-forward block."""

    def __init__(self, config, index: int, self_attention: Callable[..., nn.Module] = BertSelfAttention):
        super().__init__()
        self.positions = RotaryPositions.of(config, index)
        self.attention_norm = layer_norm(config, self.positions is not None and index > 0)
        self.attention = AttentionBlock(config, self_attention(config))
        self.intermediate = BertIntermediate(config)
        last = index == config.num_hidden_layers - 1
        self.output = BertResidualOutput(config, config.intermediate_size, norm=self.positions is None or last)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Maps hidden states (B, L, hidden), or packed (T, hidden), to the same shape; also returns A on request.

        A is (B, H, L, L), after dropout and head_mask, with L = max_seqlen if packed. head_mask (H) has a factor for
        the A of each head. first_only, for a packed batch, computes only first tokens after the attention: the hidden
        states are then (B, hidden).
        """
        options = {"output_attentions": output_attentions, "head_mask": head_mask, "positions": self.positions}
        mask = mask if self.positions is None else self.positions.mask(mask, hidden_states)
        residual = mask.first(hidden_states) if first_only else hidden_states
        normed = self.attention_norm(hidden_states)
        attended, attention = self.attention(normed, residual, mask, first_only, **options)
        return self.output(self.intermediate(attended), attended), attention


class ContextBertLayer(BertLayer):
    """A layer that mixes the context with the hidden states before its self-attention."""

    def __init__(self, config, index: int, self_attention: Callable[..., nn.Module]):
        super().__init__(config, index, self_attention)
        self.fold: ContextFold | None = None  # see fold_context
        self.register_load_state_dict_pre_hook(_drop_fold)

    def train(self, mode: bool = True) -> "ContextBertLayer":
        """Sets training or evaluation mode; training mode drops folded weights, which an update makes stale."""
        if mode:
            self.fold = None
        return super().train(mode)

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        context_layer: nn.Linear,
        mask: Packing | Tensor | None,
        text_rows: Tensor | None,
        output_gates: bool,
        output_attentions: bool,
        first_only: bool = False,
    ) -> tuple[Tensor | None, ...]:
        """Returns the hidden states of the sequences, then the maps and gates of the self-attention, in a flat tuple.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden); of the texts if `text_rows` is given.
            context_embedding: (N, hidden), one per sequence.
            context_layer: the linear layer from 2 * hidden to hidden features that mixes the context. It is called in
                this layer, so that gradient checkpointing does not store the mixed context.
            mask: that of the sequences.
            text_rows: the rows of the N sequences among those of the texts (`EncoderBatch.for_contexts`); None: every
                sequence is a text of its own, so that B = N.
            output_gates, output_attentions: whether gates and maps are returned, or None in their place.
            first_only: return (N, hidden), the first token of each sequence; requires a packed batch.
        """
        mask = mask if self.positions is None else self.positions.mask(mask, hidden_states)
        from_first = first_only and not output_gates and self.attention.self.attends_from_first(mask)
        heads = project(
            self.attention.self,
            context_layer,
            self.attention_norm(hidden_states),
            context_embedding,
            mask,
            text_rows,
            fold=self.fold,
            call_layers=output_attentions,  # layer-wise relevance reads the outputs of the layers
            first_only=from_first,
        )
        heads = heads if self.positions is None else self.positions.rotate(heads, mask)
        if text_rows is None:
            residual = mask.first(hidden_states) if first_only else hidden_states
        else:
            residual = hidden_states.index_select(0, mask.first(text_rows) if first_only else text_rows)
        options = {"output_attentions": output_attentions, "output_gates": output_gates}
        attended, *others = self.attention(heads, residual, mask, first_only, **options)
        return self.output(self.intermediate(attended), attended), *others


def _drop_fold(layer: ContextBertLayer, *_) -> None:
    layer.fold = None


class BertEncoder(nn.Module):
    """The layers of BERT, one after another.

    Args:
        config: sizes and dropout probabilities.
        first: index of the first layer that reads a context; None: no layer does.
        self_attention: class of the self-attention of layers that read a context; None: they are layers of BERT too.
    """

    def __init__(self, config, first: int | None = None, self_attention: Callable[..., nn.Module] | None = None):
        super().__init__()
        self.first = config.num_hidden_layers if first is None else first
        self.layer = nn.ModuleList(
            BertLayer(config, i)
            if i < self.first or self_attention is None
            else ContextBertLayer(config, i, self_attention)
            for i in range(config.num_hidden_layers)
        )

    def forward(self, *inputs) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Runs all layers, like `plain_layers`."""
        return self.plain_layers(*inputs)

    def plain_layers(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Runs the layers below `first`; head_mask is (layers, H), and first_only concerns the last layer.

        Returns the input and the hidden states after each layer; and for each layer a list with its attention matrix
        or None.
        """
        # Positional arguments, since reentrant gradient checkpointing computes no gradients for keyword arguments.
        head_masks = [()] * self.first if head_mask is None else [(one,) for one in head_mask]
        arguments = [(mask, output_attentions, *one) for one in head_masks]
        states, maps = self.run(self.layer[: self.first], hidden_states, arguments, first_only)
        return [hidden_states, *states], maps

    def run(
        self, layers: Iterable[nn.Module], hidden_states: Tensor, arguments: Iterable[tuple], first_only: bool
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Calls each layer with the hidden states and its own arguments; returns its states and its other results."""
        every_hidden, every_other = [], []
        for layer, given in zip(layers, arguments):
            options = {"first_only": True} if first_only and layer is self.layer[-1] else {}
            hidden_states, *others = layer(hidden_states, *given, **options)
            every_hidden.append(hidden_states)
            every_other.append(others)
        return every_hidden, every_other


class ContextBertEncoder(BertEncoder):
    """Layers of BERT below `config.context_from_layer`, then layers that read a context."""

    def __init__(self, config, self_attention: Callable[..., nn.Module]):
        super().__init__(config, config.context_from_layer, self_attention)
        # Layers without a context get an Identity, so that the indices in parameter names are those of the layers.
        self.context_layer = nn.ModuleList(
            nn.Identity() if i < self.first else nn.Linear(2 * config.hidden_size, config.hidden_size)
            for i in range(config.num_hidden_layers)
        )

    def forward(self, hidden_states, context_embedding, mask, text_rows, output_gates, output_attentions, first_only):
        """Runs the layers with a context; returns two lists of their hidden states, and of their maps and gates.

        The arguments are those of `ContextBertLayer.forward`.
        """
        rows = [text_rows] + [None] * len(self.layer)  # the states of further layers differ by context
        arguments = [
            (context_embedding, context_layer, mask, one, output_gates, output_attentions)
            for context_layer, one in zip(self.context_layer[self.first :], rows)
        ]
        return self.run(self.layer[self.first :], hidden_states, arguments, first_only)


class AspectBertEncoder(BertEncoder):
    """Layers of BERT; the context embedding is added to the input of layer `config.context_from_layer`."""

    def __init__(self, config):
        super().__init__(config, config.context_from_layer)

    def forward(self, hidden_states, context_embedding, mask, text_rows, output_gates, output_attentions, first_only):
        """Adds the context embedding, and runs the layers; see `ContextBertEncoder.forward`."""
        if output_gates:
            raise ValueError("output_gates: expected False, got True. Aspect-BERT has no gates.")
        if text_rows is not None:
            hidden_states = hidden_states.index_select(0, text_rows)
        hidden_states = hidden_states + per_token(context_embedding, hidden_states, mask)
        upper = self.layer[self.first :]
        return self.run(upper, hidden_states, [(mask, output_attentions)] * len(upper), first_only)
