"""Real rows to check an exported file on: texts that are given, else those of training, else the package's sample."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.data import Example, file_digest, load_data, load_file, sample_directory
from qacg_models.data.requests import format_of, read_requests
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.runs.run_config import RUN_NAME, read_run_file


def rows_of_file(trained: TrainedModel, path: Path, text_column: str | None) -> list[Example]:
    """A row for each text of a file (.txt, .csv, .jsonl) and context of the model.

    Args:
        text_column: None: the one of training.

    Raises:
        DataError: the file cannot be read, or has no texts.
    """
    options = trained.data_options
    columns = options.columns().of_texts(text=text_column or options.text_column)
    texts = (request.text for request in read_requests(path, format_of(path), columns))
    return _asked(trained, texts)


def rows_at_hand(trained: TrainedModel, folder: Path) -> tuple[list[Example], str]:
    """Rows for a model without a file of the user's, and where they come from, in words.

    Args:
        folder: of the model, whose run.yaml says where the data of training lay.
    """
    found = _rows_of_training(trained, folder)
    if found is not None:
        return found
    sentences = [row.sentence for row in load_file(sample_directory() / "test.tsv", SENTIHOOD)]
    return _asked(trained, dict.fromkeys(sentences)), "sentences of the package's sample"


def spread(rows: Sequence[Example], most: int) -> list[Example]:
    """At most so many of the rows, evenly spaced."""
    if len(rows) <= most:
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]


def with_longest(rows: Sequence[Example], max_length: int) -> list[Example]:
    """The rows and one more, their texts joined until they fill a model's `max_length` tokens."""
    text = " ".join(row.sentence for row in rows[:max_length])
    words = text.split()
    return [*rows, replace(rows[0], sentence=" ".join(words * (max_length // len(words) + 1)), label=None)]


def _rows_of_training(trained: TrainedModel, folder: Path) -> tuple[list[Example], str] | None:
    """Rows of test and dev, if they are still where they were, and as they were."""
    record = trained.record
    try:
        paths = read_run_file(folder / RUN_NAME)["data"]
        data = load_data(paths, ("dev", "test"), record.data_options, optional=("dev", "test"), task=record.task)
    except (InputError, KeyError, OSError):
        return None  # moved or changed since, and the report says what was taken in its place
    same = [
        split
        for split, files in data.files.items()
        if split in record.data and file_digest(*files) == record.data[split].sha256
    ]
    rows = [row for split in same for row in data.splits[split] if row.context in trained.contexts]
    return (rows, f"{' and '.join(same)} of {', '.join(paths)}") if rows else None


def _asked(trained: TrainedModel, texts: Iterable[str]) -> list[Example]:
    known = Questions.of(trained.task, trained.contexts)
    questions = replace(known, targets=known.known_targets)
    return [row for text in texts for row in questions.rows(text)]
