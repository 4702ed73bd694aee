"""Rows of a file that cannot be used: listed together in one error, or counted where they are to be skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from qacg_models.data.columns import Columns, Record
from qacg_models.data.example import DataError

LISTED = 20  # lines that an error lists
MOST_KINDS = 1000  # of problems that are counted each by itself, so that millions of rows take little memory
LONGEST = 150  # characters of a problem after the first one


class RowProblems:
    """The unusable rows of one file.

    Attributes:
        path: of the file.
        total: how many there are.
        counts: how many have which problem.
    """

    def __init__(self, path: Path):
        self.path = path
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._lines: dict[str, list[int]] = {}
        self._listed = 0

    def add(self, line: int, problem: str) -> None:
        """Counts a problem, said of the row such as "has an empty 'label'"."""
        self.total += 1
        if problem in self.counts or len(self.counts) < MOST_KINDS:
            self.counts[problem] += 1
        if self._listed < LISTED:
            self._lines.setdefault(problem, []).append(line)
            self._listed += 1

    def error(self, advice: str) -> DataError:
        """The error that lists them, beginning with the first one's line."""
        (problem, (first, *same)), *others = self._lines.items()
        said = [f"{problem}, as {'do' if same[1:] else 'does'} {_lines(same)}" if same else problem]
        said += [f"{_lines(lines)}: {_cut(other)}" for other, lines in others]
        if self.total > self._listed:
            said.append(f"and {self.total - self._listed:,} more")
        return DataError(self.path, first, "; ".join([*said, advice]))

    def summary(self) -> str:
        """How many rows have which problem, as text."""
        return ", ".join(f"{count:,} {problem.replace('has', 'with', 1)}" for problem, count in self.counts.items())


def filled(
    records: Iterable[Record], path: Path, columns: Columns, skipped: RowProblems | None = None, keep: bool = False
) -> Iterator[Record]:
    """The records without an empty field.

    After the first record that has one, the others are read to list all of them in the error, and none is yielded.

    Args:
        records: of the file `path`.
        skipped: receives the records with an empty field, which are left out; None raises instead.
        keep: yield them nevertheless, where they are counted.

    Raises:
        DataError: a record has an empty field, or all have.
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
        advice = "fill them in" if columns.label is None else "fill them in (with none where there is no opinion)"
        raise problems.error(f"{advice}, or pass --skip-empty to leave such rows out")
    if problems.total and not whole:
        raise DataError(path, None, f"has no row without an empty cell ({problems.summary()})")


def _cut(problem: str) -> str:
    return problem if len(problem) <= LONGEST else f"{problem[: LONGEST - 3]}..."


def _lines(lines: list[int]) -> str:
    return f"line{'s' if lines[1:] else ''} {', '.join(map(str, lines))}"
