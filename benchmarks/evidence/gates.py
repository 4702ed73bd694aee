"""What a trained QACG-BERT does with its second map: how large lambda is, and whether the map tells keys apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from qacg_models.data import Example
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.models.qacg_bert import QACGBertForSequenceClassification
from qacg_models.reporting.attention_maps import padded_inputs

ROWS, BATCH = 256, 32
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def gates_of(trained: TrainedModel, rows: Sequence[Example]) -> list[dict[str, float | list[float]]] | None:
    """Figures of every layer over all real tokens of the first ROWS rows; None for a model without a second map.

    Of lambda: its mean, its standard deviation, its quantiles at QUANTILES and the share below 0. Of a row of lambda
    times G, in which a token weights its keys: the sum of its absolute values, where the softmax's row sums to 1, and
    its standard deviation over the keys as a share of its mean, which is 0 where the map tells no key from another.
    """
    model = trained.model
    if not isinstance(model, QACGBertForSequenceClassification) or model.config.quasi_scale == 0:
        return None
    lambdas, weights, deviations = ([[] for _ in range(model.config.num_hidden_layers)] for _ in range(3))
    for start in range(0, min(ROWS, len(rows)), BATCH):
        batch, features = padded_inputs(trained, rows[start : min(start + BATCH, ROWS)])
        with torch.inference_mode():
            output = model(**batch, output_attentions=True, output_lambda=True)
        for n, feature in enumerate(features):
            length = len(feature["input_ids"])
            for layer, (lam, quasi) in enumerate(zip(output.lambdas, output.quasi_maps)):
                cells = quasi[n, :, :length, :length].double().abs()
                lambdas[layer].append(lam[n, :, :length].double().flatten())
                weights[layer].append(cells.sum(-1).flatten())
                deviations[layer].append((cells.std(-1, correction=0) / cells.mean(-1).clamp(min=1e-30)).flatten())
    found = []
    for lam, weight, deviation in ((torch.cat(of) for of in layer) for layer in zip(lambdas, weights, deviations)):
        found.append(
            {
                "lambda_mean": float(lam.mean()),
                "lambda_deviation": float(lam.std(correction=0)),
                "lambda_quantiles": torch.quantile(lam, torch.tensor(QUANTILES, dtype=lam.dtype)).tolist(),
                "lambda_below_0": float((lam < 0).double().mean()),
                "weight": float(weight.mean()),
                "deviation_over_keys": float(deviation.mean()),
            }
        )
    return found
