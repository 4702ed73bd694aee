"""A BERT that uses the aspect after its last layer.

Its classifier reads P * (1 + E): the pooled output, scaled by a learned embedding of the context.
"""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput
from transformers.utils import can_return_tuple

from qacg_models.models.bert import BertModel
from qacg_models.models.context_bert import ContextConfig
from qacg_models.models.base import EncoderPreTrainedModel, classification_loss, classifier_dropout
from qacg_models.layers.batch import checked_context_ids
from qacg_models.layers.attention import IMPLEMENTATIONS


class ToyBertConfig(ContextConfig):
    """Configuration of the toy BERT: the fields of `ContextConfig` and no others."""

    model_type = "toy_bert"

    def __init__(self, **kwargs: Any):  # documented and checked in ContextConfig
        super().__init__(**kwargs)


class ToyBertForSequenceClassification(EncoderPreTrainedModel):
    """BERT with a linear classifier on the pooled output, which the context scales."""

    config: ToyBertConfig
    config_class = ToyBertConfig
    implementations: ClassVar = IMPLEMENTATIONS
    card_task = "text-classification"
    _no_split_modules = ("BertEmbeddings", "BertLayer")

    def __init__(self, config: ToyBertConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.bert = BertModel(config)
        self.context_scale = nn.Embedding(config.num_contexts, config.hidden_size)
        self.dropout = classifier_dropout(config)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classifies the sequences of a padded or packed batch; see `BertModel` for the other arguments.

        Args:
            context_ids: (B) or (B, 1), ids of `config.contexts`.
            labels: (B), see `classification_loss`; None: no loss.
        """
        pooled = self.bert(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            pooled_only=True,
            return_dict=True,
        ).pooler_output
        scale = 1 + self.context_scale(checked_context_ids(self.config, context_ids, len(pooled)))
        logits = self.classifier(self.dropout(pooled * scale))
        loss = None if labels is None else classification_loss(logits, labels, self.config.problem_type)
        return SequenceClassifierOutput(loss=loss, logits=logits)
