"""Unusable rows of a file: an error that lists them, or counts of skipped rows."""

from collections import Counter
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.utils.cells import clipped

LISTED = 20  # maximum number of lines in an error message
MOST_KINDS = 1000  # maximum number of different problems that are counted, to limit memory
LONGEST = 150  # maximum number of characters of each problem after the first one in an error message


class RowProblems:
    """Collects the unusable rows of a file.

    Attributes:
        path: the file.
        total: number of unusable rows.
        counts: number of unusable rows by problem, for the first MOST_KINDS problems.
    """

    def __init__(self, path: Path):
        self.path = path
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._lines: dict[str, list[int]] = {}
        self._listed = 0

    def add(self, line: int, problem: str) -> None:
        """Adds a row by its line number; `problem` is a predicate such as "has an empty 'label'"."""
        self.total += 1
        if problem in self.counts or len(self.counts) < MOST_KINDS:
            self.counts[problem] += 1
        if self._listed < LISTED:
            self._lines.setdefault(problem, []).append(line)
            self._listed += 1

    def error(self, advice: str) -> DataError:
        """Returns an error that lists the first LISTED rows; at least one row must have been added.

        The message begins with the path and the line of the first row, and ends with `advice`.
        """
        (problem, (first, *same)), *others = self._lines.items()
        parts = [f"{problem} (also {_lines(same)})" if same else problem]
        parts += [f"{_lines(lines)}: {clipped(other, LONGEST)}" for other, lines in others]
        if self.total > self._listed:
            parts.append(f"and {self.total - self._listed:,} more")
        return DataError(self.path, first, "; ".join([*parts, advice]))

    def lines(self) -> str:
        """Returns the line numbers of the first LISTED rows as text, and the number of others."""
        more = f" and {self.total - self._listed:,} more" if self.total > self._listed else ""
        return _lines(sorted(line for lines in self._lines.values() for line in lines)) + more

    def summary(self) -> str:
        """Returns the number of rows with each problem as text, such as "3 with an empty 'label'"."""
        return ", ".join(f"{count:,} {problem.replace('has', 'with', 1)}" for problem, count in self.counts.items())


def _lines(lines: list[int]) -> str:
    return f"line{'s' if lines[1:] else ''} {', '.join(map(str, lines))}"
