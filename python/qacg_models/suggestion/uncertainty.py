"""Rows of which a trained model is least sure, which teach it most (uncertainty sampling, Lewis and Gale 1994)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from qacg_models.data.sentences import normalized
from qacg_models.errors import InputError
from qacg_models.inference.aspect_sentiment import AspectSentiment
from qacg_models.suggestion.sheet import Pair, SheetRow

WINDOW = 1024  # sentences that are asked about at a time


def most_uncertain(
    ask: AspectSentiment,
    sentences: Sequence[str],
    count: int,
    exclude: Collection[Pair] = (),
    batch_size: int = 64,
    seen: Callable[[int], None] = lambda number: None,
) -> list[SheetRow]:
    """At most `count` rows of all sentences and aspects of the model, the least probable label first.

    Args:
        exclude: pairs that are not asked about.
        seen: called with the number of sentences that have been asked about.

    Raises:
        InputError: a model with targets, whose sheet would need a column for them.
    """
    if ask.targets:
        raise InputError("with: expected a model whose contexts are aspects alone, got one with targets")
    questions = ask.questions()
    found: list[tuple[float, int, SheetRow]] = []
    for start in range(0, len(sentences), WINDOW):
        part = sentences[start : start + WINDOW]
        rows = [row for text in part for row in questions.rows(text) if (normalized(text), row.aspect) not in exclude]
        for answer in ask.predict(rows, batch_size):
            sure = answer.probabilities[answer.label]
            found.append((sure, len(found), SheetRow(answer.text, answer.aspect, f"{answer.label}? {sure:.2f}")))
        found = sorted(found, key=lambda one: one[:2])[:count] if len(found) > 4 * count else found
        seen(start + len(part))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])[:count]]
