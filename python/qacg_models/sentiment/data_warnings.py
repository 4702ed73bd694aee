"""Warnings, with advice, about data that make a trained model worse or its metrics unreliable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import islice
from typing import TYPE_CHECKING

from qacg_models.sentiment.example import Example, Task, counts, distinct, frame_of
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
    """One finding about a split."""

    code: str  # the kind of finding, such as `rare_class`; the codes do not change between releases
    split: str  # name of the split, or of the file
    message: str  # the finding, its consequence, and advice
    count: int  # number of findings, such as rare labels; of rows or sentences for a warning about the whole split
    examples: tuple[str, ...] = ()  # of the first SHOWN findings; empty for warnings about the whole split

    def describe(self) -> str:
        """Returns the warning as one line for a terminal or a page."""
        shown = f" ({'; '.join(self.examples)}{'; ...' if self.count > len(self.examples) else ''})"
        return f"warning: {self.split}: {self.message}{shown if self.examples else ''}"


def training_warnings(
    splits: Mapping[str, Sequence[Example]], task: Task, indices: Mapping[str, Sequence[object]] | None = None
) -> tuple[DataWarning, ...]:
    """Returns warnings about training data, at most one about each problem of a split.

    For rows of DataFrames, `indices` has the frame's index by split; messages then show its labels, not lines.
    """
    found: list[DataWarning] = []
    for split, rows in splits.items():
        sentences = len(distinct(rows, "sentence")) if split == "dev" else LEAST_DEV_SENTENCES
        if split == "train":
            found += [*_no_absent_rows(split, rows, task), *_name_warnings(split, task), *_rare(split, rows, task)]
        elif sentences < LEAST_DEV_SENTENCES:
            message = (
                f"only {counted(sentences, 'sentence')}, so checkpoint selection and metrics on {split} depend partly"
                f" on chance; label more sentences, or enlarge {split} to at least {LEAST_DEV_SENTENCES} sentences"
                " (--set dev_fraction=..., or a separate file)"
            )
            found.append(DataWarning("few_dev_sentences", split, message, sentences))
        else:
            found += _few_rows(split, rows)
        found += _repeated_rows(split, rows, task, (indices or {}).get(split), duplicates=split == "train")
    return tuple(found)


def evaluation_warnings(split: str, rows: Sequence[Example], task: Task) -> tuple[DataWarning, ...]:
    """Returns warnings about evaluation data, of the split or file `split`: too few rows, and contradictory labels."""
    return (*_few_rows(split, rows), *_repeated_rows(split, rows, task, duplicates=False))


def _no_absent_rows(split: str, rows: Sequence[Example], task: Task) -> Iterator[DataWarning]:
    if task.has_absent and 0 in counts(rows, "label"):
        return
    name = repr(task.labels[0]) if task.has_absent else "'none' (or another label, named by --absent-label)"
    message = (
        "no row has a label for 'no opinion on this aspect', so the model predicts a sentiment for every text and"
        f" aspect; add rows with the label {name} for aspects that a text does not mention"
    )
    yield DataWarning("no_absent_rows", split, message, len(rows))


def _name_warnings(split: str, task: Task) -> Iterator[DataWarning]:
    """Yields a warning about names that are equal as numbers, or but for case and spaces."""
    groups: dict[tuple[str, str | Decimal], list[str]] = {}
    for kind, names in (("label", task.labels), ("aspect", task.aspects)):
        for name in names:
            groups.setdefault((kind, _number_or_text(name)), []).append(name)
    similar = [f"{kind}s {', '.join(map(repr, names))}" for (kind, _), names in groups.items() if len(names) > 1]
    if similar:
        message = (
            f"{counted(len(similar), 'label or aspect is', 'labels or aspects are')} written in several ways, and the"
            " model learns each way as a separate label or aspect; use the same capital letters, spaces and form of"
            " numbers in all rows"
        )
        yield DataWarning("similar_names", split, message, len(similar), tuple(similar[:SHOWN]))


def _number_or_text(name: str) -> Decimal | str:
    """Returns the finite number that a name writes, exactly; the normalized name if it writes none."""
    try:
        number = Decimal(name)
    except InvalidOperation:
        return normalized(name)
    return number if number.is_finite() else normalized(name)


def _rare(split: str, rows: Sequence[Example], task: Task) -> Iterator[DataWarning]:
    """Yields warnings about labels and about aspects with few rows."""
    by_label, by_aspect = counts(rows, "label"), counts(rows, "aspect")
    of_labels = {name: by_label.get(index, 0) for index, name in enumerate(task.labels)}
    if task.has_absent and not of_labels[task.labels[0]]:
        del of_labels[task.labels[0]]  # `no_absent_rows` reports it
    of_aspects = {name: by_aspect.get(name, 0) for name in task.aspects}
    merge_aspects = "merge aspects, or name the column of the aspects with --aspect-column"
    for kind, found, advice in (("label", of_labels, "or merge labels"), ("aspect", of_aspects, merge_aspects)):
        rare = {name: count for name, count in found.items() if count < LEAST_CLASS_ROWS}
        if rare:
            few = f"{counted(len(rare), f'{kind} has', f'{kind}s have')} fewer than {LEAST_CLASS_ROWS} rows"
            message = f"{few}, too few for training; label more rows, {advice}"
            shown = [f"{name!r}: {counted(count, 'row')}" for name, count in list(rare.items())[:SHOWN]]
            yield DataWarning(
                "rare_class" if kind == "label" else "rare_aspect", split, message, len(rare), tuple(shown)
            )


def _few_rows(split: str, rows: Sequence[Example]) -> Iterator[DataWarning]:
    if len(rows) < LEAST_ROWS:
        error = 50 / max(len(rows), 1) ** 0.5  # at an accuracy of 50 %, where it is highest; in percentage points
        message = (
            f"metrics on {counted(len(rows), 'row')} are imprecise: the standard error of an accuracy is up to"
            f" {error:.0f} percentage points; evaluate on at least {LEAST_ROWS} rows, preferably on hundreds"
        )
        yield DataWarning("few_rows", split, message, len(rows))


def _repeated_rows(
    split: str, rows: Sequence[Example], task: Task, index: Sequence[object] | None = None, *, duplicates: bool
) -> Iterator[DataWarning]:
    """Yields at most one warning about contradictory labels, one about opposed targets, and one about duplicate rows.

    Two rows contradict each other if text, context and target are equal and the labels differ. They are duplicates if
    the labels are equal too (with `duplicates` only). Targets are opposed if their labels of one text and context
    differ, and no rows contradict each other. The comparison of texts ignores case and repeated spaces.
    """
    frame = frame_of(rows)
    codes, texts = frame["sentence"].factorize()
    frame = frame.assign(text=texts.map(normalized).factorize()[0][codes])
    frame["pair"] = frame.groupby(["text", "context"], sort=False).ngroup()
    frame["key"] = frame.groupby(["pair", "target"], sort=False).ngroup()
    labels = frame.groupby("key")["label"].nunique()
    contradicted = frame[frame["key"].map(labels) > 1]
    if count := contradicted["key"].nunique():
        shown = contradicted.drop_duplicates(["key", "label"])
        message = (
            f"{counted(count, 'pair of text and aspect has', 'pairs of text and aspect have')} different labels in"
            " different rows, and at most one of these labels is right; keep the right rows and delete the others"
        )
        yield DataWarning("contradictory_labels", split, message, count, _shown(shown, ["key"], task, index))
    opposed = frame[~frame["pair"].isin(contradicted["pair"])]
    opposed = opposed[opposed.groupby("pair")["label"].transform("nunique") > 1]
    if count := opposed["pair"].nunique():
        shown = opposed.drop_duplicates(["pair", "label"])
        message = (
            f"{counted(count, 'pair of text and aspect has', 'pairs of text and aspect have')} different labels for"
            " different targets; the model does not read the target, so at most one of these labels is predicted"
            " correctly; give such a pair one label, or accept these errors"
        )
        yield DataWarning("opposed_targets", split, message, count, _shown(shown, ["pair"], task, index))
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
