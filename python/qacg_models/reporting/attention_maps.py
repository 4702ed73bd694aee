"""Attention maps and gates of a trained model for single rows, as arrays with their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.data import Example
from qacg_models.data.collators import PaddingCollator
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel, probabilities_of

MARKERS = ("[CLS]", "[SEP]", "[PAD]", "[MASK]")


def word_places(tokens: Sequence[str]) -> list[int]:
    """Returns the indices of all tokens except markers such as [CLS]; all indices if there are only markers."""
    return [place for place, token in enumerate(tokens) if token not in MARKERS] or list(range(len(tokens)))


@dataclass(frozen=True)
class ExampleMaps:
    """Attention maps and gates of one row, with N layers, H heads and L tokens.

    Attributes:
        row: the sentence and its context.
        tokens: the L tokens of the input.
        probabilities: (classes,) probabilities of the labels, after temperature scaling.
        softmax: P, the softmax attention, (N, H, L, L); sums over the last dimension are 1.
        quasi: lambda * G, the gated quasi-attention map, (N, H, L, L), signed.
        combined: A = P + lambda * G, the attention that the model uses, (N, H, L, L), signed.
        lambdas: lambda, the gate of each query, (N, H, L), signed.
    """

    row: Example
    tokens: list[str]
    probabilities: np.ndarray
    softmax: np.ndarray
    quasi: np.ndarray
    combined: np.ndarray
    lambdas: np.ndarray


def example_maps(trained: TrainedModel, row: Example) -> ExampleMaps:
    """Runs the model on one row, without padding, and returns the attention maps and gates of the row.

    Raises:
        InputError: the row's context is not a context of the model, or the model is not a QACG-BERT.
    """
    check_has_gate(trained)
    output, features = _run(trained, [row], output_attentions=True)

    def stacked(layers) -> np.ndarray:
        return np.stack([layer[0].float().numpy() for layer in layers])

    return ExampleMaps(
        row,
        trained.tokenizer.convert_ids_to_tokens(features[0]["input_ids"]),
        probabilities_of(output.logits.numpy(), trained.calibration.temperatures)[0],
        stacked(output.softmax_maps),
        stacked(output.quasi_maps),
        stacked(output.attentions),
        stacked(output.lambdas),
    )


def mean_lambda(trained: TrainedModel, rows: Sequence[Example], batch_size: int = 64) -> np.ndarray:
    """Returns (layers, heads) means of lambda over all tokens of the rows, padding excluded.

    Args:
        trained: a QACG-BERT.
        rows: rows, at least one.
        batch_size: maximum number of rows in a batch.

    Raises:
        InputError: the context of a row is not a context of the model.
    """
    total, count = 0.0, 0
    for start in range(0, len(rows), batch_size):
        output, features = _run(trained, rows[start : start + batch_size], output_attentions=False)
        for index, feature in enumerate(features):
            length = len(feature["input_ids"])
            total = total + np.stack([layer[index, :, :length].double().sum(-1).numpy() for layer in output.lambdas])
            count += length
    return total / count


def check_has_gate(trained: TrainedModel) -> None:
    """Raises InputError unless the model is a QACG-BERT, whose attention is P + lambda * G."""
    from qacg_models.models.qacg_bert import QACGBertForSequenceClassification

    if not isinstance(trained.model, QACGBertForSequenceClassification):
        raise InputError(f"model: expected a QACG-BERT, got {trained.title}, which has no quasi-attention")


def padded_inputs(trained: TrainedModel, rows: Sequence[Example]) -> tuple[dict, list[dict]]:
    """Returns a padded batch of the rows (tensors by name, without labels), and the unpadded features of each row.

    Raises:
        InputError: the context of a row is not a context of the model.
    """
    features = trained.features(rows)
    batch = PaddingCollator(trained.tokenizer.pad_token_id)(features)
    batch.pop("labels", None)
    return batch, features


def _run(trained: TrainedModel, rows: Sequence[Example], output_attentions: bool):
    import torch

    batch, features = padded_inputs(trained, rows)
    with torch.inference_mode():
        output = trained.model(**batch, output_attentions=output_attentions, output_lambda=True)
    return output, features
