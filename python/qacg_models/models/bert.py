"""BERT (Devlin et al., 2019) with softmax attention, for sequences and answer spans.

The files of the other encoders describe their differences from this BERT. Parameters have the names of published BERT
checkpoints, so state dicts of such checkpoints load unchanged.

Differences from transformers' BERT:

- ids outside an embedding table raise ValueError (on the CPU and outside torch.compile only);
- sequences longer than max_position_embeddings raise ValueError, unless position_ids are given;
- the embedding of padding is trained;
- the attention output of a query that sees no key is 0.
"""

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import (
    BaseModelOutputWithPooling,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import ModelOutput, can_return_tuple

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.layers.batch import check_integers, checked_head_mask
from qacg_models.layers.embeddings import POOLERS, BertEmbeddings
from qacg_models.layers.encoder import BertEncoder
from qacg_models.models.base import (
    IGNORED,
    EncoderModel,
    EncoderPreTrainedModel,
    SequenceClassifier,
    mean_cross_entropy,
    requested,
)
from qacg_models.models.configuration import EncoderConfig

OUTSIDE_POSITIONS = ("ignore", "clamp")


class PlainBertConfig(EncoderConfig):
    """Configuration of BERT with plain softmax attention.

    The class is not called BertConfig, because transformers registers its own class under that name. This class reads
    configuration files of transformers' BERT too.

    Args:
        outside_positions: what the loss of question answering does with answer positions outside the sequence, "ignore"
            or "clamp"; see `span_loss`.
        answer_pooler: whether `BertForQuestionAnswering` has the pooler of published checkpoints, which is loaded and
            saved, but neither run nor trained.
        **kwargs: fields of `EncoderConfig`.

    Example:
        >>> PlainBertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, num_labels=3).num_labels
        3
    """

    model_type = "plain_bert"

    def __init__(self, *, outside_positions: str = "ignore", answer_pooler: bool = False, **kwargs: Any):
        self.outside_positions = outside_positions
        self.answer_pooler = answer_pooler
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("outside_positions", self.outside_positions, OUTSIDE_POSITIONS)
        check_flag("answer_pooler", self.answer_pooler)


class BertModel(EncoderModel):
    """BERT without a head: embeddings, encoder and pooler.

    Args:
        config: sizes, dropout probabilities and the kind of pooler.
        add_pooling_layer: False omits the pooler; `pooler_output` is then None.

    Example:
        >>> import torch
        >>> from qacg_models import PlainBertConfig
        >>> config = PlainBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> BertModel(config).eval()(torch.tensor([[1, 2, 3]])).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

    config: PlainBertConfig
    output_class = BaseModelOutputWithPooling

    def __init__(self, config: PlainBertConfig, add_pooling_layer: bool = True):
        super().__init__(config)
        config.check()  # again: fields may have been set since the configuration was built
        self.embeddings = BertEmbeddings(config)
        self.encoder = BertEncoder(config)
        self.pooler = POOLERS[config.pooler](config) if add_pooling_layer else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        head_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        pooled_only: bool = False,
        tokens_only: bool = False,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encodes a padded or a packed batch.

        Args:
            input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
            position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            head_mask: (H) or (layers, H), a factor for the attention matrix of each head; None: all heads are kept.
            cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch of T tokens, whose other inputs and outputs
                are (T) or (T, hidden_size), without attention_mask; `PackingCollator` builds it. None: a padded batch.
            max_seqlen: at least the length of the longest packed sequence, at most max_position_embeddings; None: read
                from cu_seqlens, on the CPU and outside torch.compile only. A padded batch requires None.
            pooled_only: compute only what pooler_output requires; last_hidden_state is None. For a packed batch (by
                cu_seqlens or `config.unpad`) and the pooler "cls", the last layer then computes first tokens only.
            tokens_only: compute only what last_hidden_state requires, also for padding; pooler_output is None.
            output_attentions: return the attention matrix after dropout and head_mask, (B, H, L, L), of every layer,
                with L = max_seqlen for a packed batch; None: `config.output_attentions`.
            output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.

        Returns:
            A BaseModelOutputWithPooling of transformers; with return_dict=False its fields that are not None.

        Raises:
            TypeError: an argument has the wrong type or dtype; the message names it.
            ValueError: an argument has the wrong shape, device or value; the message names it. Values are checked on
                the CPU and outside torch.compile only.
        """
        output_attentions = requested(output_attentions, self.config.output_attentions)
        output_hidden_states = requested(output_hidden_states, self.config.output_hidden_states)
        pooler = None if tokens_only else self.pooler
        if pooled_only and pooler is None:
            raise ValueError("pooled_only: expected False without a pooler or with tokens_only, got True")
        batch, embedded = self._embedded(
            *(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, cu_seqlens, max_seqlen),
            output_attentions=output_attentions,
            pools=pooler is not None,
        )
        if head_mask is not None:
            head_mask = checked_head_mask(head_mask, self.config.num_hidden_layers, self.config.num_attention_heads)
        first_only = pooled_only and batch.only_first_needed(self.config, output_hidden_states)
        every_hidden, maps = self.encoder(embedded, batch.mask, output_attentions, head_mask, first_only)
        attentions = tuple(attention for (attention,) in maps) if output_attentions else None
        return self._output(
            batch, every_hidden, pooler, pooled_only, output_hidden_states, first_only, attentions=attentions
        )


class BertForSequenceClassification(SequenceClassifier):
    """BERT with a linear classifier on the pooled output.

    Args:
        config: sizes, dropout probabilities and the kind of pooler; `num_labels` or `id2label` gives the classes.

    Example:
        >>> import torch
        >>> from qacg_models import PlainBertConfig
        >>> config = PlainBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> BertForSequenceClassification(config).eval()(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 2])
    """

    config: PlainBertConfig
    encoder_class = BertModel
    output_class = SequenceClassifierOutput

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> ModelOutput:
        """Classifies the sequences of a padded or packed batch.

        Args:
            input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
            position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch of T tokens, whose other inputs are (T) or
                (T, hidden_size), without attention_mask; `PackingCollator` builds it. None: a padded batch.
            max_seqlen: at least the length of the longest packed sequence, at most max_position_embeddings; None: read
                from cu_seqlens, on the CPU and outside torch.compile only. A padded batch requires None.
            labels: (B) int64 or int32 from 0 to num_labels - 1, or -100 for sequences that the loss leaves out; None:
                no loss.
            output_attentions: return the attention matrix after dropout of every layer, (B, H, L, L), with
                L = max_seqlen for a packed batch; None: `config.output_attentions`.
            output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.

        Returns:
            A SequenceClassifierOutput of transformers; with return_dict=False its fields that are not None.

        Raises:
            TypeError: an argument has the wrong type or dtype; the message names it.
            ValueError: an argument has the wrong shape, device or value; the message names it. Values are checked on
                the CPU and outside torch.compile only.
        """
        return self._classify(
            labels,
            output_hidden_states,
            *(input_ids, attention_mask, token_type_ids, position_ids),
            inputs_embeds=inputs_embeds,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            output_attentions=output_attentions,
        )


def span_loss(
    start_logits: Tensor,
    end_logits: Tensor,
    start_positions: Tensor | None,
    end_positions: Tensor | None,
    outside: str,
) -> Tensor | None:
    """Returns the mean of the cross-entropies of the first and the last token of an answer; None without positions.

    Logits are (B, L), positions (B) or (B, 1) int64 or int32. Each cross-entropy is averaged over the batch, without
    positions of L or more, whose answers are in another window of a long document. With outside="ignore", positions
    below 0 are left out too, and the average of no positions is 0. "clamp", as published, moves positions below 0 to
    the first token, and the average of no positions is NaN.

    Raises:
        ValueError: positions are missing or have a wrong shape; the message names the argument.
    """
    if (start_positions is None) != (end_positions is None):
        given, missing = ("start", "end") if end_positions is None else ("end", "start")
        raise ValueError(f"{missing}_positions: expected a tensor if {given}_positions is given, got None. Pass both.")
    if start_positions is None or end_positions is None:
        return None
    batch, length = start_logits.shape
    losses = []
    for name, logits, positions in (
        ("start_positions", start_logits, start_positions),
        ("end_positions", end_logits, end_positions),
    ):
        check_integers(name, positions)
        if tuple(positions.shape) not in ((batch,), (batch, 1)):
            raise ValueError(f"{name}: expected shape ({batch},) or ({batch}, 1), got shape {tuple(positions.shape)}")
        positions = positions.long().reshape(-1)
        if outside == "clamp":
            losses.append(F.cross_entropy(logits, positions.clamp(0, length), ignore_index=length))
        else:
            absent = (positions < 0) | (positions >= length)
            losses.append(mean_cross_entropy(logits, positions.masked_fill(absent, IGNORED)))
    return (losses[0] + losses[1]) / 2


class BertForQuestionAnswering(EncoderPreTrainedModel):
    """BERT with two logits per token: one for the start and one for the end of an answer.

    By default the model has no pooler. With `config.answer_pooler` it has a pooler, which is loaded and saved, but not
    used and not trained.

    Args:
        config: sizes, dropout probabilities, `outside_positions` and `answer_pooler`.

    Example:
        >>> import torch
        >>> from qacg_models import PlainBertConfig
        >>> config = PlainBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> BertForQuestionAnswering(config).eval()(torch.tensor([[1, 2, 3]])).start_logits.shape
        torch.Size([1, 3])
    """

    config: PlainBertConfig
    card_task = "question-answering"
    _keys_to_ignore_on_load_unexpected: ClassVar = [
        *EncoderPreTrainedModel._keys_to_ignore_on_load_unexpected,
        r"^(bert\.)?pooler\.",
    ]

    def __init__(self, config: PlainBertConfig):
        super().__init__(config)
        self.bert = BertModel(config, add_pooling_layer=config.answer_pooler)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.freeze_unread()
        self.post_init()

    def freeze_unread(self) -> None:
        """Freezes the pooler, if there is one, for whose gradient distributed training would wait."""
        if self.bert.pooler is not None:
            self.bert.pooler.requires_grad_(False)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Scores each token of a padded batch as the first and as the last token of an answer.

        Args:
            input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
            position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            start_positions: (B) or (B, 1) int64 or int32, index of the first token of each answer; for positions
                outside the sequence see `config.outside_positions`. None, like end_positions: no loss.
            end_positions: (B) or (B, 1) int64 or int32, index of the last token of each answer.
            output_attentions: return the attention matrices, (B, H, L, L) each; None: `config.output_attentions`.
            output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.

        Returns:
            A QuestionAnsweringModelOutput of transformers, logits (B, L); with return_dict=False its fields that are
            not None.

        Raises:
            TypeError: an argument has the wrong type or dtype; the message names it.
            ValueError: an argument has the wrong shape or value; the message names it. Values are checked on the CPU
                and outside torch.compile only.
        """
        encoded = self.bert(
            *(input_ids, attention_mask, token_type_ids, position_ids),
            inputs_embeds=inputs_embeds,
            tokens_only=True,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        start_logits, end_logits = self.qa_outputs(encoded.last_hidden_state).unbind(-1)
        outside = self.config.outside_positions
        return QuestionAnsweringModelOutput(
            loss=span_loss(start_logits, end_logits, start_positions, end_positions, outside),
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=encoded.hidden_states,
            attentions=encoded.attentions,
        )
