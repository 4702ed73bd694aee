"""QACG-BERT (Wu and Ong, 2021): BERT whose self-attention adds a gated sigmoid map over a context.

It differs from BERT in its encoder (`context_encoder.py`), and in self-attention, which is
A = softmax(T) + lambda * alpha * sigmoid(Tc), with Tc from queries and keys of the context.
"""

from typing import ClassVar

from torch import Tensor, nn

from qacg_models.auto import register
from qacg_models.bert_layers import POOLERS, BertEmbeddings
from qacg_models.configuration import QACGBertConfig
from qacg_models.context_encoder import ContextBertEncoder
from qacg_models.input_checks import check_context_ids, check_encoder_inputs, key_mask
from qacg_models.losses import classification_loss
from qacg_models.outputs import QACGBertModelOutput, QACGBertSequenceClassifierOutput
from qacg_models.pretrained import EncoderPreTrainedModel, as_dict, classifier_dropout
from qacg_models.quasi_self_attention import IMPLEMENTATIONS, QuasiSelfAttention


class QACGBertPreTrainedModel(EncoderPreTrainedModel):
    """Configuration and implementations of the models of this file: "fused" (the default) and "eager"."""

    config: QACGBertConfig
    config_class = QACGBertConfig
    implementations: ClassVar = IMPLEMENTATIONS
    _no_split_modules = ("BertEmbeddings", "ContextBertLayer")


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
        self.encoder = ContextBertEncoder(config, QuasiSelfAttention)
        self.pooler = POOLERS[config.pooler](config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.embeddings.word_embeddings = value

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
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
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
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
        shape = check_encoder_inputs(self.config, input_ids, inputs_embeds, token_type_ids, position_ids)
        check_context_ids(self.config, context_ids, shape[0])
        visible = key_mask(attention_mask, shape)
        mask = None if visible is None else visible[:, None, None, :]
        context_embedding = self.context_embeddings(context_ids.reshape(-1))

        embedded = self.embeddings(input_ids, token_type_ids, position_ids, inputs_embeds)
        every_hidden, every_other = self.encoder(embedded, context_embedding, mask, bool(output_attentions))
        *maps, lambdas = zip(*every_other)
        attentions, softmax_maps, quasi_maps = maps if output_attentions else (None, None, None)
        output = QACGBertModelOutput(
            last_hidden_state=every_hidden[-1],
            pooler_output=self.pooler(every_hidden[-1], visible),
            hidden_states=tuple(every_hidden) if output_hidden_states else None,
            attentions=attentions,
            softmax_maps=softmax_maps,
            quasi_maps=quasi_maps,
            lambdas=tuple(lam.squeeze(-1) for lam in lambdas) if output_lambda else None,
        )
        return output if as_dict(return_dict, self.config) else output.to_tuple()


class QACGBertForSequenceClassification(QACGBertPreTrainedModel):
    """QACG-BERT with a linear classifier on the pooled output."""

    def __init__(self, config: QACGBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = QACGBertModel(config)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_lambda: bool = False,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QACGBertSequenceClassifierOutput | tuple[Tensor, ...]:
        """Classifies a padded batch.

        Args:
            labels: as `classification_loss` wants them for the configuration's problem_type; None: no loss.
            Others: as for `QACGBertModel`.

        Raises:
            TypeError, ValueError: as for `QACGBertModel`, and for labels.
        """
        encoded = self.bert(
            input_ids,
            attention_mask,
            token_type_ids,
            context_ids,
            position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_lambda=output_lambda,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(encoded.pooler_output))
        output = QACGBertSequenceClassifierOutput(
            loss=None if labels is None else classification_loss(logits, labels, self.config.problem_type),
            logits=logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
            softmax_maps=encoded.softmax_maps,
            quasi_maps=encoded.quasi_maps,
            lambdas=encoded.lambdas,
        )
        return output if as_dict(return_dict, self.config) else output.to_tuple()


register(
    QACGBertConfig,
    AutoModel=QACGBertModel,
    AutoModelForSequenceClassification=QACGBertForSequenceClassification,
)
