"""The model of an arm: runs MiniLM's lower layers once for a text, then the other layers for each of its aspects."""

from collections.abc import Sequence

import torch
from qacg_models.checkpoints.packaged import located
from qacg_models.checkpoints.permissions import Permissions
from qacg_models.checkpoints.source import open_source
from qacg_models.models.bert import BertForSequenceClassification
from qacg_models.models.qacg_bert import QACGBertForSequenceClassification, QACGBertModel
from qacg_models.modules.packing import Packing, SharedTexts, packing_of
from qacg_models.modules.quasi_self_attention import QuasiSelfAttention, lambda_of_rows
from qacg_models.training.context_start import start_context_layer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from benchmarks.many_aspects.arms import BLIND, HEADS, KEYS, LAYERS, PAIRS, QUASI, SUM, TOKEN, Arm
from benchmarks.many_aspects.batches import Batch, Tokens
from benchmarks.many_aspects.starts import start_context_projections
from qacg_kernels.call.quasi_bias import MINUS_LOG_KEYS
from qacg_kernels.functional import quasi_attention_varlen

# The first position id of an aspect's name that is encoded separately from the text, whose length is then unknown.
ASPECT_POSITION = 64


class StudyAttention(QuasiSelfAttention):
    """Quasi-attention of packed sequences, with variants.

    Attributes:
        context_dropout: whether dropout acts on context queries and context keys.
        softmax_map: whether the quasi-attention map is a softmax instead of a sigmoid.
    """

    context_dropout = True
    softmax_map = False

    def drop_context(self, x: Tensor) -> Tensor:
        return self.dropout(x) if self.context_dropout else x

    def forward(self, projections, mask, texts, *, first_only, **requested):
        if not self.softmax_map:
            return super().forward(projections, mask, texts, first_only=first_only, **requested)
        query, key, value, *context = projections.heads(mask, texts)
        context_query, context_key = map(self.drop_context, context)
        options = {
            "cu_seqlens": mask.cu_seqlens,
            "max_seqlen": mask.max_seqlen,
            "dropout_p": self.dropout.p if self.dropout.training else 0.0,
        }
        off = query.new_zeros(query.shape[:2])
        first = quasi_attention_varlen(query, key, value, query.detach(), key.detach(), off, **options)
        second = quasi_attention_varlen(context_query, context_key, value, query.detach(), key.detach(), off, **options)
        gate = self.gate((query, key, value, context_query, context_key))
        lam = lambda_of_rows(query, key, context_query, context_key, gate)
        out = (first + lam.unsqueeze(-1) * second).flatten(-2)
        return mask.first(out) if first_only else out, None, None, None, None


class _StudyModel(QACGBertModel):
    self_attention = StudyAttention


class _StudyClassifier(QACGBertForSequenceClassification):
    encoder_class = _StudyModel


