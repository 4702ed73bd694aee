"""Writes tables of reviews in several file formats."""

import csv
import io

WIDE = [
    ("text", "food", "price"),
    ("the soup was fine", "good", "none"),
    ("too dear", "none", "bad"),
    ("a feast for nothing", "good", "good"),
]


def write_table(path, rows, mark=",", encoding="utf-8", end="\n"):
    stream = io.StringIO()
    csv.writer(stream, delimiter=mark, lineterminator=end).writerows(rows)
    path.write_bytes(stream.getvalue().encode(encoding))
    return path


def half_filled(path, count=100):
    """Writes rows with unusual column names, in which a third of the labels and one text are empty."""
    rows = [("review", "topic", "verdict")]
    rows += [(f"text {n}" if n != 7 else "", "food", ("good", "bad", "")[n % 3]) for n in range(count)]
    return write_table(path, rows)
