"""Base classes of the models that read a context: CG-BERT, QACG-BERT and Aspect-BERT, and of their configurations.

CG-BERT and QACG-BERT are by Wu and Ong (2021). A context, such as an aspect, is given by its id. The models differ from
BERT in their encoder (`layers/encoder.py`). Layers below `config.context_from_layer` are those of BERT. With
`text_ids` these layers run once per text, for all contexts of the text.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput, can_return_tuple

from qacg_kernels.call.validation import check_choice, check_flag
from qacg_models.layers.batch import check_ids, checked_context_ids
from qacg_models.layers.embeddings import POOLERS, BertEmbeddings
from qacg_models.layers.encoder import BertEncoder, ContextBertEncoder
from qacg_models.models.base import ASPECT_SENTIMENT, EncoderModel, SequenceClassifier, requested
from qacg_models.models.configuration import EncoderConfig
from qacg_models.utils.fields import check_integer

CONTEXT_PROJECTIONS = ("hidden", "head")


class ContextConfig(EncoderConfig):
    """Configuration of an encoder that reads a context, such as an aspect, by its id.

    Args:
        contexts: names of the contexts, in the order of their ids; or their number, for the names CONTEXT_0, CONTEXT_1,
            and so on.
        context_standalone: True: the model receives the context by its id only, and raises ValueError for a second
            segment (checked on the CPU and outside torch.compile only). False: inputs may also have the context's name
            as second segment.
        **kwargs: fields of `EncoderConfig`.
    """

    def __init__(self, *, contexts: int | Sequence[str] = 8, context_standalone: bool = False, **kwargs: Any):
        self.contexts = _context_names(contexts)
        self.context_standalone = context_standalone
        super().__init__(**kwargs)

    @property
    def num_contexts(self) -> int:
        """Number of contexts, which is the number of rows of the context embedding."""
        return len(self.contexts)

    def context_id(self, name: str) -> int:
        """Returns the id of a context; raises ValueError for an unknown name."""
        try:
            return self.contexts.index(name)
        except ValueError:
            known = ", ".join(map(repr, self.contexts))
            raise ValueError(f"context: expected one of {known}, got {name!r}") from None

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_flag("context_standalone", self.context_standalone)
        self.contexts = _context_names(self.contexts)


class ContextFromLayerConfig(ContextConfig):
    """Configuration of an encoder whose lower layers are those of BERT, and whose other layers read a context.

    Args:
        context_from_layer: index of the first layer that reads the context, from 0 to num_hidden_layers - 1. With
            context_standalone, the layers before it can run once for all contexts of a text (the argument `text_ids` of
            the model).
        **kwargs: fields of `ContextConfig` and `EncoderConfig`.
    """

    def __init__(self, *, context_from_layer: int = 0, **kwargs: Any):
        self.context_from_layer = context_from_layer
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_integer("context_from_layer", self.context_from_layer, 0, below=self.num_hidden_layers)

    @property
    def shares_texts(self) -> bool:
        """Whether layers before `context_from_layer` can run once per text for all contexts."""
        return self.context_standalone and self.context_from_layer > 0


class GatedContextConfig(ContextFromLayerConfig):
    """Configuration of an encoder whose self-attention reads a context through gates.

    Args:
        context_projection: "hidden" projects the whole context by a matrix (hidden x hidden); "head" projects the slice
            of each head by one shared matrix (head size x head size).
        lambda_bias: whether the linear layers that compute the gates have biases.
        lambda_per_head: True: every head has its own gate weights (the paper); False: all heads share the gate weights
            (the published code).
        **kwargs: fields of `ContextFromLayerConfig`, `ContextConfig` and `EncoderConfig`. `initializer_range` does not
            apply to gate weights, whose initial standard deviation is 0.01.
    """

    def __init__(self, *, context_projection: str, lambda_bias: bool, lambda_per_head: bool = False, **kwargs: Any):
        self.context_projection = context_projection
        self.lambda_bias = lambda_bias
        self.lambda_per_head = lambda_per_head
        super().__init__(**kwargs)

    def check(self) -> None:
        """Raises TypeError or ValueError for the first invalid field."""
        super().check()
        check_choice("context_projection", self.context_projection, CONTEXT_PROJECTIONS)
        for field in ("lambda_bias", "lambda_per_head"):
            check_flag(field, getattr(self, field))


def _context_names(contexts: int | Sequence[str]) -> list[str]:
    """Returns the names of the contexts; an integer is the number of generated names CONTEXT_0, CONTEXT_1, ..."""
    if isinstance(contexts, int) and not isinstance(contexts, bool):
        check_integer("contexts", contexts, 1)
        return [f"CONTEXT_{i}" for i in range(contexts)]
    if isinstance(contexts, str) or not isinstance(contexts, Sequence):
        raise TypeError(f"contexts: expected a list of names or a number of contexts, got {contexts!r}")
    names = list(contexts)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"contexts: expected strings, got the name {name!r} of type {type(name).__name__}")
    if not names:
        raise ValueError("contexts: expected at least one name, got an empty list")
    if twice := sorted(name for name, count in Counter(names).items() if count > 1):
        raise ValueError(f"contexts: expected distinct names, got {', '.join(map(repr, twice))} more than once")
    return names


class ContextBertModel(EncoderModel):
    """Embeddings, an encoder that reads a context, and a pooler; base of the context models.

    Attributes:
        self_attention: class of the self-attention of the layers that read the context, if `new_encoder` reads it.
        map_fields, gate_fields: fields of `output_class` for the maps and for the gates that self-attention returns
            after its output, in this order.
    """

    self_attention: ClassVar[type[nn.Module]]
    map_fields: ClassVar[tuple[str, ...]]
    gate_fields: ClassVar[tuple[str, ...]]

    def __init__(self, config: ContextFromLayerConfig):
        super().__init__(config)
        config.check()  # again: fields may have been set since the configuration was built
        self.embeddings = BertEmbeddings(config)
        self.context_embeddings = nn.Embedding(config.num_contexts, config.hidden_size)
        self.encoder = self.new_encoder(config)
        self.pooler = POOLERS[config.pooler](config)
        self.post_init()

    def new_encoder(self, config: ContextFromLayerConfig) -> BertEncoder:
        """Builds the encoder."""
        return ContextBertEncoder(config, self.self_attention)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        text_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        num_tokens: int | None = None,
        pooled_only: bool = False,
        output_attentions: bool | None = None,
        output_gates: bool = False,
        output_hidden_states: bool | None = None,
    ) -> ModelOutput:
        """Encodes a padded or a packed batch.

        Args:
            input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
            context_ids: (B) or (B, 1) int64 or int32 indices into `config.contexts`; (N) or (N, 1) with text_ids. The
                argument is required. `config.context_id(name)` returns the index of a context.
            position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1.
            text_ids: (N) int64 or int32, for N questions about the B sequences of the batch. Question i is the sequence
                text_ids[i] with the context context_ids[i]. All outputs are those of a batch with N sequences. Layers
                below `config.context_from_layer` run once per sequence. None: one question about each sequence.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch of T tokens, whose other inputs and outputs
                are (T) or (T, hidden_size), without attention_mask; `PackingCollator` builds it. None: a padded batch.
            max_seqlen: at least the length of the longest packed sequence, at most max_position_embeddings; None: read
                from cu_seqlens, on the CPU and outside torch.compile only. A padded batch requires None.
            num_tokens: the number of tokens of the N questions of a packed batch with text_ids; None: read from
                text_ids and cu_seqlens, which synchronises with a GPU. Other batches require None.
            pooled_only: compute only what pooler_output requires; last_hidden_state is None. For a packed batch (by
                cu_seqlens or `config.unpad`) and the pooler "cls", the last layer then computes first tokens only.
            output_attentions: return the attention matrices of every layer, (B, H, L, L) each, with L = max_seqlen
                for a packed batch; None: `config.output_attentions`.
            output_gates: return the gates of every layer, (B, H, L) or packed (T, H) each: `lambdas` in QACG-BERT,
                `query_gates` and `key_gates` in CG-BERT. Aspect-BERT has no gates and raises ValueError.
            output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.

        Returns:
            An object of the class `output_class`; with return_dict=False its fields that are not None.

        Raises:
            TypeError, ValueError: an argument is invalid; the message names it. Values are checked on the CPU and
                outside torch.compile only.
        """
        output_attentions = requested(output_attentions, self.config.output_attentions)
        output_hidden_states = requested(output_hidden_states, self.config.output_hidden_states)
        batch, embedded = self._embedded(
            *(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, cu_seqlens, max_seqlen),
            output_attentions=output_attentions,
        )
        below, plain_maps = self.encoder.plain_layers(embedded, batch.mask, output_attentions)
        hidden_states, text_rows = below[-1], None
        if num_tokens is not None and (text_ids is None or cu_seqlens is None):
            raise ValueError(f"num_tokens: expected None without text_ids and cu_seqlens, got {num_tokens}. Omit it.")
        if text_ids is not None:
            check_ids("text_ids", text_ids, ("N",), batch.size, "the number of texts")
            text_ids = text_ids.long()
            batch, text_rows = batch.for_contexts(text_ids, num_tokens, may_round=not output_attentions)
            below = [x.index_select(0, text_rows) for x in below] if output_hidden_states else []
            plain_maps = [[None if x is None else x.index_select(0, text_ids) for x in maps] for maps in plain_maps]
        context_ids = checked_context_ids(self.config, context_ids, batch.size)
        context_embedding = self.context_embeddings(batch.with_filler(context_ids))
        first_only = pooled_only and batch.only_first_needed(self.config, output_hidden_states)
        above, per_layer = self.encoder(
            hidden_states, context_embedding, batch.mask, text_rows, output_gates, output_attentions, first_only
        )
        plain = [self._without_context(attention, per_layer[0]) for (attention,) in plain_maps]
        found = dict(zip((*self.map_fields, *self.gate_fields), zip(*plain, *per_layer)))
        optional = {field: found[field] for field in self.map_fields if output_attentions}
        if output_gates:
            optional |= {field: tuple(map(batch.restored_gates, found[field])) for field in self.gate_fields}
        states = [*below, *above]
        return self._output(batch, states, self.pooler, pooled_only, output_hidden_states, first_only, **optional)

    def _without_context(self, attention: Tensor | None, others: list[Tensor | None]) -> list[Tensor | None]:
        """Returns the maps and gates of a layer without a context, whose attention matrix is `attention`.

        Other maps and the gates are 0, in the shapes of `others`, those of a layer with a context; None stays None.
        """
        gates = others[len(self.map_fields) :]
        zeros, *no_gates = (None if x is None else torch.zeros_like(x) for x in (attention, *gates))
        maps = {name: attention for name in ("attentions", "softmax_maps")}
        return [*(maps.get(name, zeros) for name in self.map_fields), *no_gates]


class ContextBertForSequenceClassification(SequenceClassifier):
    """A linear classifier on the pooled output of a `ContextBertModel`."""

    card_task = ASPECT_SENTIMENT

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        context_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        *,
        text_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        num_tokens: int | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_gates: bool = False,
        output_hidden_states: bool | None = None,
    ) -> ModelOutput:
        """Classifies the sequences of a padded or packed batch.

        Args:
            input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
            attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
            token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
            context_ids: (B) or (B, 1) int64 or int32 indices into `config.contexts`; (N) or (N, 1) with text_ids. The
                argument is required. `config.context_id(name)` returns the index of a context.
            position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1.
            text_ids: (N) int64 or int32, for N questions about the B sequences of the batch. Question i is the sequence
                text_ids[i] with the context context_ids[i]. Outputs and labels are those of a batch with N sequences.
                Layers below `config.context_from_layer` run once per sequence. None: one question about each sequence.
            inputs_embeds: (B, L, hidden_size), word embeddings in place of input_ids.
            cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch of T tokens, whose other inputs are (T) or
                (T, hidden_size), without attention_mask; `PackingCollator` builds it. None: a padded batch.
            max_seqlen: at least the length of the longest packed sequence, at most max_position_embeddings; None: read
                from cu_seqlens, on the CPU and outside torch.compile only. A padded batch requires None.
            num_tokens: the number of tokens of the N questions of a packed batch with text_ids; None: read from
                text_ids and cu_seqlens, which synchronises with a GPU. Other batches require None.
            labels: (B) int64 or int32 from 0 to num_labels - 1, or -100 for sequences that the loss leaves out; None:
                no loss.
            output_attentions: return the attention matrices of every layer, (B, H, L, L) each, with L = max_seqlen
                for a packed batch; None: `config.output_attentions`.
            output_gates: return the gates of every layer, (B, H, L) or packed (T, H) each: `lambdas` in QACG-BERT,
                `query_gates` and `key_gates` in CG-BERT. Aspect-BERT has no gates and raises ValueError.
            output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.

        Returns:
            An object of the class `output_class`; with return_dict=False its fields that are not None.

        Raises:
            TypeError, ValueError: an argument is invalid; the message names it. Values are checked on the CPU and
                outside torch.compile only.
        """
        return self._classify(
            labels,
            output_hidden_states,
            *(input_ids, attention_mask, token_type_ids, context_ids, position_ids),
            text_ids=text_ids,
            inputs_embeds=inputs_embeds,
            cu_seqlens=cu_seqlens,
            max_seqlen=max_seqlen,
            num_tokens=num_tokens,
            output_attentions=output_attentions,
            output_gates=output_gates,
        )
