"""QACG-BERT (Wu and Ong, 2021): BERT whose self-attention adds a gated sigmoid map over a context.

It differs from BERT in its encoder (`context_encoder.py`), and in self-attention, which is
A = softmax(T) + lambda * alpha * sigmoid(Tc), with Tc from queries and keys of the context.
"""

from typing import ClassVar

from torch import Tensor, nn

from qacg_models.configs.qacg_bert import QACGBertConfig
from qacg_models.models.outputs import QACGBertModelOutput, QACGBertSequenceClassifierOutput
from qacg_models.models.pretrained import EncoderPreTrainedModel, as_dict, classifier_dropout
from qacg_models.modules.bert_layers import POOLERS, BertEmbeddings
from qacg_models.modules.context_encoder import ContextBertEncoder
from qacg_models.modules.encoder_batch import read_batch
from qacg_models.modules.input_checks import checked_context_ids
from qacg_models.modules.losses import classification_loss
from qacg_models.modules.quasi_self_attention import IMPLEMENTATIONS, QuasiSelfAttention


class QACGBertPreTrainedModel(EncoderPreTrainedModel):
    """Configuration and implementations of the models of this file: "fused" (the default) and "eager"."""

    config: QACGBertConfig
    config_class = QACGBertConfig
    implementations: ClassVar = IMPLEMENTATIONS
    card_task = "feature-extraction"
    _no_split_modules = ("BertEmbeddings", "ContextBertLayer")


class QACGBertModel(QACGBertPreTrainedModel):
    """QACG-BERT without a head: embeddings, encoder and pooler.

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
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        pooled_only: bool = False,
        output_attentions: bool | None = None,
        output_lambda: bool = False,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QACGBertModelOutput | tuple[Tensor, ...]:
        """Encodes a padded or a packed batch.

        Args:
            input_ids: (B, L) below vocab_size, L at most max_position_embeddings.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) below type_vocab_size; None: all 0.
            context_ids: (B) or (B, 1), ids of `config.contexts`; see `config.context_id`.
            position_ids: (B, L) or (1, L); None: 0 to L - 1.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch: then input_ids, token_type_ids and
                position_ids are (T), inputs_embeds (T, hidden_size), there is no attention_mask, and what is
                returned for each token is packed too. `PackingCollator` makes such batches.
            max_seqlen: length of its longest sequence; None: read from cu_seqlens, where that costs nothing.
            pooled_only: leave out what pooler_output does not need; last_hidden_state is None. With the pooler
                "cls" the last layer of a packed batch then computes no other token beyond its attention.
            output_attentions: return A, P and lambda * G of every layer, (B, H, L, L), L being max_seqlen of a
                packed batch; None: as the configuration says.
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
        batch = read_batch(
            self.config,
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            cu_seqlens,
            max_seqlen,
            leave_out_padding=self.config.unpad and not output_attentions,
        )
        context_embedding = self.context_embeddings(checked_context_ids(self.config, context_ids, batch.size))

        embedded = self.embeddings(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.inputs_embeds)
        first_only = pooled_only and batch.only_first_needed(self.config, output_hidden_states)
        every_hidden, every_other = self.encoder(
            embedded, context_embedding, batch.mask, bool(output_attentions), first_only
        )
        *maps, lambdas = zip(*every_other)
        attentions, softmax_maps, quasi_maps = maps if output_attentions else (None, None, None)
        output = QACGBertModelOutput(
            last_hidden_state=None if pooled_only else batch.restored(every_hidden[-1]),
            pooler_output=self.pooler(*batch.pooled_from(every_hidden[-1], first_only)),
            hidden_states=tuple(map(batch.restored, every_hidden)) if output_hidden_states else None,
            attentions=attentions,
            softmax_maps=softmax_maps,
            quasi_maps=quasi_maps,
            lambdas=tuple(batch.restored_rows(lam) for lam in lambdas) if output_lambda else None,
        )
        return output if as_dict(return_dict, self.config) else output.to_tuple()


class QACGBertForSequenceClassification(QACGBertPreTrainedModel):
    """QACG-BERT with a linear classifier on the pooled output."""

    card_task = "text-classification"

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
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_lambda: bool = False,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> QACGBertSequenceClassifierOutput | tuple[Tensor, ...]:
        """Classifies the sequences of a padded or packed batch.

        Args:
            labels: as `classification_loss` wants them for the configuration's problem_type; None: no loss.
            Others: as for `QACGBertModel`.

        Raises:
            TypeError, ValueError: as for `QACGBertModel`, and for labels.
        """
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        encoded = self.bert(
            input_ids,
            attention_mask,
            token_type_ids,
            context_ids,
            position_ids,
            inputs_embeds=inputs_embeds,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            pooled_only=not output_hidden_states,
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
