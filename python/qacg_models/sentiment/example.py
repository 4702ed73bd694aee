"""A task, its examples, and the errors and unusable rows of a file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from qacg_models.errors import InputError
from qacg_models.utils.text import clipped

if TYPE_CHECKING:
    from pandas import DataFrame

METRICS = ("sentihood", "semeval", "classification")


@dataclass(frozen=True)
class Task:
    """Labels and aspects of one aspect-based sentiment task; InputError unless they are distinct and not empty."""

    name: str  # in saved files
    labels: tuple[str, ...]  # the position is the class index
    aspects: tuple[str, ...]  # in the order in which contexts, reports and, by default, predictions have them
    metrics: str = "classification"  # one of METRICS
    selection: str = "macro_f1"  # name of the metric by which training selects a checkpoint
    has_absent: bool = False  # whether the first label means "no opinion on this aspect"
    has_targets: bool = False  # whether a context also names a target, as in `location - 1 - price`
    complete: bool = False  # whether every pair of a sentence and a target must have a row for every aspect

    def __post_init__(self):
        for field, least in (("labels", 2), ("aspects", 1)):
            names = getattr(self, field)
            if len(names) < least or len(set(names)) < len(names) or not all(name.strip() for name in names):
                raise InputError(f"{field}: expected at least {least} distinct, non-empty names, got {list(names)}")
        if self.metrics not in METRICS:
            raise InputError(f"metrics: expected one of {', '.join(METRICS)}, got {self.metrics!r}")

    def context(self, target: str, aspect: str) -> str:
        """Returns the name of a context: "target - aspect" if the task has targets, else the aspect.

        Every pair has its own name. If "size" is an aspect too, the aspect "room - size" is in quotation marks, as in
        `hotel - "room - size"`, because `hotel - room` can also be a target.
        """
        return f"{target} - {self._names.get(aspect, aspect)}" if self.has_targets else aspect

    @cached_property
    def _names(self) -> dict[str, str]:
        """The aspects as they are written after a target."""

        def name(aspect: str) -> str:
            others = (other for other in self.aspects if other != aspect)
            ambiguous = '"' in aspect or any(f"- {aspect}".endswith(f" - {other}") for other in others)
            return json.dumps(aspect, ensure_ascii=False) if ambiguous else aspect

        return {aspect: name(aspect) for aspect in self.aspects}

    def contexts(self, targets: Iterable[str]) -> tuple[str, ...]:
        """Returns the contexts of targets, ("",) for a task without them, by context id; aspects vary fastest."""
        return tuple(self.context(target, aspect) for target in targets for aspect in self.aspects)

    def split_context(self, context: str) -> tuple[str, str]:
        """Returns target (empty if the task has none) and aspect of a published context name, or raises ValueError."""
        target, dash, aspect = context.rpartition(" - ") if self.has_targets else ("", "-", context)
        if not dash or bool(target.strip()) != self.has_targets or aspect not in self.aspects:
            expected = ", ".join(repr(self.context("<target>", name)) for name in self.aspects)
            raise ValueError(f"context: expected one of {expected}, got {context!r}")
        return target, aspect


SENTIHOOD = Task(
    name="sentihood",
    labels=("None", "Positive", "Negative"),
    aspects=("general", "price", "safety", "transit location"),
    metrics="sentihood",
    selection="strict_accuracy",
    has_absent=True,
    has_targets=True,
    complete=True,
)
SEMEVAL = Task(
    name="semeval2014",
    labels=("none", "positive", "neutral", "negative", "conflict"),
    aspects=("price", "anecdotes", "food", "ambience", "service"),
    metrics="semeval",
    selection="aspect_f1",
    has_absent=True,
    complete=True,
)


LISTED = 20  # maximum number of rows in an error message
LONGEST = 150  # maximum number of characters of each problem after the first one in an error message
BLOCK = 4096  # rows that are converted at a time


class DataError(InputError):
    """A data file or folder that cannot be used; the message begins with the path and, if known, the line."""

    def __init__(self, path: Path | str, line: int | None, reason: str):
        self.path, self.line, self.reason = Path(path), line, reason
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")


class ReadingWarning(UserWarning):
    """A property of a data file that its user should check, such as rows that are left out; begins with the path."""


@dataclass(frozen=True)
class Source:
    """Where rows are from, for messages: a file, or an argument with the index of its DataFrame.

    Entry N - 1 of the index belongs to the row with line number N.
    """

    path: Path | str
    index: Sequence[object] | None = None

    def error(self, line: int | None, reason: str) -> InputError:
        """Returns the error of a row: a DataError with its line, or an InputError with its index label."""
        if self.index is None:
            return DataError(self.path, line, reason)
        return InputError(f"{self.path}: {reason}" if line is None else f"{self.path}: {self.place(line)}: {reason}")

    def place(self, *lines: int) -> str:
        """Returns "line N" or "lines N, M" for a file, "index LABEL, LABEL" for a DataFrame."""
        if self.index is None:
            return f"line{'s' if lines[1:] else ''} {', '.join(map(str, lines))}"
        return f"index {', '.join(repr(self.index[line - 1]) for line in lines)}"


class RowProblems:
    """The unusable rows of a file: their number, the number by problem, and the first LISTED lines."""

    def __init__(self, source: Source | Path):
        self.source = source if isinstance(source, Source) else Source(source)
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._lines: dict[str, list[int]] = {}

    def add(self, line: int, problem: str) -> None:
        """Adds a row by its line number; `problem` is a predicate such as "has an empty 'label'"."""
        self.total += 1
        self.counts[problem] += 1
        if self.total <= LISTED:
            self._lines.setdefault(problem, []).append(line)

    def error(self, advice: str) -> InputError:
        """Returns an error that begins with the first row, lists others, and ends with `advice`."""
        (problem, (first, *same)), *others = self._lines.items()
        parts = [f"{problem} (also {self.source.place(*same)})" if same else problem]
        parts += [f"{self.source.place(*lines)}: {clipped(other, LONGEST)}" for other, lines in others]
        if self.total > LISTED:
            parts.append(f"and {self.total - LISTED:,} more")
        return self.source.error(first, "; ".join([*parts, advice]))

    def lines(self) -> str:
        """Returns the line numbers of the first LISTED rows as text, and the number of others."""
        more = f" and {self.total - LISTED:,} more" if self.total > LISTED else ""
        return self.source.place(*sorted(line for lines in self._lines.values() for line in lines)) + more

    def summary(self) -> str:
        """Returns the number of rows with each problem as text, such as "3 with an empty 'label'"."""
        return ", ".join(f"{count:,} {problem.replace('has', 'with', 1)}" for problem, count in self.counts.items())


class Row(NamedTuple):
    """A labelled row of a published file: fields of `Example`, with the name of the label."""

    id: str
    sentence: str
    target: str
    aspect: str
    label: str
    line: int


class Opinion(NamedTuple):
    """A category with its polarity and target; the target is empty if it is implicit, or if the file has none."""

    line: int
    category: str
    polarity: str
    target: str = ""


class AnnotatedText(NamedTuple):
    """A text with its opinions; `id` is None if texts share ids, `left_out` has the reason if it is no example."""

    line: int
    id: str | None
    text: str
    opinions: list[Opinion]
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Example:
    """One sentence with one context.

    If the file has no ids, the id is "line N", where N is the first line of the sentence, or "text N" in XML. A further
    opinion on the same aspect and target has " (2)" at the end. If several files are read, the id begins with the
    number of the file, as in "2/line 7".
    """

    id: str  # of the sentence in its file
    sentence: str
    context: str  # as `Task.context` returns it
    target: str  # name of the target, or the words that an opinion is about, which are no part of the context, or empty
    aspect: str
    label: int | None  # class index; None for texts to predict
    line: int  # number in the file, from 1
    split: str = ""  # content of the file's column `split`, in lower case

    @property
    def group(self) -> tuple[str, str]:
        """The pair (id, target). Rows with the same pair form a group, which metrics such as strict accuracy rate."""
        return self.id, self.target


_FIELDS = [field.name for field in fields(Example)]


class ExampleTable(Sequence[Example]):
    """A read-only sequence of examples, stored as a DataFrame with a column for each field of `Example`."""

    def __init__(self, frame: DataFrame):
        self.frame = frame[_FIELDS]

    def where(self, mask: Any) -> ExampleTable:
        """Returns the examples for which `mask`, a boolean array of as many values as examples, is True."""
        return ExampleTable(self.frame[mask])

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return list(self._examples(index))
        return next(self._examples([range(len(self))[index]]))

    def __iter__(self) -> Iterator[Example]:
        for start in range(0, len(self), BLOCK):
            yield from self._examples(slice(start, start + BLOCK))

    def _examples(self, places: slice | list[int]) -> Iterator[Example]:
        return map(Example, *(self.frame[name].iloc[places].tolist() for name in _FIELDS))


def frame_of(rows: Sequence[Example]) -> DataFrame:
    """Returns examples as a DataFrame with a column for each field of `Example`."""
    import pandas as pd

    if isinstance(rows, ExampleTable):
        return rows.frame
    return pd.DataFrame({name: [getattr(row, name) for row in rows] for name in _FIELDS})


def distinct(rows: Sequence[Example], *names: str) -> list[tuple]:
    """Returns the distinct values of some fields, as tuples in the order of first occurrence."""
    return list(frame_of(rows)[list(names)].drop_duplicates().itertuples(index=False, name=None))


def counts(rows: Sequence[Example], name: str) -> dict[Any, int]:
    """Returns the number of occurrences of each value of a field, in the order of first occurrence."""
    return frame_of(rows)[name].value_counts(sort=False).to_dict()


def blocks(values: Iterable) -> Iterator[list]:
    """Yields the values in lists of BLOCK; the last may be shorter."""
    iterator = iter(values)
    while block := list(islice(iterator, BLOCK)):
        yield block


def labelled_examples(rows: DataFrame, source: Source, task: Task, advice: str = "") -> ExampleTable:
    """Returns examples; InputError for rows, or groups of rows of one id and target, that do not fit the task.

    `rows` has the columns id, sentence, target, aspect, label (a name), line and, optionally, split. `advice` ends the
    error for an unknown aspect.
    """
    if rows.empty:
        raise source.error(None, "has no rows")
    aspects, labels = ({name: n for n, name in enumerate(names)} for names in (task.aspects, task.labels))
    known, index = rows["aspect"].isin(aspects), rows["label"].map(labels)
    bad = ~known | index.isna()
    if bad.any():
        row = rows.iloc[int(bad.to_numpy().argmax())]
        name, names, end = ("label", task.labels, "") if row["aspect"] in aspects else ("aspect", task.aspects, advice)
        raise source.error(int(row["line"]), f"{name}: expected one of {', '.join(names)}, got {row[name]!r}{end}")
    _check_groups(rows, source, task)
    found = rows.assign(label=index.astype("int32"), split=rows.get("split", ""), context=rows["aspect"])
    if task.has_targets:
        pairs = found[["target", "aspect"]].drop_duplicates()
        names = {pair: task.context(*pair) for pair in pairs.itertuples(index=False, name=None)}
        found["context"] = [names[pair] for pair in zip(found["target"], found["aspect"])]
    return ExampleTable(found)


def _check_groups(rows: DataFrame, source: Source, task: Task) -> None:
    """Raises InputError for a row or group that contradicts its group (`labelled_examples`)."""
    groups = rows.groupby(["id", "target"], sort=False)
    repeated = rows.duplicated(["id", "target", "aspect"]).to_numpy()
    bad = repeated | (rows["sentence"] != groups["sentence"].transform("first")).to_numpy()
    contradicts = bad.any()
    if not contradicts and task.complete:
        bad = groups["aspect"].transform("size").to_numpy() < len(task.aspects)
    if not bad.any():
        return
    place = int(bad.argmax())
    row = rows.iloc[place]
    group = rows[(rows["id"] == row["id"]) & (rows["target"] == row["target"])]
    if not contradicts:
        has = group["aspect"].tolist()
        named = f"id {row['id']!r}, target {row['target']!r}" if row["target"] else f"id {row['id']!r}"
        missing = ", ".join(aspect for aspect in task.aspects if aspect not in has)
        reason = f"{named}: expected a row for each of {len(task.aspects)} aspects, got {len(has)} (the first on this"
        raise source.error(int(row["line"]), f"{reason} line); add rows for {missing}")
    if repeated[place]:
        group = group[group["aspect"] == row["aspect"]]
        reason = f"already has a row for {task.context(row['target'], row['aspect'])!r}"
        advice = "delete one of the rows, or give each sentence its own id"
    else:
        reason, advice = "has a different sentence", "give each sentence its own id"
    earlier = f"{'on' if source.index is None else 'at'} {source.place(int(group['line'].iloc[0]))}"
    raise source.error(int(row["line"]), f"id {row['id']!r} {reason} {earlier}; {advice}")


def text_digest(text: str) -> bytes:
    """Returns a 16-byte digest of a text, to compare millions of texts in little memory."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def text_fraction(text: str) -> float:
    """Returns a hash of a text, in [0, 1), to sample texts independently of their order."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64
