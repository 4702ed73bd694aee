"""Numbers and counted nouns as text, and tables in Markdown."""

import math
import statistics
from collections.abc import Iterable, Sequence


def counted(count: int, one: str, many: str | None = None) -> str:
    """Returns a count with its noun, as "1 row" and "2,000 rows".

    Args:
        count: the number.
        one: the noun, and possibly a verb, for the number 1.
        many: the same for other numbers; None: `one` with an s.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def clipped(text: str, most: int = 80) -> str:
    """Returns a text of at most `most` characters: the text, or its beginning with "..."."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def percent(share: float | None) -> str:
    """Formats a share in per cent, with one decimal and without the % sign; "n/a" for NaN and None."""
    return "n/a" if share is None or math.isnan(share) else f"{100 * share:.1f}"


def mean_and_deviation(values: Sequence[float], scale: float) -> str:
    """Formats mean and standard deviation of values as "87.1 ± 0.3"; for a single value, the mean only.

    Args:
        values: at least one number.
        scale: factor of the mean and of the standard deviation.
    """
    mean = f"{scale * statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {scale * statistics.stdev(values):.1f}"


def markdown_table(header: Sequence[str], lines: Iterable[Sequence[str]], texts: int) -> str:
    """Returns a Markdown table.

    Args:
        header: names of the columns.
        lines: cells of each line, as many as in `header`.
        texts: number of columns of text, which come first and are left-aligned; other columns are right-aligned.
    """
    rule = "|" + "---|" * texts + "---:|" * (len(header) - texts)
    heading, *body = (f"| {' | '.join(cells)} |" for cells in (header, *lines))
    return "\n".join([heading, rule, *body])
