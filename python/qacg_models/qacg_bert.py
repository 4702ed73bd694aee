"""QACG-BERT (Wu and Ong, 2021): BERT whose self-attention adds a gated sigmoid map over a context.

It differs from BERT in three places:
- every sequence has a context id, whose embedding is given to all layers;
- layer i mixes it with the hidden states, c = W_i [Ec ; X] + b_i + Ec, always from the same embedding Ec;
- self-attention is A = softmax(T) + lambda * alpha * sigmoid(Tc), with Tc from queries and keys of c.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_kernels.nn import GATE_STD, GateLayer
from qacg_models.bert_layers import POOLERS, BertEmbeddings, BertIntermediate, BertResidualOutput
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.configuration import QACGBertConfig
from qacg_models.input_checks import check_ids, key_mask
from qacg_models.outputs import QACGBertModelOutput, QACGBertSequenceClassifierOutput
from qacg_models.quasi_self_attention import IMPLEMENTATIONS, QuasiSelfAttention


class QACGBertAttention(nn.Module):
    """The attention block. The odd names `self` and `output` are those of BERT checkpoints."""

    def __init__(self, config: QACGBertConfig):
        super().__init__()
        self.self = QuasiSelfAttention(config)
        self.output = BertResidualOutput(config, config.hidden_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, context: Tensor, output_attentions: bool):
        """(B, L, hidden) twice to (B, L, hidden), and what the self-attention returns beside it."""
        attended, *maps_and_lambda = self.self(
            hidden_states, mask, None, context, output_attentions=output_attentions
        )
        return self.output(attended, hidden_states), *maps_and_lambda


class QACGBertLayer(GradientCheckpointingLayer):
    """Context mixing, attention block, feed-forward block."""

    def __init__(self, config: QACGBertConfig):
        super().__init__()
        self.attention = QACGBertAttention(config)
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: Tensor,
        context_embedding: Tensor,
        context_layer: nn.Linear,
        mask: Tensor | None,
        output_attentions: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor]:
        """One layer.

        Args:
            hidden_states: (B, L, hidden).
            context_embedding: (B, hidden), one per sequence.
            context_layer: 2 hidden to hidden. The encoder owns it, as in checkpoints; it is applied here so
                that gradient checkpointing need not keep the mixed context of every layer.
            mask: None or boolean (B, 1, 1, L).

        Returns:
            hidden states (B, L, hidden); A, P, lambda * G, each (B, H, L, L) or None; lambda (B, H, L, 1).
        """
        context = mix_context(context_layer, context_embedding, hidden_states)
        attended, *maps_and_lambda = self.attention(hidden_states, mask, context, output_attentions)
        return self.output(self.intermediate(attended), attended), *maps_and_lambda


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


class QACGBertEncoder(nn.Module):
    """The layers, and the context layer of each."""

    def __init__(self, config: QACGBertConfig):
        super().__init__()
        layers = range(config.num_hidden_layers)
        self.layer = nn.ModuleList(QACGBertLayer(config) for _ in layers)
        self.context_layer = nn.ModuleList(
            nn.Linear(2 * config.hidden_size, config.hidden_size) for _ in layers
        )

    def forward(
        self, hidden_states: Tensor, context_embedding: Tensor, mask: Tensor | None, output_attentions: bool
    ):
        """Runs all layers.

        Args: as for `QACGBertLayer`.

        Returns:
            Lists over layers: hidden states (B, L, hidden), the input first; triples of maps (B, H, L, L), of
            None where not asked for; lambda (B, H, L).
        """
        every_hidden, every_map, every_lambda = [hidden_states], [], []
        for layer, context_layer in zip(self.layer, self.context_layer):
            hidden, *maps, lam = layer(
                every_hidden[-1], context_embedding, context_layer, mask, output_attentions
            )
            every_hidden.append(hidden)
            every_map.append(maps)
            every_lambda.append(lam.squeeze(-1))
        return every_hidden, every_map, every_lambda


class QACGBertPreTrainedModel(CheckpointLoading, PreTrainedModel):
    """Configuration, initial weights and choice of implementation for the models of this file.

    `attn_implementation` is "fused" (the default) or "eager"; like every such choice in transformers it is
    made when a model is built or loaded, or by `set_attn_implementation`, and is not saved. With
    `config.output_attentions` set and no choice made it is "eager", as transformers has it; asking one call
    for its maps works with both.
    """

    config: QACGBertConfig
    config_class = QACGBertConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    _no_split_modules = ("BertEmbeddings", "QACGBertLayer")

    @classmethod
    def _can_set_attn_implementation(cls) -> bool:
        # Transformers would look in this file's source for its own dispatcher, which has no context queries.
        return True

    def get_correct_attn_implementation(
        self, requested_attention: str | None, is_init_check: bool = False
    ) -> str:
        """Transformers' check of the name, narrowed to what these models have."""
        if requested_attention is None:
            return "eager" if self.config.output_attentions else "fused"
        if requested_attention not in IMPLEMENTATIONS:
            known = ", ".join(map(repr, IMPLEMENTATIONS))
            raise ValueError(f"attn_implementation: got {requested_attention!r}, wanted one of {known}")
        return requested_attention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, GateLayer):
            init.normal_(module.weight, mean=0.0, std=GATE_STD)


