"""Checks of a labelled data set before training: balance, repeated rows, leakage, tokens and doubtful labels.

Doubtful labels are found with the probabilities of models that were fitted to other rows (cross-fitting). The rule
follows confident learning (Northcutt, Jiang and Chuang, "Confident Learning", 2021). The threshold of a label is its
mean probability over the rows that have this label. A row's label is doubtful if another label reaches its own
threshold, and is more probable than the row's label.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from qacg_models.sentiment.dataset import Dataset, describe
from qacg_models.sentiment.example import Example, Task, distinct, frame_of
from qacg_models.sentiment.formats import find_format
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.report.tables import text_table
from qacg_models.sentiment.tfidf import cross_fitted
from qacg_models.sentiment.training.start import begin_tokenizer, resolve_options
from qacg_models.utils.files import atomic_write
from qacg_models.utils.text import clipped, counted, escape_formula

DOUBTED_BY = "TF-IDF with logistic regression in cross-validation"
FIELDS = ("line", "text", "aspect", "label", "suggested", "probability", "probability of label")
_TEXT = 70  # maximum number of characters of a text in the terminal
EXAMINED = 20_000  # maximum number of examined texts
MOST_UNKNOWN = 0.01  # share of unknown tokens above which a vocabulary does not suit the texts
MOST_PIECES = 2.0  # tokens per word above which a vocabulary does not suit the texts; English reviews have 1.1 to 1.3
LEARNED = "learned from the texts"
SHOWN = 3  # maximum number of unknown words that are printed
_HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese characters, which BERT's tokenizer separates like words
_WORD = re.compile(rf"[{_HAN}]|[^\W\d_{_HAN}]+")


@dataclass(frozen=True)
class Doubt:
    """A row whose label may be wrong.

    Attributes:
        row: index of the row.
        suggested: class index of the more probable label.
        probability: probability of the suggested label.
        given: probability of the label that the row has.
    """

    row: int
    suggested: int
    probability: float
    given: float


def find_doubts(labels: Sequence[int], probabilities: np.ndarray) -> list[Doubt]:
    """Returns the rows with doubtful labels; the largest difference `probability` - `given` comes first.

    Args:
        labels: (N,) class indices.
        probabilities: (N, classes) probabilities, each row from a model that was not fitted to it.

    Raises:
        ValueError: `labels` and `probabilities` differ in N, or a label is not a class.

    Example:
        >>> shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.95, 0.05]])
        >>> [(one.row, one.suggested) for one in find_doubts([0, 0, 1, 1, 1], shares)]
        [(4, 0)]
    """
    rows, classes = probabilities.shape
    if len(labels) != rows:
        raise ValueError(f"labels: expected {rows} class indices, one for each row of probabilities, got {len(labels)}")
    if rows == 0:
        return []
    given = np.asarray(labels)
    if given.min() < 0 or given.max() >= classes:
        raise ValueError(f"labels: expected class indices from 0 to {classes - 1}, got {given.min()} to {given.max()}")
    typical = np.array(
        [probabilities[given == index, index].mean() if (given == index).any() else np.inf for index in range(classes)]
    )
    own = probabilities[np.arange(rows), given]
    others = np.where(probabilities >= typical, probabilities, -1.0)
    others[np.arange(rows), given] = -1.0
    best = others.argmax(axis=1)
    found = others[np.arange(rows), best]
    doubtful = np.flatnonzero((found > own) & (found >= 0))
    order = doubtful[np.argsort((own - found)[doubtful], kind="stable")]
    return [Doubt(int(row), int(best[row]), float(found[row]), float(own[row])) for row in order]


def baseline_doubts(rows: Sequence[Example], task: Task) -> list[Doubt]:
    """Returns the doubtful labels that the TF-IDF baseline finds; none for fewer than two distinct sentences.

    Args:
        rows: labelled rows.
        task: labels and aspects of the rows.
    """
    probabilities = cross_fitted(rows, task) if rows else None
    return [] if probabilities is None else find_doubts([row.label or 0 for row in rows], probabilities)


@dataclass(frozen=True)
class TokenCheck:
    """Counts over the distinct training texts, or over a sample of them (`check_tokens`).

    The length of a text includes the special tokens. If the model's inputs contain the name of a context, the length
    also includes the tokens of the longest name.

    Attributes:
        start: a line that names what training starts from (a checkpoint or random weights), and the reason.
        vocabulary: tokenizer or checkpoint whose vocabulary is used, or LEARNED.
        texts: number of examined texts.
        max_length: maximum length of the model in tokens.
        cut: number of texts that are truncated, because they are longer than `max_length`.
        longest: length of the longest text in tokens.
        words: number of words in the examined texts; a Chinese character is a word.
        pieces: number of tokens of the words.
        unknown: number of tokens of the texts that are the unknown token.
        tokens: number of tokens of the texts.
        alike: number of texts that differ from another text only in unknown tokens, so that the model reads them as
            equal.
        unknown_words: the most frequent words and symbols that are unknown tokens, at most SHOWN.
    """

    start: str
    vocabulary: str
    texts: int
    max_length: int
    cut: int
    longest: int
    words: int
    pieces: int
    unknown: int
    tokens: int = 0
    alike: int = 0
    unknown_words: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the lines to print, with warnings at the end."""
        per_word, unknown = self.pieces / max(1, self.words), self.unknown / max(1, self.tokens)
        shown = ", ".join(map(repr, self.unknown_words))
        scratch = "" if self.vocabulary == LEARNED else ", or from random weights (--from scratch)"
        found = [
            self.start,
            f"tokens: the longest of {counted(self.texts, 'text')} has {self.longest:,}; the model reads"
            f" {self.max_length}",
            f"vocabulary ({self.vocabulary}): {per_word:.2f} tokens per word, {unknown:.2%} of the tokens unknown"
            + (f" (most often {shown})" if shown else ""),
        ]
        if self.cut:
            found.append(
                f"warning: {counted(self.cut, 'text is', 'texts are')} longer than {self.max_length} tokens and"
                f" truncated ({self.cut / self.texts:.1%} of the texts); pass a larger --max-length, or split the texts"
            )
        if per_word > MOST_PIECES:
            found.append(
                "warning: the vocabulary does not suit the language of the texts; start from a checkpoint of this"
                f" language (--from){scratch}"
            )
        elif unknown > MOST_UNKNOWN:
            found.append(
                f"warning: the vocabulary lacks words or symbols of the texts ({shown}); start from a checkpoint that"
                f" has them (--from){scratch}"
            )
        if self.alike:
            found.append(
                f"warning: {counted(self.alike, 'text differs', 'texts differ')} from another text only in unknown"
                f" tokens ({shown}), so the model reads them as equal; replace these symbols by words, or start from a"
                f" checkpoint that has them (--from){scratch}"
            )
        return found


