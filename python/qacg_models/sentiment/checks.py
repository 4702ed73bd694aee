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
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from qacg_models.checkpoints.files import OTHER_LANGUAGES
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
_LETTER = re.compile(r"[^\W\d_]")


class Doubt(NamedTuple):
    """The index of a row whose label may be wrong, a more probable label, its probability, and that of the label."""

    row: int
    suggested: int
    probability: float
    given: float


def find_doubts(labels: Sequence[int], probabilities: np.ndarray) -> list[Doubt]:
    """Returns the rows with doubtful labels; the largest difference `probability` - `given` comes first.

    `labels` are (N,) class indices, and `probabilities` (N, classes), each row from a model that was not fitted to it.
    """
    given, rows = np.asarray(labels, np.int64), np.arange(len(labels))
    own = probabilities[rows, given]
    sizes = np.bincount(given, minlength=probabilities.shape[1])
    sums = np.bincount(given, own, minlength=len(sizes))
    thresholds = np.divide(sums, sizes, out=np.full(len(sizes), np.inf), where=sizes > 0)
    others = np.where(probabilities >= thresholds, probabilities, -1.0)
    others[rows, given] = -1.0
    best = others.argmax(axis=1)
    found = others[rows, best]
    doubtful = np.flatnonzero((found > own) & (found >= 0))
    order = doubtful[np.argsort((own - found)[doubtful], kind="stable")]
    return [Doubt(int(row), int(best[row]), float(found[row]), float(own[row])) for row in order]


def baseline_doubts(rows: Sequence[Example], task: Task) -> list[Doubt]:
    """Returns the doubtful labels that the TF-IDF baseline finds; none for fewer than two distinct sentences."""
    probabilities = cross_fitted(rows, task) if rows else None
    return [] if probabilities is None else find_doubts([row.label or 0 for row in rows], probabilities)


@dataclass(frozen=True)
class TokenCheck:
    """Counts over the distinct training texts, or over a sample of them (`check_tokens`)."""

    start: str  # a line that names what training starts from (a checkpoint or random weights), and the reason
    vocabulary: str  # tokenizer or checkpoint whose vocabulary is used, or LEARNED
    texts: int  # number of examined texts
    max_length: int  # maximum length of the model in tokens
    cut: int  # number of texts that are truncated, because they are longer than `max_length`
    longest: int  # length of the longest text in tokens, with special tokens and, if it is read, the longest context
    words: int  # number of words in the texts; a Chinese character is a word
    pieces: int  # number of tokens with a letter
    unknown: int  # number of unknown tokens of the texts
    tokens: int = 0  # number of tokens of the texts
    unknown_words: tuple[str, ...] = ()  # the most frequent words and symbols that are unknown tokens, at most SHOWN

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
                "warning: the vocabulary does not suit the language of the texts; start with"
                f" {OTHER_LANGUAGES}{scratch}"
            )
        elif unknown > MOST_UNKNOWN:
            found.append(
                f"warning: the vocabulary lacks words or symbols of the texts ({shown}); start from a checkpoint that"
                f" has them (--from){scratch}"
            )
        return found


