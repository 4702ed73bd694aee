"""Checks of a data set before training.

They cover format, balance, repeated rows, leakage, tokens, expected macro-F1 and doubtful labels.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qacg_models.checking.expected_quality import expected_quality
from qacg_models.checking.token_check import TokenCheck, check_tokens
from qacg_models.data import Dataset, Example, describe
from qacg_models.data.columns import AUTO, shown_delimiter
from qacg_models.data.example import distinct, frame_of
from qacg_models.data.formats import SPLITS, find_format
from qacg_models.data.tables import header_delimiter
from qacg_models.metrics.doubts import Doubt
from qacg_models.reporting.tables import text_table
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import clipped, counted
from qacg_models.utils.plain_text import escape_formula

FIELDS = ("line", "text", "aspect", "label", "suggested", "probability", "probability of label")
_TEXT = 70  # maximum number of characters of a text in the terminal


@dataclass(frozen=True)
class DataCheck:
    """Results of the checks of a data set.

    Attributes:
        dataset: the checked data set.
        format_reason: a line with the format and the reason why it was chosen.
        balance: number of rows, by split, then by aspect, then by class index of the label.
        tokens: number of truncated texts, number of words, and number of unknown tokens.
        rows: the rows that were searched for doubtful labels.
        doubts: the doubtful labels, the most doubtful first.
        doubted_by: description of the classifier that found the doubtful labels.
    """

    dataset: Dataset
    format_reason: str
    balance: dict[str, dict[str, Counter[int]]]
    tokens: TokenCheck
    rows: Sequence[Example]
    doubts: tuple[Doubt, ...]
    doubted_by: str

    def text(self, shown: int) -> str:
        """Returns the results as text for a terminal, with the first `shown` doubtful labels."""
        dataset, sentences = self.dataset, len(distinct(self.dataset.splits["train"], "sentence"))
        parts = [self.format_reason, *describe(dataset), *(one.describe() for one in dataset.warnings)]
        parts += [self._leak(*pair, count) for pair, count in dataset.overlap.items() if count]
        for split, by_aspect in self.balance.items():
            rows = [
                [aspect, *(str(counts[index]) for index in range(len(dataset.task.labels)))]
                for aspect, counts in by_aspect.items()
            ]
            parts += ["", text_table([f"rows of {split}", *dataset.task.labels], rows)]
        parts += ["", *self.tokens.lines(), expected_quality(sentences), "", self._doubt_line()]
        if self.doubts and shown:
            cells = [self._cells(one) for one in self.doubts[:shown]]
            for row in cells:
                row[1] = clipped(row[1], _TEXT)
            parts.append(text_table(FIELDS, cells))
        return "\n".join(parts)

    @staticmethod
    def _leak(one: str, other: str, count: int) -> str:
        return (
            f"warning: {counted(count, f'sentence of {one} is', f'sentences of {one} are')} in {other} too, so the"
            f" metrics on {other} are too high; delete {'it' if count == 1 else 'them'} from {one}"
        )

    def _doubt_line(self) -> str:
        total = len(self.rows)
        share = f"{len(self.doubts):,} of {total:,} ({len(self.doubts) / total:.1%})"
        advice = "; check the first rows, and correct wrong labels" if self.doubts else ""
        return f"doubtful labels: {share}, found by {self.doubted_by}{advice}"

    def _cells(self, doubt: Doubt) -> list[str]:
        row, labels = self.rows[doubt.row], self.dataset.task.labels
        names = labels[row.label or 0], labels[doubt.suggested]
        text = " ".join(row.sentence.split())
        return [str(row.line), text, row.context, *names, f"{doubt.probability:.2f}", f"{doubt.given:.2f}"]

    def write_doubts(self, path: Path) -> None:
        """Writes all doubtful labels as a CSV with the columns FIELDS; replaces an existing file.

        Each run of white space in a text becomes one space. Cells that a spreadsheet would run as formulas get an
        apostrophe (`escape_formula`).

        Raises:
            InputError: the file cannot be written.
        """
        with atomic_write(path) as handle:
            rows = csv.writer(handle, lineterminator="\n")
            rows.writerow(FIELDS)
            for doubt in self.doubts:
                rows.writerow([escape_formula(cell) for cell in self._cells(doubt)])

    def to_json(self) -> dict:
        """Returns the results as JSON types.

        `doubts` is a list with a dictionary for each doubtful label. Its keys are FIELDS, its values strings.
        """
        dataset, labels = self.dataset, self.dataset.task.labels
        return {
            "format": self.format_reason,
            "notes": list(dataset.notes),
            "warnings": [asdict(one) for one in dataset.warnings],
            "overlap": [[*pair, count] for pair, count in dataset.overlap.items()],
            "balance": {
                split: {aspect: {name: counts[i] for i, name in enumerate(labels)} for aspect, counts in table.items()}
                for split, table in self.balance.items()
            },
            "tokens": asdict(self.tokens),
            "expected": expected_quality(len(distinct(dataset.splits["train"], "sentence"))),
            "doubted_by": self.doubted_by,
            "doubts": [dict(zip(FIELDS, self._cells(one))) for one in self.doubts],
        }


def doubted_rows(dataset: Dataset) -> list[Example]:
    """Returns the rows to search for doubtful labels: train, and also dev if both splits come from the same files."""
    rows = list(dataset.splits["train"])
    same = "dev" in dataset.splits and dataset.files["dev"] == dataset.files["train"]
    return rows + list(dataset.splits["dev"]) if same else rows


def check_data(
    dataset: Dataset, options: TrainingOptions, rows: Sequence[Example], doubts: Sequence[Doubt], doubted_by: str
) -> DataCheck:
    """Checks a data set for a planned training.

    Args:
        dataset: the data set; it has the split train.
        options: options of the planned training.
        rows: the rows that were searched for doubtful labels.
        doubts: the doubtful labels, the most doubtful first.
        doubted_by: description of the classifier that found the doubtful labels.

    Raises:
        InputError: the options do not fit the data, or their tokenizer or checkpoint cannot be loaded.
    """
    balance = {split: _balance(part, dataset) for split, part in dataset.splits.items()}
    tokens = check_tokens(dataset, options)
    return DataCheck(dataset, _format_reason(dataset), balance, tokens, rows, tuple(doubts), doubted_by)


def _balance(rows: Sequence[Example], dataset: Dataset) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {aspect: Counter() for aspect in dataset.task.aspects}
    for (aspect, label), count in frame_of(rows).groupby(["aspect", "label"]).size().items():
        found[aspect][label] = count
    return found


def _format_reason(dataset: Dataset) -> str:
    """Returns a line with the format and the reason why it was chosen, and with the delimiter if it was detected."""
    source, options = dataset.sources[0], dataset.options
    chosen = find_format(source, options.format)
    if options.format != "auto":
        reason = "as given by --format"
    elif source.is_dir():
        names = dict.fromkeys(file.name for (file, *_) in dataset.files.values())  # dev can be from the file of train
        reason = f"by the names of its files: {', '.join(names)}"
    elif any(source.name in chosen.names(split) for split in SPLITS):
        reason = f"by its name, {source.name}"
    else:
        reason = f"by its suffix, {source.suffix}"
    line = f"format: {chosen.name}, {reason}"
    file = source if source.is_file() else dataset.files["train"][0]
    if chosen.table is not None and file.suffix.lower() in (".csv", ".tsv") and options.delimiter == AUTO:
        line += f"; delimiter {shown_delimiter(header_delimiter(file, options.columns()))!r}, from the header"
    return line