def check_tokens(dataset: Dataset, options: TrainingOptions) -> TokenCheck:
    """Counts the tokens of the distinct training texts, or of an evenly spaced sample if there are more than EXAMINED.

    Args:
        dataset: the data set; it has the split train.
        options: options of the planned training.

    Raises:
        InputError: the options do not fit the data, or their tokenizer or checkpoint cannot be loaded.
    """
    starts: list[str] = []
    resolved = resolve_options(options, dataset, starts.append)
    tokenizer = begin_tokenizer(dataset, resolved)
    texts = [text for (text,) in distinct(dataset.splits["train"], "sentence")]
    texts = texts[:: max(1, -(-len(texts) // EXAMINED))]
    contexts = [] if resolved.context_standalone else list(dataset.contexts)
    longest_context = max((len(tokenizer(name, add_special_tokens=False)["input_ids"]) for name in contexts), default=0)
    extra = longest_context + tokenizer.num_special_tokens_to_add(pair=bool(contexts))
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
    lengths = [len(ids) + extra for ids in encoded["input_ids"]]
    unknown = [
        tuple(text[start:end] for piece, (start, end) in zip(ids, offsets) if piece == tokenizer.unk_token_id)
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"])
    ]
    often = Counter(word for found in unknown for word in found)
    words = [word for text in texts for word in _WORD.findall(text)]
    pieces = tokenizer(words, add_special_tokens=False)["input_ids"] if words else []
    return TokenCheck(
        start=starts[0],
        vocabulary=resolved.tokenizer or resolved.from_checkpoint or LEARNED,
        texts=len(texts),
        max_length=resolved.max_length,
        cut=sum(length > resolved.max_length for length in lengths),
        longest=max(lengths),
        words=len(words),
        pieces=sum(map(len, pieces)),
        unknown=often.total(),
        tokens=sum(map(len, encoded["input_ids"])),
        alike=_count_alike(encoded["input_ids"], unknown),
        unknown_words=tuple(word for word, _ in often.most_common(SHOWN)),
    )


def _count_alike(tokens: Sequence[Sequence[int]], unknown: Sequence[tuple[str, ...]]) -> int:
    """Returns the number of texts whose tokens are those of a text with other unknown words; case is ignored."""
    groups: dict[tuple[int, ...], Counter[tuple[str, ...]]] = {}
    for ids, words in zip(tokens, unknown):
        if words:
            groups.setdefault(tuple(ids), Counter())[tuple(word.casefold() for word in words)] += 1
    return sum(found.total() for found in groups.values() if len(found) > 1)


@dataclass(frozen=True)
class DataCheck:
    """Results of the checks of a data set.

    Attributes:
        dataset: the checked data set.
        balance: number of rows, by split, then by aspect, then by class index of the label.
        tokens: number of truncated texts, number of words, and number of unknown tokens.
        rows: the rows that were searched for doubtful labels.
        doubts: the doubtful labels, the most doubtful first.
    """

    dataset: Dataset
    balance: dict[str, dict[str, Counter[int]]]
    tokens: TokenCheck
    rows: Sequence[Example]
    doubts: Sequence[Doubt]

    def text(self, shown: int) -> str:
        """Returns the results as text for a terminal, with the first `shown` doubtful labels."""
        dataset = self.dataset
        parts = [f"format: {self._format}", *describe(dataset), *(one.describe() for one in dataset.warnings)]
        parts += [self._leak(*pair, count) for pair, count in dataset.overlap.items() if count]
        for split, by_aspect in self.balance.items():
            rows = [
                [aspect, *(str(counts[index]) for index in range(len(dataset.task.labels)))]
                for aspect, counts in by_aspect.items()
            ]
            parts += ["", text_table([f"rows of {split}", *dataset.task.labels], rows)]
        parts += ["", *self.tokens.lines(), "", self._doubt_line()]
        if self.doubts and shown:
            cells = [self._cells(one) for one in self.doubts[:shown]]
            for row in cells:
                row[1] = clipped(row[1], _TEXT)
            parts.append(text_table(FIELDS, cells))
        return "\n".join(parts)

    @property
    def _format(self) -> str:
        return find_format(self.dataset.sources[0], self.dataset.options.format).name

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
        return f"doubtful labels: {share}, found by {DOUBTED_BY}{advice}"

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
            "format": self._format,
            "notes": list(dataset.notes),
            "warnings": [asdict(one) for one in dataset.warnings],
            "overlap": [[*pair, count] for pair, count in dataset.overlap.items()],
            "balance": {
                split: {aspect: {name: counts[i] for i, name in enumerate(labels)} for aspect, counts in table.items()}
                for split, table in self.balance.items()
            },
            "tokens": asdict(self.tokens),
            "doubted_by": DOUBTED_BY,
            "doubts": [dict(zip(FIELDS, self._cells(one))) for one in self.doubts],
        }


def check_data(dataset: Dataset, options: TrainingOptions) -> DataCheck:
    """Checks a data set for a planned training.

    Doubtful labels are searched in train, and also in dev if both splits come from the same files.

    Args:
        dataset: the data set; it has the split train.
        options: options of the planned training.

    Raises:
        InputError: the options do not fit the data, or their tokenizer or checkpoint cannot be loaded.
    """
    rows = list(dataset.splits["train"])
    if "dev" in dataset.splits and dataset.files["dev"] == dataset.files["train"]:
        rows += dataset.splits["dev"]
    balance = {split: _balance(part, dataset) for split, part in dataset.splits.items()}
    return DataCheck(dataset, balance, check_tokens(dataset, options), rows, baseline_doubts(rows, dataset.task))


def _balance(rows: Sequence[Example], dataset: Dataset) -> dict[str, Counter[int]]:
    found: dict[str, Counter[int]] = {aspect: Counter() for aspect in dataset.task.aspects}
    for (aspect, label), count in frame_of(rows).groupby(["aspect", "label"]).size().items():
        found[aspect][label] = count
    return found
