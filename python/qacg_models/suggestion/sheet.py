"""The sheet to label: a row for each selected pair of a text and an aspect.

| source | split | selection of pairs |
|---|---|---|
| dev | dev | at random, from texts without training rows; metrics on these rows estimate the metrics on new texts |
| nouns | train | if no model is given: texts with a noun of the aspect; each text gets a row for another aspect too |
| predictions | train | if a model is given: pairs whose predicted label is the least probable (uncertainty sampling) |
| random | train | at random, so that training includes opinions in texts without a noun of the aspect |
"""

import csv
import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from qacg_models.data.columns import SPLIT_COLUMN, Columns
from qacg_models.data.sentences import normalized, split_sentences
from qacg_models.data.tables import read_table
from qacg_models.errors import InputError
from qacg_models.inference.predictor import Predictor, as_predictions
from qacg_models.suggestion.proposals import Proposal
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.plain_text import escape_formula

HINT = "hint"
MOST_DEV_TEXTS = 0.25  # maximum share of texts for dev rows; training rows use other texts
WINDOW = 1024  # number of sentences per prediction call
Pair = tuple[str, str]


@dataclass(frozen=True)
class SheetRow:
    """A row of the sheet.

    Attributes:
        text: the text or sentence.
        aspect: name of the aspect.
        hint: reason for the selection: words of the aspect that the text has, or a predicted label with its
            probability; empty if there is no such reason.
        split: "train" or "dev", or another text that a file has in the column `split`.
        label: the label; empty until labelled.
    """

    text: str
    aspect: str
    hint: str = ""
    split: str = "train"
    label: str = ""

    @property
    def pair(self) -> Pair:
        """The normalised text and the aspect; rows with the same pair count as equal."""
        return normalized(self.text), self.aspect


def distinct(texts: Iterable[str], by_sentence: bool) -> list[str]:
    """Returns the distinct texts with single spaces, in order of first occurrence.

    Texts that differ only in case or spaces count as equal; the first one is kept.

    Args:
        texts: the texts.
        by_sentence: whether to return the distinct sentences of the texts instead.
    """
    kept: dict[str, str] = {}
    for text in texts:
        for part in split_sentences(text) if by_sentence else [" ".join(text.split())]:
            kept.setdefault(normalized(part), part)
    return list(kept.values())


def dev_rows(texts: Sequence[str], aspects: Sequence[str], count: int, seed: int) -> list[SheetRow]:
    """Returns at most `count` evaluation rows, drawn so that every (text, aspect) pair has the same probability.

    At most the share MOST_DEV_TEXTS of the texts is drawn, but at least one text if `count` is not 0. Aspects are
    assigned in a random cycle: one to each text, or several if there are fewer texts than rows. Texts are in random
    order, so the first rows are a random sample too.
    """
    chosen = random.Random(f"dev {seed}")
    drawn = chosen.sample(texts, min(count, len(texts), max(1, int(MOST_DEV_TEXTS * len(texts)))))
    each, more = divmod(min(count, len(drawn) * len(aspects)), max(1, len(drawn)))
    turns = itertools.cycle(chosen.sample(aspects, len(aspects)))
    return [
        SheetRow(text, next(turns), split="dev")
        for place, text in enumerate(drawn)
        for _ in range(each + (place < more))
    ]


