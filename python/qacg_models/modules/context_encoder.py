"""Encoders that read a context, given as one embedding Ec per sequence.

Layers below `context_from_layer` are those of BERT and do not read the context. In CG-BERT and QACG-BERT, each layer
i >= context_from_layer has a context layer. This linear layer mixes Ec with the hidden states X:
c = W_i [Ec ; X] + b_i + Ec. The self-attention of layer i reads c and X. In Aspect-BERT all layers are those of BERT,
and the input of layer `context_from_layer` is X + Ec.

A question is a text with one context. N questions may be about B texts. The layers below `context_from_layer` then run
once per text.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_kernels.attention_layers import ContextAttention
from qacg_models.modules.bert_encoder import BertLayer
from qacg_models.modules.bert_layers import AttentionBlock, BertIntermediate, BertResidualOutput
from qacg_models.modules.context_fold import (
    ContextFold,
    Projections,
    can_fold,
    can_project_apart,
    mix_context,
    project_apart,
)
from qacg_models.modules.packing import Packing, SharedTexts, first_tokens, per_token


class ContextAttentionBlock(AttentionBlock):
    """The attention block of a layer with a context, for questions.

    A question is a text with one context.
    """

    def forward(
        self,
        hidden_states: Tensor,
        projections: Projections,
        mask: Packing | Tensor | None,
        texts: SharedTexts | None,
        *,
        first_only: bool,
        **options: bool,
    ) -> tuple[Tensor | None, ...]:
        """Runs self-attention, then the dense layer, the residual connection and LayerNorm.

        Args:
            hidden_states: input of the residual connection: hidden states of the texts, (B, L, hidden), or packed
                (T, hidden).
            projections: query, key, value, context query and context key; see `Projections`.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            texts: the text of each question; None: every question has a text of its own, so that B = N.
            first_only: return only the first token of each sequence; requires a packed batch.
            **options: `output_attentions` and `output_gates`, for the self-attention.

        Returns:
            A flat tuple: the hidden states of the questions, then the maps and gates of the self-attention. Hidden
            states are (N, L, hidden), packed (T, hidden), or (N, hidden) with first_only. Maps and gates are None
            unless requested.
        """
        attended, *others = self.self(projections, mask, texts, first_only=first_only, **options)
        if first_only:
            residual = first_tokens(hidden_states, mask, texts)
        else:
            residual = hidden_states if texts is None else texts.gathered(hidden_states)
        return self.output(attended, residual), *others


class ContextBertLayer(GradientCheckpointingLayer):
    """A layer that mixes the context with the hidden states before its self-attention."""

    def __init__(self, config, self_attention: Callable[..., nn.Module]):
        super().__init__()
        self.attention = ContextAttentionBlock(config, self_attention(config))
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config, config.intermediate_size)
        self.fold: ContextFold | None = None  # see fold_context
        self.register_load_state_dict_pre_hook(_drop_fold)

    def train(self, mode: bool = True) -> "ContextBertLayer":
        """Sets training or evaluation mode; training mode drops folded weights.

        An update of the weights would make the folded weights stale.
        """
        if mode:
            self.fold = None
        return super().train(mode)

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        context_layer: nn.Linear,
        mask: Packing | Tensor | None,
        output_gates: bool,
        output_attentions: bool,
        first_only: bool = False,
        texts: SharedTexts | None = None,
    ) -> tuple[Tensor | None, ...]:
        """Runs the layer for N questions.

        A question is a text with one context.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden); of the texts if `texts` is given.
            context_embedding: (N, hidden), one per question. The sequences of the output are the questions.
            context_layer: the linear layer from 2 * hidden to hidden features that mixes the context. As in
                checkpoints, it is a submodule of the encoder. It is called in this layer, so that gradient
                checkpointing does not store the mixed context.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_gates: also return the values of the gates.
            output_attentions: also return attention matrices.
            first_only: return only the first token of each sequence; requires a packed batch.
            texts: the text of each question; None: every question has a text of its own, so that B = N.

        Returns:
            A flat tuple: the hidden states of the questions, then the maps and gates of the self-attention. Hidden
            states are (N, L, hidden), packed (T, hidden), or (N, hidden) with first_only. Maps and gates are None
            unless requested.
        """
        attention, projections = self.attention.self, None
        if not output_attentions:
            if self.fold is not None and not torch.is_grad_enabled() and can_fold(attention, context_layer):
                projections = self.fold(hidden_states, context_embedding)
            elif can_project_apart(attention, context_layer):
                projections = project_apart(attention, context_layer, context_embedding, hidden_states)
        if projections is None:
            if texts is not None:
                hidden_states, texts = texts.gathered(hidden_states), None
            context = mix_context(context_layer, context_embedding, hidden_states, mask)
            # `project` of the base class, since that of a subclass may apply dropout.
            projections = Projections(ContextAttention.project(attention, hidden_states, context), None)
        attended, *others = self.attention(
            hidden_states,
            projections,
            mask,
            texts,
            first_only=first_only,
            output_attentions=output_attentions,
            output_gates=output_gates,
        )
        return self.output(self.intermediate(attended), attended), *others


def _drop_fold(layer: ContextBertLayer, *_) -> None:
    layer.fold = None


class PlainLayers(nn.Module):
    """Base of the encoders: runs the layers below the first layer that reads the context.

    Attributes:
        first: index of the first layer that reads the context.
        layer: all layers of the encoder.
    """

    first: int
    layer: nn.ModuleList

    def plain_layers(
        self, hidden_states: Tensor, mask: Packing | Tensor | None, output_attentions: bool
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Runs the layers below the first layer with a context.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden).
            mask: the packing; or (B, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return the attention matrices.

        Returns:
            Two lists. The first has the input and the hidden states after each of these layers. The second has, for
            each of these layers, the attention matrix after dropout, (B, H, L, L) with L = max_seqlen if packed, or
            None without output_attentions.
        """
        every_hidden, every_map = [hidden_states], []
        for layer in self.layer[: self.first]:
            hidden, attention = layer(every_hidden[-1], mask, output_attentions)
            every_hidden.append(hidden)
            every_map.append(attention)
        return every_hidden, every_map


