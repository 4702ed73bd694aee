"""Warnings, with advice, about data that make a trained model worse or its metrics unreliable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import TYPE_CHECKING

from qacg_models.sentiment.example import (
    Example,
    Task,
    counts,
    distinct,
    frame_of,
)
from qacg_models.utils.text import clipped, counted, normalized

if TYPE_CHECKING:
    from pandas import DataFrame

# Smaller numbers give a warning. The standard error of an accuracy is up to 7 percentage points for 50 rows. It is up
# to 9 for the rows of 30 sentences, because the errors within a sentence are correlated. Of 10 rows with a label, about
# one is in dev.
LEAST_ROWS, LEAST_DEV_SENTENCES, LEAST_CLASS_ROWS = 50, 30, 10
SHOWN = 3  # maximum number of examples in a warning
_TEXT = 60  # maximum number of characters of a text in an example


@dataclass(frozen=True)
class DataWarning:
    """One finding about a split.

    Attributes:
        code: the kind of finding, such as `rare_class`; the codes do not change between releases.
        split: name of the split, or of the file.
        message: the finding, its consequence, and advice.
        count: number of findings, such as rare labels; of rows for `no_absent_rows` and `few_rows`, and of sentences
            for `few_dev_sentences`.
        examples: one description for each of the first SHOWN findings; empty for warnings about the whole split.
    """

    code: str
    split: str
    message: str
    count: int
    examples: tuple[str, ...] = ()

    def describe(self) -> str:
        """Returns the warning as one line for a terminal or a page."""
        shown = f" ({'; '.join(self.examples)}{'; ...' if self.count > len(self.examples) else ''})"
        return f"warning: {self.split}: {self.message}{shown if self.examples else ''}"


def training_warnings(
    splits: Mapping[str, Sequence[Example]], task: Task, indices: Mapping[str, Sequence[object]] | None = None
) -> tuple[DataWarning, ...]:
    """Returns warnings about training data.

    Args:
        splits: labelled rows by split name; no split is required.
        task: labels and aspects of the rows.
        indices: for rows of DataFrames, the frame's index by split name. A message then shows entry N - 1 of the index
            for a row whose `line` is N. None: messages show line numbers.

    Returns:
        The warnings, at most one about each problem of a split:

        - train: no row has the label for "no opinion"; labels or aspects differ only in capitals, spaces or the form of
          a number; a label or aspect has spaces at its ends; a label or an aspect has few rows; contradictory labels;
          duplicate rows.
        - dev: too few sentences or, if the sentences are enough, too few rows; contradictory labels.
        - other splits: too few rows; contradictory labels.

    Example:
        >>> from qacg_models.sentiment.dataset import load_data, sample_directory
        >>> dataset = load_data(sample_directory())
        >>> training_warnings(dataset.splits, dataset.task)
        ()
    """
    found: list[DataWarning | None] = []
    for split, rows in splits.items():
        if split == "train":
            found += [_no_absent_rows(split, rows, task), _similar_names(split, task), _spaces_at_ends(split, task)]
            found += [_rare_classes(split, rows, task), _rare_aspects(split, rows, task)]
            found += _repeated_rows(split, rows, task, (indices or {}).get(split), duplicates=True)
            continue
        few = _few_dev_sentences(split, rows) if split == "dev" else None
        found += [few or _few_rows(split, rows)]
        found += _repeated_rows(split, rows, task, (indices or {}).get(split), duplicates=False)
    return tuple(one for one in found if one is not None)


def evaluation_warnings(split: str, rows: Sequence[Example], task: Task) -> tuple[DataWarning, ...]:
    """Returns warnings about evaluation data: too few rows, and contradictory labels.

    Args:
        split: name of the split or file, for the messages.
        rows: labelled rows.
        task: labels and aspects of the rows.
    """
    found = [_few_rows(split, rows), *_repeated_rows(split, rows, task, duplicates=False)]
    return tuple(one for one in found if one is not None)


def _no_absent_rows(split: str, rows: Sequence[Example], task: Task) -> DataWarning | None:
    if task.has_absent and 0 in counts(rows, "label"):
        return None
    name = repr(task.labels[0]) if task.has_absent else "'none' (or another label, named by --absent-label)"
    message = (
        "no row has a label for 'no opinion on this aspect', so the model predicts a sentiment for every text and"
        f" aspect; add rows with the label {name} for aspects that a text does not mention"
    )
    return DataWarning("no_absent_rows", split, message, len(rows))


def _similar_names(split: str, task: Task) -> DataWarning | None:
    shown = [f"{kind}s {', '.join(map(repr, names))}" for kind, names in _equal_names(task) if len(names) > 1]
    if not shown:
        return None
    message = (
        f"{counted(len(shown), 'label or aspect is', 'labels or aspects are')} written in several ways, and the"
        " model learns each way as a separate label or aspect; use the same capital letters, spaces and form of numbers"
        " in all rows"
    )
    return DataWarning("similar_names", split, message, len(shown), tuple(shown[:SHOWN]))


def _spaces_at_ends(split: str, task: Task) -> DataWarning | None:
    # `similar_names` reports names that are written in several ways.
    single = [(kind, names[0]) for kind, names in _equal_names(task) if len(names) == 1]
    shown = [f"{kind} {name!r}" for kind, name in single if name != name.strip()]
    if not shown:
        return None
    message = (
        f"{counted(len(shown), 'label or aspect has', 'labels or aspects have')} spaces at the ends, and a name without"
        " these spaces is a different label or aspect; remove the spaces"
    )
    return DataWarning("spaces_at_ends", split, message, len(shown), tuple(shown[:SHOWN]))


def _equal_names(task: Task) -> list[tuple[str, list[str]]]:
    """Returns "label" or "aspect", and the names that are equal as numbers or differ only in case and spaces."""
    groups: dict[tuple[str, str | Decimal], list[str]] = {}
    for kind, names in (("label", task.labels), ("aspect", task.aspects)):
        for name in names:
            number = _number(name)
            groups.setdefault((kind, normalized(name) if number is None else number), []).append(name)
    return [(kind, names) for (kind, _), names in groups.items()]


def _number(name: str) -> Decimal | None:
    """Returns the finite number that a name writes, exactly; None if it writes none."""
    try:
        number = Decimal(name)
    except InvalidOperation:
        return None
    return number if number.is_finite() else None


def _rare_classes(split: str, rows: Sequence[Example], task: Task) -> DataWarning | None:
    found = counts(rows, "label")
    of_labels = {name: found.get(index, 0) for index, name in enumerate(task.labels)}
    if task.has_absent and not of_labels[task.labels[0]]:
        del of_labels[task.labels[0]]  # `no_absent_rows` reports it
    return _rare("rare_class", split, of_labels, ("label has", "labels have"), "or merge labels")


def _rare_aspects(split: str, rows: Sequence[Example], task: Task) -> DataWarning | None:
    found = counts(rows, "aspect")
    of_aspects = {name: found.get(name, 0) for name in task.aspects}
    advice = "merge aspects, or name the column of the aspects with --aspect-column"
    return _rare("rare_aspect", split, of_aspects, ("aspect has", "aspects have"), advice)


def _rare(code: str, split: str, found: dict[str, int], words: tuple[str, str], advice: str) -> DataWarning | None:
    """Returns a warning about the names with few rows; None if there are none."""
    rare = {name: count for name, count in found.items() if count < LEAST_CLASS_ROWS}
    if not rare:
        return None
    few = f"{counted(len(rare), *words)} fewer than {LEAST_CLASS_ROWS} rows, too few for training"
    shown = [f"{name!r}: {counted(count, 'row')}" for name, count in list(rare.items())[:SHOWN]]
    return DataWarning(code, split, f"{few}; label more rows, {advice}", len(rare), tuple(shown))


def _few_dev_sentences(split: str, rows: Sequence[Example]) -> DataWarning | None:
    count = len(distinct(rows, "sentence"))
    if count >= LEAST_DEV_SENTENCES:
        return None
    message = (
        f"only {counted(count, 'sentence')}, so checkpoint selection and metrics on {split} depend partly"
        f" on chance; label more sentences, or enlarge {split} to at least {LEAST_DEV_SENTENCES} sentences"
        " (--set dev_fraction=..., or a separate file)"
    )
    return DataWarning("few_dev_sentences", split, message, count)


def _few_rows(split: str, rows: Sequence[Example]) -> DataWarning | None:
    if len(rows) >= LEAST_ROWS:
        return None
    error = 50 / max(len(rows), 1) ** 0.5  # at an accuracy of 50 %, where it is highest; in percentage points
    message = (
        f"metrics on {counted(len(rows), 'row')} are imprecise: the standard error of an accuracy is up to"
        f" {error:.0f} percentage points; evaluate on at least {LEAST_ROWS} rows, preferably on hundreds"
    )
    return DataWarning("few_rows", split, message, len(rows))


def _repeated_rows(
    split: str, rows: Sequence[Example], task: Task, index: Sequence[object] | None = None, *, duplicates: bool
) -> Iterator[DataWarning]:
    """Yields at most one warning about contradictory labels and, with `duplicates`, one about duplicate rows.

    Two rows contradict each other if text, context and target are equal and the labels differ. They are duplicates if
    the labels are equal too. The comparison of texts ignores case and repeated spaces.
    """
    frame = frame_of(rows)
    codes, texts = frame["sentence"].factorize()
    frame = frame.assign(text=texts.map(normalized).factorize()[0][codes])
    frame["key"] = frame.groupby(["text", "context", "target"], sort=False).ngroup()
    labels = frame.groupby("key")["label"].nunique()
    contradicted = frame[frame["key"].map(labels) > 1]
    if count := contradicted["key"].nunique():
        shown = contradicted.drop_duplicates(["key", "label"])
        message = (
            f"{counted(count, 'pair of text and aspect has', 'pairs of text and aspect have')} different labels in"
            " different rows, and at most one of these labels is right; keep the right rows and delete the others"
        )
        yield DataWarning("contradictory_labels", split, message, count, _shown(shown, ["key"], task, index))
    repeated = frame[frame.duplicated(["key", "label"])]
    if duplicates and len(repeated):
        message = (
            f"{counted(len(repeated), 'row repeats', 'rows repeat')} the text, aspect and label of an earlier row, so"
            " that this text has more weight; delete copies, unless different people wrote the same text"
        )
        shown = frame[frame.duplicated(["key", "label"], keep=False)]
        yield DataWarning("duplicate_rows", split, message, len(repeated), _shown(shown, ["key", "label"], task, index))


def _shown(frame: DataFrame, by: list[str], task: Task, index: Sequence[object] | None) -> tuple[str, ...]:
    """Returns context and text of the first SHOWN groups, then line (or index) and label of their first SHOWN rows."""
    found = []
    for _, group in islice(frame.groupby(by, sort=False), SHOWN):
        first, places = group.iloc[0], []
        for line, label in group[["line", "label"]].head(SHOWN).itertuples(index=False, name=None):
            place = f"line {line}" if index is None else f"index {index[line - 1]!r}"
            places.append(f"{place} {task.labels[label]!r}")
        text = clipped(" ".join(first["sentence"].split()), _TEXT)
        found.append(f"{first['context']!r} of {text!r}: {', '.join(places)}")
    return tuple(found)
