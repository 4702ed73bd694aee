"""Examples and the task from records of your own tables; records without empty fields.

Labels and aspects can have any names; the text `None` is a label name, not a missing value.

Without a column of ids, all records with the same text and target get the same id, even if they are not adjacent. An id
has at most one record for each aspect. If an aspect is repeated, a new id begins: this record and later ones with the
same text and target get the new id.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from qacg_models.data.columns import Columns, Record
from qacg_models.data.example import DataError, Example, class_index, text_digest
from qacg_models.data.row_problems import RowProblems
from qacg_models.data.task import Task
from qacg_models.errors import InputError

MOST_LABELS = 20  # maximum number of distinct values of a column that is detected as an aspect
_NOT_WIDE = (
    "name the aspect columns with --aspect-columns, or set wide=false (--set) for a table with a row for each aspect"
)


def filled(
    records: Iterable[Record], path: Path, columns: Columns, skipped: RowProblems | None = None, keep: bool = False
) -> Iterator[Record]:
    """Yields the records without an empty field.

    Without `skipped`, no record is yielded after the first record with an empty field. The later records are still
    read, so that the error can list the lines of all records with an empty field (at most LISTED lines).

    Args:
        records: the records of the file.
        path: path of the file, for errors.
        columns: names of the fields.
        skipped: counter of records with an empty field, which are left out; None: such records raise DataError.
        keep: also yield the records that `skipped` counts.

    Raises:
        DataError: every record has an empty field, or a record has an empty field and `skipped` is None.
    """
    names, problems, whole = columns.names(), skipped or RowProblems(path), 0
    for line, record in records:
        is_whole = all([record[name] for name in names])
        if not is_whole:
            empty = next(name for name in names if not record[name])
            shown = record[columns.aspect] if columns.wide and empty == columns.label else empty
            problems.add(line, f"has an empty {shown!r}")
        whole += is_whole
        if skipped is None and problems.total:
            continue
        if is_whole or keep:
            yield line, record
    if skipped is None and problems.total:
        advice = "fill in empty cells" + (" (the label 'none' means no opinion)" if columns.label is not None else "")
        raise problems.error(f"{advice}, or pass --skip-empty to leave such rows out")
    if problems.total and not whole:
        raise DataError(path, None, f"expected at least one row without an empty cell, got none ({problems.summary()})")


def examples_of(records: Iterable[Record], path: Path, task: Task, columns: Columns) -> Iterator[Example]:
    """Yields an example for every record.

    Raises:
        DataError: a record has a label or an aspect that the task does not have.
    """
    numbers = {aspect: number for number, aspect in enumerate(task.aspects)}
    line_before, same_line = 0, 0
    latest: dict[bytes, tuple[str, int]] = {}  # by text and target: the newest id, and a bit for each of its aspects
    for line, record in records:
        text, aspect, label = record[columns.text], record[columns.aspect], record[columns.label]
        target = "" if columns.target is None else record[columns.target]
        if aspect not in numbers:
            advice = f"; {_NOT_WIDE}"
            reason = f"aspect: expected one of {', '.join(task.aspects)}, got {aspect!r}"
            raise DataError(path, line, reason + (advice if columns.wide else ""))
        index = class_index(label, task, path, line)
        if columns.id is not None:
            group = record[columns.id]
        else:
            key = text_digest(f"{target}\n{text}")
            bit = 1 << numbers[aspect]
            group, seen = latest.get(key, ("", bit))
            if seen & bit:
                same_line = same_line + 1 if line == line_before else 0  # items of a JSON array can begin on one line
                group, seen, line_before = f"line {line} ({same_line + 1})" if same_line else f"line {line}", 0, line
            latest[key] = group, seen | bit
        split = record.get(columns.split, "") if columns.split else ""
        yield Example(group, text, task.context(target, aspect), target, aspect, index, line, split)


def discover(
    records: Iterable[Record],
    path: Path,
    columns: Columns,
    *,
    aspects: tuple[str, ...] | None,
    labels: tuple[str, ...] | None,
    absent_label: str | None,
) -> Task:
    """Returns the task of a training file.

    Args:
        records: the records of the file; read only if `aspects` or `labels` is None.
        path: path of the file, for errors.
        columns: names of the records' fields.
        aspects, labels: names in the order of their indices; None: the names in the records, in natural order (2
            before 10).
        absent_label: the label that means "no opinion", which gets index 0; None: the label "none" if there is one,
            else the first label that differs from it only in case or surrounding spaces.

    Raises:
        DataError: `aspects` or `labels` is None, and there are no records. `labels` is None, and the records have fewer
            than two labels. A detected aspect column has more than MOST_LABELS distinct values, or no label in common
            with the other aspect columns.
        InputError: `absent_label` is not a label; or `aspects` or `labels` has too few names, an empty name or a
            repeated name.
    """
    found_aspects, found_labels = set(aspects or ()), set(labels or ())
    if aspects is None or labels is None:
        by_aspect: dict[str, set[str]] = {}
        for _, record in records:
            values = by_aspect.setdefault(record[columns.aspect], set())
            values.add(record[columns.label])
            if columns.wide and columns.aspect_columns is None and len(values) > MOST_LABELS:
                reason = f"column {record[columns.aspect]!r} has more than {MOST_LABELS} different values"
                raise DataError(path, None, f"{reason}; {_NOT_WIDE}")
        if columns.wide and columns.aspect_columns is None:
            _check_shared(path, by_aspect)
        if not by_aspect:
            raise DataError(path, None, "has no rows")
        found_aspects |= by_aspect.keys()
        found_labels |= set().union(*by_aspect.values())
    names = list(labels or sorted(found_labels, key=natural_key))
    if len(names) < 2 and labels is None:
        reason = f"labels: expected at least 2, got {len(names)} ({', '.join(names)})"
        raise DataError(path, None, f"{reason}; add training rows with another label")
    candidates = [name for name in names if name.strip().casefold() == "none"]
    absent = absent_label
    if absent is None:
        absent = min(candidates, key=lambda name: name != "none", default=None)
    if absent is not None and absent not in names:
        raise InputError(f"absent_label: expected one of {', '.join(names)}, got {absent!r}")
    if absent is not None:
        names = [absent, *(name for name in names if name != absent)]
    return Task(
        name="own",
        labels=tuple(names),
        aspects=tuple(aspects or sorted(found_aspects if aspects is None else aspects, key=natural_key)),
        has_absent=absent is not None,
        has_targets=columns.target is not None,
    )


def _check_shared(path: Path, by_aspect: dict[str, set[str]]) -> None:
    """Raises DataError for a column of a wide table that has no label in common with any other column."""
    for aspect, values in by_aspect.items():
        others = set().union(*(found for name, found in by_aspect.items() if name != aspect))
        if others and not values & others:
            shown = ", ".join(sorted(values, key=natural_key)[:3])
            reason = f"column {aspect!r} ({shown}) shares no label with the other columns"
            raise DataError(path, None, f"{reason}; {_NOT_WIDE}")


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """Returns a sort key that orders numbers inside texts by value: 2 before 10; keys of different texts differ."""
    key = []
    for part in re.split(r"([0-9]+)", text):
        if part and part[0] in "0123456789":
            digits = part.lstrip("0")
            key.append((0, len(digits), digits))  # no int(), which Python limits to a few thousand digits
        elif part:
            key.append((1, 0, part))
    return [*key, (-1, 0, text)]  # 01 before 1
