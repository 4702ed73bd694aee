"""The sheet to fill in: a row for a sentence and an aspect, its label empty, as `qacg train` reads it when filled."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qacg_models.data.sentences import split_sentences
from qacg_models.data.splitting import plain
from qacg_models.errors import InputError
from qacg_models.suggestion.proposals import Proposal
from qacg_models.utils.atomic_files import written_whole

COLUMNS = ("aspect", "label", "hint")


@dataclass(frozen=True)
class SheetRow:
    """A sentence and an aspect that it is to be labelled for; the hint says why the row is there."""

    text: str
    aspect: str
    hint: str


def distinct(texts: Iterable[str], by_sentence: bool) -> list[str]:
    """The texts, or their sentences, each once, in their order; case and spaces do not make a difference."""
    kept: dict[str, str] = {}
    for text in texts:
        for part in split_sentences(text) if by_sentence else [" ".join(text.split())]:
            kept.setdefault(plain(part), part)
    return list(kept.values())


def rows_of(sentences: Sequence[str], proposals: Sequence[Proposal], count: int) -> list[SheetRow]:
    """At most `count` rows: the plainest sentences of every proposal in turn.

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
        rows += [SheetRow(sentences[number], name, words) for name, words in own.items()]
        others = [name for name in names if name not in own]
        if others:
            rows.append(SheetRow(sentences[number], others[turn % len(others)], ""))
        if len(rows) >= count:
            break
    return rows[:count]


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


def check_text_column(name: str) -> None:
    """Raises InputError for a name that the sheet has for another column."""
    if name in COLUMNS:
        raise InputError(f"text-column: got {name!r}, which the sheet calls another column; wanted another name")


def write_sheet(path: Path, rows: Sequence[SheetRow], text_column: str) -> None:
    """Writes a CSV with the columns text_column, aspect, label (empty) and hint."""
    with written_whole(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        writer.writerow([text_column, *COLUMNS])
        writer.writerows([row.text, row.aspect, "", row.hint] for row in rows)
