"""A trained classifier as a graph of tensors alone: eager attention, any batch, every length it has positions for."""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from qacg_models.inference.trained_model import TrainedModel
from qacg_models.utils.quiet import quiet

OUTPUT = "logits"


@dataclass(frozen=True)
class TracedModel:
    """What is written to a file.

    Attributes:
        program: of tensors (B, L) of int64, and (B) of context ids, to logits (B, classes) of float32.
        example: the inputs that it was traced with, by name.
        dimensions: the names and limits of their dynamic dimensions.
        metadata: what a server has to know, each value as JSON; see `metadata_of`.
    """

    program: ExportedProgram
    example: dict[str, Tensor]
    dimensions: dict[str, dict[int, Dim]]
    metadata: dict[str, str]


class _Logits(nn.Module):
    """The model as a function of its inputs to its logits; only a model with contexts is given context ids."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        context_ids: Tensor | None = None,
    ) -> Tensor:
        context = {} if context_ids is None else {"context_ids": context_ids}
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        return self.model(**inputs, **context, return_dict=True).logits


def trace(trained: TrainedModel) -> TracedModel:
    """The graph of a trained model, which itself stays as it is but for its choice of attention.

    The other implementations are operators of this package, which other programs do not have.
    """
    model, config = trained.model, trained.model.config
    before = config._attn_implementation
    batch, length = Dim("batch", min=1), Dim("length", min=1, max=config.max_position_embeddings)
    tokens = torch.ones(2, min(7, config.max_position_embeddings), dtype=torch.long)
    example = {name: tokens.clone() for name in ("input_ids", "attention_mask")}
    example["token_type_ids"] = torch.zeros_like(tokens)
    dimensions: dict[str, dict[int, Dim]] = {name: {0: batch, 1: length} for name in example}
    if hasattr(config, "contexts"):
        example["context_ids"], dimensions["context_ids"] = torch.zeros(2, dtype=torch.long), {0: batch}
    try:
        model.set_attn_implementation("eager")
        with torch.no_grad(), quiet("torch.onnx"):
            program = torch.export.export(
                _Logits(model).float().eval(), (), kwargs=example, dynamic_shapes=dimensions, strict=False
            )
    finally:
        model.set_attn_implementation(before)
    return TracedModel(program, example, dimensions, metadata_of(trained))


def metadata_of(trained: TrainedModel) -> dict[str, str]:
    """labels: in the order of the logits; contexts: a context's place is its id; context_standalone: whether a context
    is given by its id alone, not as a second segment too; max_length: most tokens; pad_token_id; temperatures: by
    which the logits are divided before the softmax, one for each label, by the label with the highest logit, or one
    for all."""
    facts = {
        "labels": trained.task.labels,
        "contexts": trained.contexts,
        "context_standalone": getattr(trained.model.config, "context_standalone", False),
        "max_length": trained.record.max_length,
        "pad_token_id": trained.tokenizer.pad_token_id,
        "temperatures": trained.calibration.temperatures,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}
