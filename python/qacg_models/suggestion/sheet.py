"""The sheet to label: a row for a (text, aspect) pair, in three parts.

| part | split | how its pairs are chosen |
|---|---|---|
| dev | dev | at random, from texts that no training row has; the score on it estimates the score on new texts |
| nouns | train | texts that have a noun of the aspect, and for each text one more aspect |
| random | train | at random; without it a model never sees opinions that name no noun |
"""

from __future__ import annotations

import csv
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qacg_models.data.columns import SPLIT_COLUMN, Columns, records
from qacg_models.data.sentences import normalized, split_sentences
from qacg_models.errors import InputError
from qacg_models.suggestion.proposals import Proposal
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.plain_text import escape_formula

HINT = "hint"
MOST_DEV_TEXTS = 0.25  # share of the texts that dev rows may take; what dev has, training rows may not have
Pair = tuple[str, str]


@dataclass(frozen=True)
class SheetRow:
    """A (text, aspect) pair. The label is empty until somebody labels the row; the hint says why the row is there."""

    text: str
    aspect: str
    hint: str = ""
    split: str = "train"
    label: str = ""

    @property
    def pair(self) -> Pair:
        """What makes it the same row as another one."""
        return normalized(self.text), self.aspect


def distinct(texts: Iterable[str], by_sentence: bool) -> list[str]:
    """The texts, or their sentences, each once, in their order; case and spaces do not make a difference."""
    kept: dict[str, str] = {}
    for text in texts:
        for part in split_sentences(text) if by_sentence else [" ".join(text.split())]:
            kept.setdefault(normalized(part), part)
    return list(kept.values())


def dev_rows(texts: Sequence[str], aspects: Sequence[str], count: int, seed: int) -> list[SheetRow]:
    """At most `count` rows for evaluation; every (text, aspect) pair is drawn with the same probability.

    At most MOST_DEV_TEXTS of the texts are drawn, and at least one. Each gets the same number of aspects, one unless
    the texts are few; the aspects take turns. The texts are in random order, so that the first rows are a random
    sample too.
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
    """At most `count` training rows of random (text, aspect) pairs, none of them in `exclude`."""
    pairs = range(len(texts) * len(aspects))
    numbers = random.Random(f"train {seed}").sample(pairs, min(len(pairs), count + len(exclude)))
    drawn = (SheetRow(texts[number // len(aspects)], aspects[number % len(aspects)]) for number in numbers)
    return [row for row in drawn if row.pair not in exclude][:count]


def noun_rows(
    sentences: Sequence[str], proposals: Sequence[Proposal], count: int, exclude: Collection[Pair] = ()
) -> list[SheetRow]:
    """At most `count` training rows: the plainest sentences of every proposal in turn, but for pairs in `exclude`.

    A sentence is asked for the aspects whose words it has, and for one more, whose answer mostly is that there is no
    opinion: a model that never sees such rows finds an opinion everywhere.
    """
    has: dict[int, list[tuple[str, str]]] = {}
    for proposal in proposals:
        for number, words in zip(proposal.picked, proposal.found):
            has.setdefault(number, []).append((proposal.name, ", ".join(words)))
    names = [proposal.name for proposal in proposals]
    rows: list[SheetRow] = []
    for turn, number in enumerate(_in_turn(proposals)):
        own = dict(has[number])
        found = [SheetRow(sentences[number], name, words) for name, words in own.items()]
        others = [name for name in names if name not in own]
        if others:
            found.append(SheetRow(sentences[number], others[turn % len(others)]))
        rows += [row for row in found if row.pair not in exclude]
        if len(rows) >= count:
            break
    return rows[:count]


def mixed(first: Sequence[SheetRow], second: Sequence[SheetRow]) -> list[SheetRow]:
    """The rows of both in their order, evenly mixed, so that a sheet labelled from the top has its share of each."""
    places = [((place + 0.5) / len(rows), row) for rows in (first, second) for place, row in enumerate(rows)]
    return [row for _, row in sorted(places, key=lambda one: one[0])]


def _in_turn(proposals: Sequence[Proposal]) -> Iterator[int]:
    """The numbers of all sentences that are picked, each once, one of every proposal after another."""
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
    """Raises InputError if a column of the sheet has the name of another one."""
    for name in columns.names():
        if name in (HINT, SPLIT_COLUMN):
            raise InputError(f"columns: expected a name other than {HINT} and {SPLIT_COLUMN}, got {name!r}")


def read_sheet(path: Path, columns: Columns) -> list[SheetRow]:
    """The rows of a labelled or partly labelled CSV; those without a label count only if they are marked dev.

    Raises:
        DataError: as for `columns.records`, but for empty labels.
    """
    assert columns.aspect is not None and columns.label is not None
    texts = replace(columns, label=None)
    rows = []
    for _, record in records(path, texts, ".csv", others=True):
        if columns.label not in record:
            raise InputError(f"labelled: expected a column {columns.label!r} in {path}, got {', '.join(record)}")
        split, label = record.get(SPLIT_COLUMN, "").strip().lower() or "train", record[columns.label].strip()
        if label or split == "dev":
            rows.append(SheetRow(record[columns.text], record[columns.aspect], record.get(HINT, ""), split, label))
    return rows


def write_sheet(path: Path, rows: Sequence[SheetRow], columns: Columns) -> None:
    """Writes a CSV with the columns of `columns`, the hint and the split; spreadsheets run none of its cells."""
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        header = (columns.text, columns.aspect or "", columns.label or "", HINT, SPLIT_COLUMN)
        writer.writerow(map(escape_formula, header))
        for row in rows:
            writer.writerow(map(escape_formula, (row.text, row.aspect, row.label, row.hint, row.split)))
