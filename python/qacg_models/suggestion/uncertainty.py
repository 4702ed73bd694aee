"""Uncertainty sampling (Lewis and Gale, 1994): the rows for which predictions have the lowest probability."""

from collections.abc import Callable, Collection, Sequence

from qacg_models.data.sentences import normalized
from qacg_models.errors import InputError
from qacg_models.inference.aspect_predictor import AspectPredictor
from qacg_models.suggestion.sheet import Pair, SheetRow

WINDOW = 1024  # number of sentences per prediction call


def most_uncertain(
    ask: AspectPredictor,
    sentences: Sequence[str],
    count: int,
    exclude: Collection[Pair] = (),
    batch_size: int = 64,
    seen: Callable[[int], None] = lambda number: None,
) -> list[SheetRow]:
    """Returns rows for the sentences and aspects whose predicted label is the least probable, least probable first.

    Args:
        ask: the model; rows are chosen among all its aspects.
        sentences: the candidates.
        count: maximum number of rows.
        exclude: pairs of normalised sentence and aspect to leave out.
        batch_size: maximum number of pairs in a batch of predictions.
        seen: called after every WINDOW sentences, and at the end, with the number of sentences predicted so far.

    Raises:
        InputError: the model has targets, for which a sheet has no column.
    """
    if ask.targets:
        raise InputError(
            "with: expected a model whose contexts are aspects only, got a model with targets. Omit --with."
        )
    questions = ask.questions()
    found: list[tuple[float, int, SheetRow]] = []
    for start in range(0, len(sentences), WINDOW):
        part = sentences[start : start + WINDOW]
        rows = [row for text in part for row in questions.rows(text) if (normalized(text), row.aspect) not in exclude]
        for answer in ask.predict_rows(rows, batch_size):
            sure = answer.probabilities[answer.label]
            found.append((sure, len(found), SheetRow(answer.text, answer.aspect, f"{answer.label}? {sure:.2f}")))
        found = sorted(found, key=lambda one: one[:2])[:count] if len(found) > 4 * count else found
        seen(start + len(part))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])[:count]]
