"""Tracing a classifier with eager attention, for any batch size, and lengths up to its number of positions."""

import copy
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
    """The content of an exported file.

    Attributes:
        program: maps int64 input_ids, attention_mask and token_type_ids, (B, L) each, and, if the model has contexts,
            int64 context_ids (B,), to float32 logits (B, classes).
        example: the inputs of the trace, by name.
        dimensions: dynamic dimensions of the inputs, by name of the input and index of the dimension.
        metadata: labels, contexts and other values that a server needs, each as JSON; see `metadata_of`.
    """

    program: ExportedProgram
    example: dict[str, Tensor]
    dimensions: dict[str, dict[int, Dim]]
    metadata: dict[str, str]


class _Logits(nn.Module):
    """A classifier with the inputs of an exported file, and only the logits as output."""

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
    """Traces a copy of a trained model with eager attention, which needs no operators of this package."""
    model, config = copy.deepcopy(trained.model).eval(), trained.model.config
    model.set_attn_implementation("eager")
    batch, length = Dim("batch", min=1), Dim("length", min=1, max=config.max_position_embeddings)
    tokens = torch.ones(2, min(7, config.max_position_embeddings), dtype=torch.long)
    example = {name: tokens.clone() for name in ("input_ids", "attention_mask")}
    example["token_type_ids"] = torch.zeros_like(tokens)
    dimensions: dict[str, dict[int, Dim]] = {name: {0: batch, 1: length} for name in example}
    if hasattr(config, "contexts"):
        example["context_ids"], dimensions["context_ids"] = torch.zeros(2, dtype=torch.long), {0: batch}
    with torch.no_grad(), quiet("torch.onnx"):
        program = torch.export.export(_Logits(model), (), kwargs=example, dynamic_shapes=dimensions, strict=False)
    return TracedModel(program, example, dimensions, metadata_of(trained))


def metadata_of(trained: TrainedModel) -> dict[str, str]:
    """Returns the metadata of an exported file, each value as JSON.

    - labels: in the order of the logits.
    - contexts: in the order of their ids.
    - context_standalone: true if the model gets a context by its id only; false if the second segment of the input is
      the name of the context.
    - max_length: maximum number of tokens of an input.
    - pad_token_id: token id of padding.
    - temperatures: divisors of the logits before the softmax. Either one for all rows, or one per label: the logits of
      a row are divided by the temperature of the label with the highest logit.
    """
    facts = {
        "labels": trained.task.labels,
        "contexts": trained.contexts,
        "context_standalone": getattr(trained.model.config, "context_standalone", False),
        "max_length": trained.record.max_length,
        "pad_token_id": trained.tokenizer.pad_token_id,
        "temperatures": trained.calibration.temperatures,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in facts.items()}
