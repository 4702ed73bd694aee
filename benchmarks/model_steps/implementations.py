"""Implementations of whole model steps. They have the same weights, except plain BERT, which is another model."""

from collections.abc import Callable
from dataclasses import dataclass

import qacg_models  # imports transformers when a model is first used
import torch
from torch import Tensor, nn

from benchmarks.model_steps import BERT, COMPILED, EAGER, FOLDED, FUSED, INFERENCE, PACKED, RELEASED
from benchmarks.model_steps.released import ReleasedQACGBert
from benchmarks.model_steps.sentences import VOCABULARY, Batch

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
    """An implementation of model steps that is ready to run."""

    model: nn.Module  # the caller sets it to training or evaluation mode
    run: Callable[[Batch], tuple[Tensor, Tensor]]  # returns the loss and the logits of a batch
    prepare: Callable[[], object] = lambda: None  # called each time after the mode is set, before the next step


def _padded(model: nn.Module) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    return lambda batch: model(**batch.padded, return_dict=False)[:2]


def _packed(model: nn.Module) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    return lambda batch: model(**batch.packed, return_dict=False)[:2]


class Builder:
    """Builds implementations of one size. Each has a separate model with the same weights."""

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
        """Makes a QACG-BERT. `weights` become the model's without a copy; with None they are initial ones."""
        config = qacg_models.QACGBertConfig(**self._sizes, contexts=self._contexts, attn_implementation=implementation)
        if weights is None:
            return qacg_models.QACGBertForSequenceClassification(config)
        with torch.device("meta"):
            model = qacg_models.QACGBertForSequenceClassification(config)
        model.load_state_dict(weights, assign=True)
        return model

    def exact(self) -> nn.Module:
        """Makes the eager model in float64."""
        return self.model("eager", {name: w.double() for name, w in self._weights.items()})

    def build(self, name: str) -> Runner:
        """Builds the implementation with this name, one of IMPLEMENTATIONS."""
        return IMPLEMENTATIONS[name](self)

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
        from qacg_models.layers.context import fold_context

        model = self.model("fused", self._weights)
        return Runner(model, _packed(model), lambda: fold_context(model))

    def bert(self) -> Runner:
        model = qacg_models.BertForSequenceClassification(qacg_models.PlainBertConfig(**self._sizes))

        def run(batch: Batch) -> tuple[Tensor, Tensor]:
            given = {name: value for name, value in batch.packed.items() if name != "context_ids"}
            return model(**given, return_dict=False)[:2]

        return Runner(model, run)


IMPLEMENTATIONS = {
    RELEASED: Builder.released,
    EAGER: Builder.eager,
    COMPILED: Builder.compiled,
    FUSED: Builder.fused,
    PACKED: Builder.packed,
    FOLDED: Builder.folded,
    BERT: Builder.bert,
}


def supports(name: str, mode: str) -> bool:
    """Whether an implementation supports a mode: FOLDED, which uses `fold_context`, supports inference only."""
    return name != FOLDED or mode == INFERENCE
