"""Who runs end-to-end steps: every provider on the same weights, plain BERT beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import qacg_models  # each model when it is asked for, and transformers with it
import torch
from torch import Tensor, nn

from benchmarks.steps.names import BERT, COMPILED, EAGER, FOLDED, FUSED, INFERENCE, PACKED, RELEASED
from benchmarks.steps.released import ReleasedQACGBert
from benchmarks.steps.sentences import VOCABULARY, Batch

LABELS = 3


@dataclass(frozen=True)
class Size:
    """Sizes of an encoder."""

    layers: int
    hidden: int
    heads: int
    intermediate: int


SIZES = {
    "minilm": Size(6, 384, 12, 1536),
    "base-2": Size(2, 768, 12, 3072),
    "base-12": Size(12, 768, 12, 3072),
    "tiny": Size(2, 24, 3, 40),  # for --quick
}


@dataclass(frozen=True)
class Runner:
    """One provider, built.

    Attributes:
        model: whose gradients a step makes, and whose mode is set before it.
        run: a batch to the loss and the logits.
        prepare: called after the mode has changed, before any step.
    """

    model: nn.Module
    run: Callable[[Batch], tuple[Tensor, Tensor]]
    prepare: Callable[[], object] = lambda: None


def _padded(model: nn.Module) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    return lambda batch: model(**batch.padded, return_dict=False)[:2]


def _packed(model: nn.Module) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    return lambda batch: model(**batch.packed, return_dict=False)[:2]


class Builder:
    """Builds providers of one size on the same weights. Each has a model of its own that shares them.

    Args:
        size: of the encoder.
        contexts: how many there are.
    """

    def __init__(self, size: Size, contexts: int):
        self._sizes = {
            "vocab_size": VOCABULARY,
            "hidden_size": size.hidden,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "intermediate_size": size.intermediate,
            "num_labels": LABELS,
        }
        self._contexts = contexts
        torch.manual_seed(0)
        self._weights = self.model("fused", weights=None).state_dict()

    def model(self, implementation: str, weights: dict[str, Tensor] | None = None) -> nn.Module:
        """A QACG-BERT; None: with fresh weights."""
        config = qacg_models.QACGBertConfig(**self._sizes, contexts=self._contexts, attn_implementation=implementation)
        if weights is None:
            return qacg_models.QACGBertForSequenceClassification(config)
        with torch.device("meta"):
            model = qacg_models.QACGBertForSequenceClassification(config)
        model.load_state_dict(weights, assign=True)
        return model

    def exact(self) -> nn.Module:
        """The eager model in float64."""
        return self.model("eager", {name: w.double() for name, w in self._weights.items()})

    def build(self, provider: str) -> Runner:
        """The provider of a name of PROVIDERS."""
        return PROVIDERS[provider](self)

    def released(self) -> Runner:
        model = self.model("eager", self._weights)
        wrapped = ReleasedQACGBert(model)
        return Runner(wrapped, lambda batch: wrapped(**batch.padded)[:2])

    def eager(self) -> Runner:
        model = self.model("eager", self._weights)
        return Runner(model, _padded(model))

    def compiled(self) -> Runner:
        model = self.model("eager", self._weights)
        return Runner(model, _padded(torch.compile(model, dynamic=True)))

    def fused(self) -> Runner:
        model = self.model("fused", self._weights)
        return Runner(model, _padded(model))

    def packed(self) -> Runner:
        model = self.model("fused", self._weights)
        return Runner(model, _packed(model))

    def folded(self) -> Runner:
        from qacg_models.modules.context_fold import fold_context

        model = self.model("fused", self._weights)
        return Runner(model, _packed(model), lambda: fold_context(model))

    def bert(self) -> Runner:
        model = qacg_models.BertForSequenceClassification(qacg_models.PlainBertConfig(**self._sizes))

        def run(batch: Batch) -> tuple[Tensor, Tensor]:
            given = {name: value for name, value in batch.packed.items() if name != "context_ids"}
            return model(**given, return_dict=False)[:2]

        return Runner(model, run)


PROVIDERS = {
    RELEASED: Builder.released,
    EAGER: Builder.eager,
    COMPILED: Builder.compiled,
    FUSED: Builder.fused,
    PACKED: Builder.packed,
    FOLDED: Builder.folded,
    BERT: Builder.bert,
}


def takes(provider: str, mode: str) -> bool:
    """Whether a provider has a mode: the fold is for inference."""
    return provider != FOLDED or mode == INFERENCE
