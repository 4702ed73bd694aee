"""Token scores of one row: gradient sensitivity and layer-wise relevance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qacg_models.attribution import layerwise_relevance, token_sensitivity
from qacg_models.data import Example
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.reporting.attention_maps import padded_inputs


@dataclass(frozen=True)
class TokenScores:
    """Scores of the L tokens of one row for the predicted label.

    Attributes:
        tokens: the L tokens of the input.
        sensitivity: (L,) squared norms of d logit / d embedding.
        relevance: (L,) signed shares of the logit; their sum differs from the logit only by the effect of `eps` in the
            relevance rules.
    """

    tokens: list[str]
    sensitivity: np.ndarray
    relevance: np.ndarray


def token_scores(trained: TrainedModel, row: Example) -> TokenScores:
    """Runs the model on one row, without padding, and returns both scores of its tokens.

    Raises:
        InputError: the row's context is not a context of the model.
    """
    batch, features = padded_inputs(trained, [row])
    return TokenScores(
        trained.tokenizer.convert_ids_to_tokens(features[0]["input_ids"]),
        token_sensitivity(trained.model, batch)[0].double().numpy(),
        layerwise_relevance(trained.model, batch).tokens[0].double().numpy(),
    )
