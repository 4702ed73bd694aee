"""The encoder of the models with a context. It differs from BERT's in two places:

- every sequence has one context embedding Ec, which is given to all layers;
- layer i mixes it with the hidden states, c = W_i [Ec ; X] + b_i + Ec, always from the same Ec, and its
  self-attention gets c beside X.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_models.bert_layers import BertIntermediate, BertResidualOutput
from qacg_models.configuration import ContextConfig


class ContextBertAttention(nn.Module):
    """The attention block. The odd names `self` and `output` are those of BERT checkpoints."""

    def __init__(self, config: ContextConfig, self_attention: Callable[[ContextConfig], nn.Module]):
        super().__init__()
        self.self = self_attention(config)
        self.output = BertResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, context: Tensor, output_attentions: bool):
        """(B, L, hidden) twice to (B, L, hidden), and what the self-attention returns beside it."""
        attended, *others = self.self(
            hidden_states, mask, context=context, output_attentions=output_attentions
        )
        return self.output(attended, hidden_states), *others


class ContextBertLayer(GradientCheckpointingLayer):
    """Context mixing, attention block, feed-forward block."""

    def __init__(self, config: ContextConfig, self_attention: Callable[[ContextConfig], nn.Module]):
        super().__init__()
        self.attention = ContextBertAttention(config, self_attention)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        context_layer: nn.Linear,
        mask: Tensor | None,
        output_attentions: bool,
    ) -> tuple[Tensor | None, ...]:
        """One layer.

        Args:
            hidden_states: (B, L, hidden).
            context_embedding: (B, hidden), one per sequence.
            context_layer: 2 hidden to hidden. The encoder owns it, as in checkpoints; it is applied here so
                that gradient checkpointing need not keep the mixed context of every layer.
            mask: None or boolean (B, 1, 1, L).

        Returns:
            hidden states (B, L, hidden), and what the self-attention returns beside its output.
        """
        context = mix_context(context_layer, context_embedding, hidden_states)
        attended, *others = self.attention(hidden_states, mask, context, output_attentions)
        return self.output(self.intermediate(attended), attended), *others


def mix_context(context_layer: nn.Linear, context_embedding: Tensor, hidden_states: Tensor) -> Tensor:
    """W [Ec ; X] + b + Ec with W = [We | Wx]: We Ec + b + Ec is one row per sequence, not one per token.

    Args:
        context_layer: W (hidden, 2 hidden) and b (hidden).
        context_embedding: Ec, (B, hidden).
        hidden_states: X, (B, L, hidden).

    Returns:
        (B, L, hidden).
    """
    hidden_size = hidden_states.shape[-1]
    weight = context_layer.weight
    per_sequence = (
        F.linear(context_embedding, weight[:, :hidden_size], context_layer.bias) + context_embedding
    )
    return F.linear(hidden_states, weight[:, hidden_size:]) + per_sequence.unsqueeze(1)


class ContextBertEncoder(nn.Module):
    """The layers, and the context layer of each.

    Args:
        self_attention: makes the self-attention of a layer, whose forward is called as
            (hidden states (B, L, hidden), mask (B, 1, 1, L) or None, context=(B, L, hidden),
            output_attentions=bool).
    """

    def __init__(self, config: ContextConfig, self_attention: Callable[[ContextConfig], nn.Module]):
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.layer = nn.ModuleList(ContextBertLayer(config, self_attention) for _ in layers)
        self.context_layer = nn.ModuleList(
            nn.Linear(2 * config.hidden_size, config.hidden_size) for _ in layers
        )

    def forward(
        self, hidden_states: Tensor, context_embedding: Tensor, mask: Tensor | None, output_attentions: bool
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Runs all layers.

        Args: as for `ContextBertLayer`.

        Returns:
            Lists over layers: hidden states (B, L, hidden), the input first; and what the self-attention
            returns beside its output.
        """
        every_hidden, every_other = [hidden_states], []
        for layer, context_layer in zip(self.layer, self.context_layer):
            hidden, *others = layer(
                every_hidden[-1], context_embedding, context_layer, mask, output_attentions
            )
            every_hidden.append(hidden)
            every_other.append(others)
        return every_hidden, every_other
