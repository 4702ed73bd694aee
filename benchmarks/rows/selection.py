"""Rows that belong together: by case, of one origin, of a quiet machine."""

from collections.abc import Sequence

from benchmarks.cases.case import Case
from benchmarks.rows.kinds import Row, StepRow, TimeRow

MOST_DISTURBANCE = 0.05


def cases_of(measured: Sequence[TimeRow]) -> dict[Case, dict[str, TimeRow]]:
    """Rows by case and provider, in the order of their first appearance."""
    cases: dict[Case, dict[str, TimeRow]] = {}
    for row in measured:
        cases.setdefault(row.case, {})[row.provider] = row
    return cases


def require_one_origin(measured: Sequence[Row]) -> None:
    """Figures of different machines or commits do not belong in one table or plot.

    Raises:
        ValueError: the rows have more than one machine, thread number, version or commit.
    """
    kinds = {str((row.origin.machine, row.origin.versions, row.origin.commit, row.origin.dirty)) for row in measured}
    if len(kinds) > 1:
        raise ValueError("the rows come from different machines, versions or commits; show each by itself")


def threads_of(row: Row) -> int:
    """Threads of torch in the run of a row."""
    return int(row.origin.machine["threads"])


def at_most_threads(measured: Sequence[Row]) -> list[Row]:
    """The rows of the runs with the most threads. The suite has some with fewer, which are for `scaling.py`."""
    most = max(map(threads_of, measured), default=0)
    return [row for row in measured if threads_of(row) == most]


def disturbance_note(times: Sequence[TimeRow | StepRow]) -> list[str]:
    """A sentence when other processes had more of the machine than a figure to be quoted can bear."""
    share = max((row.others_share for row in times if row.others_share is not None), default=0.0)
    if share <= MOST_DISTURBANCE:
        return []
    return [
        f"Not to be quoted: other processes used up to {share:.0%} of the processors meanwhile, which slows "
        "some providers more than others. Repeat on a quiet machine."
    ]
