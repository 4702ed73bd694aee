"""Data of one's own: records, each with a text, an aspect and a label under the names of `Columns`, as examples.

Labels and aspects are any names; the label `None` stays the text `None`. Where records have no ids, neighbouring ones
with the same text are one sentence, until an aspect comes again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError, Example
from qacg_models.data.task import Task
from qacg_models.errors import InputError

Record = tuple[int, dict[str, str]]  # the line where it begins; its texts, none empty, by the names of `Columns`


def examples_of(records: Iterable[Record], path: Path, task: Task, columns: Columns) -> Iterator[Example]:
    """An example for every record, one in memory at a time.

    Raises:
        DataError: at the first record with a label or an aspect that the task does not have.
    """
    group, text_before, aspects_seen = "", None, set()
    for line, record in records:
        text, aspect, label = record[columns.text], record[columns.aspect], record[columns.label]
        target = record[columns.target] if columns.target else ""
        if aspect not in task.aspects:
            raise DataError(path, line, f"unknown aspect {aspect!r}; this task knows {', '.join(task.aspects)}")
        try:
            index = task.label_index(label)
        except ValueError as error:
            raise DataError(path, line, str(error)) from None
        if columns.id:
            group = record[columns.id]
        elif text != text_before or (target, aspect) in aspects_seen:
            group, text_before, aspects_seen = f"line {line}", text, set()
        aspects_seen.add((target, aspect))
        yield Example(group, text, task.context(target, aspect), target, aspect, index, line)


def discover(
    records: Iterable[Record],
    path: Path,
    columns: Columns,
    *,
    aspects: tuple[str, ...] | None,
    labels: tuple[str, ...] | None,
    absent_label: str | None,
) -> Task:
    """The task of a training file.

    Args:
        records: of the file, which are read where `aspects` or `labels` is None.
        aspects, labels: in the order of their numbers; None takes those of the records in natural order.
        absent_label: the label that means "no opinion"; None takes one that is called none, in any case.

    Raises:
        DataError: no records, or fewer than two labels.
        InputError: `absent_label` is not a label.
    """
    found_aspects, found_labels = set(aspects or ()), set(labels or ())
    if aspects is None or labels is None:
        for _, record in records:
            found_aspects.add(record[columns.aspect])
            found_labels.add(record[columns.label])
        if not found_labels:
            raise DataError(path, None, "has no rows")
    names = list(labels or sorted(found_labels, key=natural_key))
    if len(names) < 2:
        raise DataError(path, None, f"has {len(names)} labels ({', '.join(names)}), wanted at least 2")
    absent = absent_label or next((name for name in names if name.casefold() == "none"), None)
    if absent is not None and absent not in names:
        raise InputError(f"absent label: got {absent!r}, wanted one of {', '.join(names)}")
    if absent is not None:
        names = [absent, *(name for name in names if name != absent)]
    return Task(
        name="own",
        labels=tuple(names),
        aspects=tuple(aspects or sorted(found_aspects if aspects is None else aspects, key=natural_key)),
        has_absent=absent is not None,
        has_targets=columns.target is not None,
    )


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Sorts numbers inside texts by their value: 2 before 10."""
    key = []
    for part in re.split(r"([0-9]+)", text):
        if part and part[0] in "0123456789":
            digits = part.lstrip("0")
            key.append((0, len(digits), digits))  # as their values, which Python does not make of thousands of digits
        elif part:
            key.append((1, 0, part))
    return key