class ContextBertEncoder(PlainLayers):
    """Layers of BERT below `config.context_from_layer`, then layers that read a context.

    Args:
        config: sizes, context projection and gates; see `GatedContextConfig`.
        self_attention: class of the self-attention, a subclass of `ContextAttention` that is built from the
            configuration. Its `forward` takes the flags `output_attentions` and `output_gates`, and the arguments of
            `ContextAttentionBlock.forward` except the hidden states.
    """

    def __init__(self, config, self_attention: Callable[..., nn.Module]):
        super().__init__()
        self.first = config.context_from_layer
        layers = range(config.num_hidden_layers)
        self.layer = nn.ModuleList(
            BertLayer(config) if i < self.first else ContextBertLayer(config, self_attention) for i in layers
        )
        # Layers without a context get an Identity, so that the indices in parameter names are those of the layers.
        self.context_layer = nn.ModuleList(
            nn.Identity() if i < self.first else nn.Linear(2 * config.hidden_size, config.hidden_size) for i in layers
        )

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        output_gates: bool,
        first_only: bool = False,
        texts: SharedTexts | None = None,
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Runs the layers with a context for N questions.

        A question is a text with one context.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden); of the texts if `texts` is given.
            context_embedding: (N, hidden), one per question. The sequences of the output are the questions.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return attention matrices.
            output_gates: also return the values of the gates.
            first_only: the last layer returns only the first token of each sequence; requires a packed batch.
            texts: the text of each question; None: every question has a text of its own, so that B = N.

        Returns:
            Two lists with an element for each of these layers. The first has the hidden states after the layer,
            (N, L, hidden) or packed (T, hidden); with first_only the last are (N, hidden). The second has a list of the
            maps and gates that the self-attention of the layer returns. Maps and gates are None unless requested.
        """
        every_hidden, every_other = [], []
        for layer, context_layer in zip(self.layer[self.first :], self.context_layer[self.first :]):
            options = {"first_only": True} if first_only and layer is self.layer[-1] else {}
            if texts is not None and not every_hidden:
                options["texts"] = texts  # the states of further layers differ by question
            hidden_states, *others = layer(
                hidden_states, context_embedding, context_layer, mask, output_gates, output_attentions, **options
            )
            every_hidden.append(hidden_states)
            every_other.append(others)
        return every_hidden, every_other


class AspectBertEncoder(PlainLayers):
    """Layers of BERT; the context embedding is added to the input of one of them.

    That layer is `config.context_from_layer`.

    Args:
        config: sizes, dropout probabilities, and `context_from_layer`.
    """

    def __init__(self, config):
        super().__init__()
        self.first = config.context_from_layer
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        output_gates: bool,
        first_only: bool = False,
        texts: SharedTexts | None = None,
    ) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Adds the context embedding, and runs the layers from `config.context_from_layer` on.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden); of the texts if `texts` is given.
            context_embedding: (N, hidden), one per question. The sequences of the output are the questions.
            mask: the packing of the questions; or (N, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return attention matrices.
            output_gates: must be False.
            first_only: the last layer returns only the first token of each sequence; requires a packed batch.
            texts: the text of each question; None: every question has a text of its own, so that B = N.

        Returns:
            Two lists with an element for each of these layers. The first has the hidden states after the layer,
            (N, L, hidden) or packed (T, hidden); with first_only the last are (N, hidden). The second has a list of one
            element: the attention matrix of the layer after dropout, (N, H, L, L) with L = max_seqlen if packed, or
            None without output_attentions.

        Raises:
            ValueError: output_gates is True.
        """
        if output_gates:
            raise ValueError("output_gates: expected False, got True. Aspect-BERT has no gates.")
        if texts is not None:
            hidden_states = texts.gathered(hidden_states)
        hidden_states = hidden_states + per_token(context_embedding, hidden_states, mask)
        every_hidden, every_map = [], []
        for layer in self.layer[self.first :]:
            options = {"first_only": True} if first_only and layer is self.layer[-1] else {}
            hidden_states, attention = layer(hidden_states, mask, output_attentions, **options)
            every_hidden.append(hidden_states)
            every_map.append([attention])
        return every_hidden, every_map