def check_tokens(dataset: Dataset, options: TrainingOptions) -> TokenCheck:
    """Counts the tokens of the distinct texts of train, or of an evenly spaced sample of about EXAMINED of them."""
    starts: list[str] = []
    resolved = resolve_options(options, dataset, starts.append)
    tokenizer = begin_tokenizer(dataset, resolved)
    texts = [text for (text,) in distinct(dataset.splits["train"], "sentence")]
    texts = texts[:: max(1, -(-len(texts) // EXAMINED))]
    contexts = [] if resolved.context_standalone else list(dataset.contexts)
    longest_context = max((len(tokenizer(name, add_special_tokens=False)["input_ids"]) for name in contexts), default=0)
    extra = longest_context + tokenizer.num_special_tokens_to_add(pair=bool(contexts))
    encoded = tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    lengths = [len(ids) + extra for ids in encoded["input_ids"]]
    unknown = Counter(
        text[start:end]
        for text, ids, offsets in zip(texts, encoded["input_ids"], encoded["offset_mapping"])
        for piece, (start, end) in zip(ids, offsets)
        if piece == tokenizer.unk_token_id
    )
    places = [(text, *place) for text, offsets in zip(texts, encoded["offset_mapping"]) for place in offsets]
    return TokenCheck(
        start=starts[0],
        vocabulary=resolved.tokenizer or resolved.from_checkpoint or LEARNED,
        texts=len(texts),
        max_length=resolved.max_length,
        cut=sum(length > resolved.max_length for length in lengths),
        longest=max(lengths),
        words=sum(len(_WORD.findall(text)) for text in texts),
        pieces=sum(_LETTER.search(*place) is not None for place in places),
        unknown=unknown.total(),
        tokens=sum(map(len, encoded["input_ids"])),
        unknown_words=tuple(word for word, _ in unknown.most_common(SHOWN)),
    )


@dataclass(frozen=True)
class DataCheck:
    """Results of the checks of a data set."""

    dataset: Dataset
    balance: dict[str, dict[str, dict[str, int]]]  # number of rows, by split, aspect and label
    tokens: TokenCheck
    rows: Sequence[Example]  # the rows that were searched for doubtful labels
    doubts: Sequence[Doubt]  # the most doubtful first

    def text(self, shown: int) -> str:
        """Returns the results as text for a terminal, with the first `shown` doubtful labels."""
        dataset = self.dataset
        parts = [f"format: {self._format}", *describe(dataset), *(one.describe() for one in dataset.warnings)]
        for (one, other), count in dataset.overlap.items():
            if count:
                shared = counted(count, f"sentence of {one} is", f"sentences of {one} are")
                reason = f"{shared} in {other} too, so the metrics on {other} are too high"
                parts.append(f"warning: {reason}; delete {'it' if count == 1 else 'them'} from {one}")
        for split, by_aspect in self.balance.items():
            rows = [[aspect, *map(str, found.values())] for aspect, found in by_aspect.items()]
            parts += ["", text_table([f"rows of {split}", *dataset.task.labels], rows)]
        share = f"{len(self.doubts):,} of {len(self.rows):,} ({len(self.doubts) / len(self.rows):.1%})"
        advice = "; check the first rows, and correct wrong labels" if self.doubts else ""
        parts += ["", *self.tokens.lines(), "", f"doubtful labels: {share}, found by {DOUBTED_BY}{advice}"]
        if self.doubts and shown:
            cells = [self._cells(one) for one in self.doubts[:shown]]
            parts.append(text_table(FIELDS, [[line, clipped(text, _TEXT), *rest] for line, text, *rest in cells]))
        return "\n".join(parts)

    @property
    def _format(self) -> str:
        return find_format(self.dataset.sources[0], self.dataset.options.format).name

    def _cells(self, doubt: Doubt) -> list[str]:
        """Returns the cells of a doubtful label, in the order of FIELDS."""
        row, labels = self.rows[doubt.row], self.dataset.task.labels
        names = labels[row.label or 0], labels[doubt.suggested]
        text = " ".join(row.sentence.split())
        return [str(row.line), text, row.context, *names, f"{doubt.probability:.2f}", f"{doubt.given:.2f}"]

    def write_doubts(self, path: Path) -> None:
        """Writes all doubtful labels as a CSV with the columns FIELDS, with formulas escaped for spreadsheets."""
        with atomic_write(path) as handle:
            rows = csv.writer(handle, lineterminator="\n")
            rows.writerow(FIELDS)
            for doubt in self.doubts:
                rows.writerow([escape_formula(cell) for cell in self._cells(doubt)])


def check_data(dataset: Dataset, options: TrainingOptions) -> DataCheck:
    """Checks a data set; doubtful labels are searched in train, and in dev if both come from the same files."""
    rows, task = list(dataset.splits["train"]), dataset.task
    if "dev" in dataset.splits and dataset.files["dev"] == dataset.files["train"]:
        rows += dataset.splits["dev"]
    balance = {}
    for split, part in dataset.splits.items():
        found = frame_of(part).groupby(["aspect", "label"]).size().to_dict()
        balance[split] = {
            aspect: {name: found.get((aspect, index), 0) for index, name in enumerate(task.labels)}
            for aspect in task.aspects
        }
    return DataCheck(dataset, balance, check_tokens(dataset, options), rows, baseline_doubts(rows, task))