class QACGBertModel(QACGBertPreTrainedModel):
    """Embeddings, encoder and pooler.

    Args:
        config: sizes and variants; checked again here, since fields may have been set since it was made.
    """

    def __init__(self, config: QACGBertConfig):
        super().__init__(config)
        config.check()
        self.embeddings = BertEmbeddings(config)
        self.context_embeddings = nn.Embedding(config.num_contexts, config.hidden_size)
        self.encoder = QACGBertEncoder(config)
        self.pooler = POOLERS[config.pooler](config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        output_attentions: bool | None = None,
        output_lambda: bool = False,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QACGBertModelOutput | tuple[Tensor, ...]:
        """Encodes a padded batch.

        Args:
            input_ids: (B, L) below vocab_size, L at most max_position_embeddings.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) below type_vocab_size; None: all 0.
            context_ids: (B) or (B, 1), ids of `config.contexts`; see `config.context_id`.
            position_ids: (B, L) or (1, L); None: 0 to L - 1.
            output_attentions: return A, P and lambda * G of every layer; None: as the configuration says.
            output_lambda: return lambda of every layer.
            output_hidden_states: return the embeddings and every layer's output; None: as configured.
            return_dict: False for a plain tuple; None: as configured.

        Raises:
            TypeError, ValueError: naming the argument, what came and what was wanted. Values are looked at on
                the CPU and outside torch.compile only, as elsewhere that would synchronise or break a graph.
        """
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        self._check_inputs(input_ids, token_type_ids, context_ids, position_ids)
        visible = key_mask(attention_mask, tuple(input_ids.shape))
        mask = None if visible is None else visible[:, None, None, :]
        context_embedding = self.context_embeddings(context_ids.reshape(-1))

        embedded = self.embeddings(input_ids, token_type_ids, position_ids)
        every_hidden, every_map, every_lambda = self.encoder(
            embedded, context_embedding, mask, bool(output_attentions)
        )
        attentions, softmax_maps, quasi_maps = zip(*every_map) if output_attentions else (None, None, None)
        output = QACGBertModelOutput(
            last_hidden_state=every_hidden[-1],
            pooler_output=self.pooler(every_hidden[-1], visible),
            hidden_states=tuple(every_hidden) if output_hidden_states else None,
            attentions=attentions,
            softmax_maps=softmax_maps,
            quasi_maps=quasi_maps,
            lambdas=tuple(every_lambda) if output_lambda else None,
        )
        return output if _as_dict(return_dict, self.config) else output.to_tuple()

    def _check_inputs(self, input_ids, token_type_ids, context_ids, position_ids) -> None:
        config = self.config
        check_ids("input_ids", input_ids, None, config.vocab_size, "vocab_size")
        batch, length = input_ids.shape
        if position_ids is not None:
            one_for_all = isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,)
            rows, limit = (1 if one_for_all else batch, length), config.max_position_embeddings
            check_ids("position_ids", position_ids, rows, limit, "max_position_embeddings")
        elif length > config.max_position_embeddings:
            raise ValueError(
                f"input_ids: got sequences of {length} tokens, wanted at most "
                f"max_position_embeddings = {config.max_position_embeddings}"
            )
        if token_type_ids is not None:
            check_ids(
                "token_type_ids", token_type_ids, (batch, length), config.type_vocab_size, "type_vocab_size"
            )
        if context_ids is None:
            raise ValueError(
                f"context_ids: got None, wanted one id per sequence, 0 to {config.num_contexts - 1}; "
                "config.context_id(name) gives the id of a context"
            )
        rows = (batch, 1) if isinstance(context_ids, Tensor) and context_ids.dim() == 2 else (batch,)
        check_ids("context_ids", context_ids, rows, config.num_contexts, "num_contexts")


class QACGBertForSequenceClassification(QACGBertPreTrainedModel):
    """QACG-BERT with a linear classifier on the pooled output."""

    def __init__(self, config: QACGBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = QACGBertModel(config)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_lambda: bool = False,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QACGBertSequenceClassifierOutput | tuple[Tensor, ...]:
        """Classifies a padded batch.

        Args:
            labels: (B) below num_labels, or -100 for rows that the loss leaves out; None: no loss.
            Others: as for `QACGBertModel`.

        Raises:
            TypeError, ValueError: as for `QACGBertModel`.
        """
        encoded = self.bert(
            input_ids,
            attention_mask,
            token_type_ids,
            context_ids,
            position_ids,
            output_attentions=output_attentions,
            output_lambda=output_lambda,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(encoded.pooler_output))
        output = QACGBertSequenceClassifierOutput(
            loss=None if labels is None else F.cross_entropy(logits, labels),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            softmax_maps=encoded.softmax_maps,
            quasi_maps=encoded.quasi_maps,
            lambdas=encoded.lambdas,
        )
        return output if _as_dict(return_dict, self.config) else output.to_tuple()


def _as_dict(return_dict: bool | None, config: QACGBertConfig) -> bool:
    return bool(config.return_dict if return_dict is None else return_dict)