class AspectModel(nn.Module):
    """Classifies pairs of a packed text and an aspect ("questions").

    The lower layers run once per text.

    Args:
        arm: the compared variant; `Arm.kind` defines how the aspect is passed to the model.
        classes: number of labels.
        contexts: names of the contexts.
        tokenizer: MiniLM's tokenizer.
    """

    def __init__(self, arm: Arm, classes: int, contexts: Sequence[str], tokenizer: PreTrainedTokenizerFast):
        super().__init__()
        self.arm = arm
        fields = {"num_labels": classes, "pooler": "cls"}
        plain = _loaded(BertForSequenceClassification, fields)
        self.config = plain.config
        self.embeddings, self.pooler, self.dropout = plain.bert.embeddings, plain.bert.pooler, plain.dropout
        layers = list(plain.bert.encoder.layer)
        self.lower = nn.ModuleList(layers[: arm.from_layer])
        self.layer = nn.ModuleList(layers[arm.from_layer :])
        self.classifier = nn.Linear(plain.config.hidden_size, classes * (len(contexts) if arm.kind == HEADS else 1))
        nn.init.normal_(self.classifier.weight, std=0.02)
        nn.init.zeros_(self.classifier.bias)
        self.new = [self.classifier]
        names = [tokenizer(name, add_special_tokens=False)["input_ids"] for name in contexts]
        ends = [[*one, tokenizer.sep_token_id] for one in names]
        self.aspects = Tokens.of([{"input_ids": one, "token_type_ids": [1] * len(one)} for one in ends])
        if arm.kind in (TOKEN, SUM, QUASI) and not arm.computed:
            self.context_embeddings = nn.Embedding(len(contexts), plain.config.hidden_size)
            nn.init.normal_(self.context_embeddings.weight, std=plain.config.initializer_range)
            self.new.append(self.context_embeddings)
            if arm.names:
                self._start_from_names()
        if arm.kind == QUASI:
            gate = {"quasi_scale": arm.quasi_scale, "beta": arm.beta, "gamma": arm.gamma}
            self._set_quasi_layers(fields | gate | {"contexts": list(contexts)})

    def _set_quasi_layers(self, fields: dict[str, object]) -> None:
        gated = _loaded(_StudyClassifier, fields).bert.encoder
        self.layer = nn.ModuleList(list(gated.layer)[self.arm.from_layer :])
        self.context_layer = nn.ModuleList(list(gated.context_layer)[self.arm.from_layer :])
        self.new.append(self.context_layer)
        for layer, context_layer in zip(self.layer, self.context_layer):
            attention = layer.attention.self
            attention.softmax_map = self.arm.softmax_map
            attention.quasi_bias = MINUS_LOG_KEYS if self.arm.bias else 0.0
            attention.context_dropout = self.arm.context_dropout
            context = [attention.layer(role) for role in ("context_query", "context_key")]
            self.new += [*context, *(module for name, module in attention.named_children() if "lambda" in name)]
            if self.arm.copied:
                start_context_layer(context_layer)
                start_context_projections(attention, KEYS if self.arm.bias_start else None)

    @torch.no_grad()
    def _start_from_names(self) -> None:
        self.eval()
        self.context_embeddings.weight.copy_(self._name_vectors())

    def _name_vectors(self) -> Tensor:
        """Returns a vector for each aspect, (contexts, hidden_size).

        The vector is the mean hidden state of the tokens of the aspect's name and [SEP]. All vectors are scaled to the
        same norm: the mean norm of the hidden states of these tokens, over the names of all aspects.
        """
        states = self._aspect_states()
        means = self.aspects.packing.total(states) / self.aspects.packing.lengths().unsqueeze(1)
        return F.normalize(means) * states.norm(dim=1).mean()

    def _vectors(self, contexts: Tensor) -> Tensor:
        return self._name_vectors()[contexts] if self.arm.computed else self.context_embeddings(contexts)

    def new_parameters(self) -> set[nn.Parameter]:
        """The parameters that MiniLM does not have."""
        return {parameter for module in self.new for parameter in module.parameters()}

    def _below(self, tokens: Tokens, positions: Tensor) -> Tensor:
        hidden = self.embeddings(tokens.ids, tokens.types, positions)
        for layer in self.lower:
            hidden = layer(hidden, tokens.packing, False)[0]
        return hidden

    def _aspect_states(self) -> Tensor:
        """The hidden states of the names of all contexts at the input of layer `from_layer`, packed."""
        return self._below(self.aspects, self.aspects.positions + ASPECT_POSITION)

    def forward(self, batch: Batch) -> Tensor:
        """Returns the logits of the questions, (N, classes)."""
        hidden, arm = self._below(batch.texts, batch.texts.positions), self.arm
        if arm.kind in (HEADS, BLIND):
            pooled = self.pooler(hidden, batch.texts.packing)
            logits = self.classifier(self.dropout(pooled))[batch.asked]
            if arm.kind == BLIND:
                return logits
            logits = logits.unflatten(1, (self.aspects.packing.batch, -1))
            return logits[torch.arange(len(logits)), batch.contexts]
        vectors = self._vectors(batch.contexts) if arm.kind in (TOKEN, SUM, QUASI) else None
        texts = None
        if arm.kind == QUASI and not arm.added:
            packing, rows = batch.texts.packing.repeated(batch.asked)
            texts = SharedTexts(batch.asked, rows, batch.texts.packing)
        else:
            hidden, packing = self._asked(hidden, batch, vectors)
        if arm.kind == SUM or arm.added:
            hidden = hidden + packing.per_token(vectors).to(hidden.dtype)
        for index, layer in enumerate(self.layer):
            first_only = index == arm.asked_layers - 1
            if arm.kind == QUASI:
                options = {"first_only": first_only, "texts": texts if index == 0 else None}
                hidden = layer(hidden, vectors, self.context_layer[index], packing, False, False, **options)[0]
            else:
                hidden = layer(hidden, packing, False, first_only=first_only)[0]
        return self.classifier(self.dropout(self.pooler(hidden.unsqueeze(1), None)))

    def _asked(self, hidden: Tensor, batch: Batch, vectors: Tensor | None) -> tuple[Tensor, Packing]:
        """Returns the input of layer `from_layer` for each question, packed, and its packing."""
        texts, arm = batch.texts.packing, self.arm
        starts, lengths = texts.cu_seqlens[:-1].long()[batch.asked], texts.lengths().long()[batch.asked]
        if arm.kind == PAIRS and arm.from_layer == 0:  # the texts are pairs
            return hidden, texts
        if arm.kind == PAIRS:
            aspects, states = self.aspects.packing, self._aspect_states()
            others, more = aspects.cu_seqlens[:-1].long()[batch.contexts], aspects.lengths().long()[batch.contexts]
        elif arm.kind == TOKEN:
            states, others = vectors.to(hidden.dtype), torch.arange(len(batch.asked))
            more = torch.ones_like(lengths)
        else:
            states, others, more = hidden[:0], torch.zeros_like(lengths), torch.zeros_like(lengths)
        totals = lengths + more
        cu_seqlens = F.pad(totals.cumsum(0), (1, 0))
        packing = packing_of(cu_seqlens, int(totals.max()), torch.empty(int(cu_seqlens[-1])))
        row, place = packing.sequences, packing.places
        beyond = place - lengths[row]
        index = torch.where(beyond < 0, starts[row] + place, hidden.shape[0] + others[row] + beyond)
        return torch.cat([hidden, states]).index_select(0, index), packing


def _loaded(kind, fields: dict[str, object]):
    model, _ = kind.from_source(
        open_source(located("minilm")),
        overrides=fields,
        permissions=Permissions(ignore_mismatched_sizes=True),
        attn_implementation="fused",
    )
    if model.config.num_hidden_layers != LAYERS:
        raise ValueError(f"minilm: expected {LAYERS} layers, got {model.config.num_hidden_layers}")
    return model