def random_rows(
    texts: Sequence[str], aspects: Sequence[str], count: int, seed: int, exclude: Collection[Pair]
) -> list[SheetRow]:
    """Returns at most `count` training rows of random (text, aspect) pairs.

    Args:
        texts: distinct texts.
        aspects: names of aspects.
        count: maximum number of rows.
        seed: seed of the selection.
        exclude: pairs of normalised text and aspect to leave out.
    """
    pairs = range(len(texts) * len(aspects))
    numbers = random.Random(f"train {seed}").sample(pairs, min(len(pairs), count + len(exclude)))
    drawn = (SheetRow(texts[number // len(aspects)], aspects[number % len(aspects)]) for number in numbers)
    return [row for row in drawn if row.pair not in exclude][:count]


def noun_rows(
    sentences: Sequence[str], proposals: Sequence[Proposal], count: int, exclude: Collection[Pair] = ()
) -> list[SheetRow]:
    """Returns at most `count` training rows from the clearest sentences of each proposal.

    A sentence gets a row for each aspect of which it has a word, and a row for one other aspect, on which it probably
    has no opinion. A model that is trained without rows of the second kind predicts an opinion for every aspect.

    Args:
        sentences: the sentences of the proposals.
        proposals: the aspects, from `propose` or `choose`.
        count: maximum number of rows.
        exclude: pairs of normalised sentence and aspect to leave out.
    """
    has: dict[int, list[tuple[str, str]]] = {}
    for proposal in proposals:
        for number, words in zip(proposal.picked, proposal.found):
            has.setdefault(number, []).append((proposal.name, ", ".join(words)))
    names = [proposal.name for proposal in proposals]
    rows: list[SheetRow] = []
    for turn, number in enumerate(_interleaved(proposals)):
        own = dict(has[number])
        found = [SheetRow(sentences[number], name, words) for name, words in own.items()]
        others = [name for name in names if name not in own]
        if others:
            found.append(SheetRow(sentences[number], others[turn % len(others)]))
        rows += [row for row in found if row.pair not in exclude]
        if len(rows) >= count:
            break
    return rows[:count]


def most_uncertain(
    predictor: Predictor,
    sentences: Sequence[str],
    count: int,
    exclude: Collection[Pair] = (),
    batch_size: int = 64,
    seen: Callable[[int], None] = lambda number: None,
) -> list[SheetRow]:
    """Returns rows for the sentences and aspects whose predicted label is the least probable, least probable first.

    This is uncertainty sampling (Lewis and Gale, 1994).

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


def mixed(first: Sequence[SheetRow], second: Sequence[SheetRow]) -> list[SheetRow]:
    """Returns the rows of both lists, evenly interleaved, so that the beginning of a sheet has rows of both lists."""
    places = [((place + 0.5) / len(rows), row) for rows in (first, second) for place, row in enumerate(rows)]
    return [row for _, row in sorted(places, key=lambda one: one[0])]


def _interleaved(proposals: Sequence[Proposal]) -> Iterator[int]:
    """Yields the index of each picked sentence once, cycling through the proposals."""
    waiting = [iter(proposal.picked) for proposal in proposals]
    taken: set[int] = set()
    while waiting:
        for numbers in list(waiting):
            number = next((number for number in numbers if number not in taken), None)
            if number is None:
                waiting.remove(numbers)
            else:
                taken.add(number)
                yield number


def check_columns(columns: Columns) -> None:
    """Raises InputError if one of `columns` is called `hint` or `split`, because every sheet has these two columns."""
    for name in columns.names():
        if name in (HINT, SPLIT_COLUMN):
            raise InputError(f"columns: expected a name other than {HINT} and {SPLIT_COLUMN}, got {name!r}")


def read_sheet(path: Path, columns: Columns) -> list[SheetRow]:
    """Returns the labelled rows and all dev rows of a partly labelled CSV, in the order of the file.

    Args:
        path: the CSV.
        columns: names of its columns, with those of aspect and label.

    Raises:
        DataError: the file cannot be read as CSV, or lacks the column of texts or aspects.
        InputError: the file lacks the column of labels.
    """
    assert columns.aspect is not None and columns.label is not None
    texts = replace(columns, label=None)
    rows = []
    for record in read_table(path, texts, "csv").to_dict("records"):
        if columns.label not in record:
            raise InputError(f"labelled: expected a column {columns.label!r} in {path}, got {', '.join(record)}")
        split, label = record.get(SPLIT_COLUMN, "").strip().lower() or "train", record[columns.label].strip()
        if label or split == "dev":
            rows.append(SheetRow(record[columns.text], record[columns.aspect], record.get(HINT, ""), split, label))
    return rows


def write_sheet(path: Path, rows: Sequence[SheetRow], columns: Columns) -> None:
    """Writes a CSV with text, aspect, label, hint and split, in which formulas are escaped; replaces the file."""
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        header = (columns.text, columns.aspect or "", columns.label or "", HINT, SPLIT_COLUMN)
        writer.writerow(map(escape_formula, header))
        for row in rows:
            writer.writerow(map(escape_formula, (row.text, row.aspect, row.label, row.hint, row.split)))
