"""Uncertainty sampling (Lewis and Gale, 1994): the rows for which predictions have the lowest probability."""

from collections.abc import Callable, Collection, Sequence

import pandas as pd

from qacg_models.data.sentences import normalized
from qacg_models.errors import InputError
from qacg_models.inference.predictor import Predictor, as_predictions
from qacg_models.suggestion.sheet import Pair, SheetRow

WINDOW = 1024  # number of sentences per prediction call


def most_uncertain(
    predictor: Predictor,
    sentences: Sequence[str],
    count: int,
    exclude: Collection[Pair] = (),
    batch_size: int = 64,
    seen: Callable[[int], None] = lambda number: None,
) -> list[SheetRow]:
    """Returns rows for the sentences and aspects whose predicted label is the least probable, least probable first.

    Args:
        predictor: the model; rows are chosen among all its aspects.
        sentences: the candidates.
        count: maximum number of rows.
        exclude: pairs of normalised sentence and aspect to leave out.
        batch_size: maximum number of pairs in a batch of predictions.
        seen: called after every WINDOW sentences, and at the end, with the number of sentences predicted so far.

    Raises:
        InputError: the model has targets, for which a sheet has no column.
    """
    if predictor.targets:
        raise InputError(
            "with: expected a model whose contexts are aspects only, got a model with targets. Omit --with."
        )
    found: list[tuple[float, int, SheetRow]] = []
    for start in range(0, len(sentences), WINDOW):
        part = sentences[start : start + WINDOW]
        pairs = [(text, aspect) for text in part for aspect in predictor.aspects]
        rows = [(text, aspect) for text, aspect in pairs if (normalized(text), aspect) not in exclude]
        frame = pd.DataFrame(rows, columns=["text", "aspect"])
        for answer in as_predictions(predictor.predict(frame, batch_size=batch_size), predictor.labels):
            sure = answer.probabilities[answer.label]
            found.append((sure, len(found), SheetRow(answer.text, answer.aspect, f"{answer.label}? {sure:.2f}")))
        found = sorted(found, key=lambda one: one[:2])[:count] if len(found) > 4 * count else found
        seen(start + len(part))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])[:count]]
