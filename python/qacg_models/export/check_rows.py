"""Examples on which an exported file is checked: from a file, from the training data, or from the bundled sample."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.data import Example, file_digest, load_data, load_file, sample_directory
from qacg_models.data.requests import format_of, read_requests
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError
from qacg_models.inference.predictor import examples_of
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.runs.run_config import RUN_NAME, read_run_file


def rows_of_file(
    trained: TrainedModel, path: Path, text_column: str | None, quoting: str | None = None
) -> list[Example]:
    """Returns an example for each pair of a text of the file and a context of the model.

    Args:
        trained: the model.
        path: a file of texts, in a format that `qacg predict` reads.
        text_column: name of the column of texts; None: that of training.
        quoting: one of `delimiters.QUOTING`; None: that of training.

    Raises:
        DataError: the file cannot be read, violates its format, or has no texts or an empty one.
        InputError: a text cannot be encoded as UTF-8, or a package for the format is not installed.
    """
    options = trained.data_options
    reading = replace(options.columns(), quoting=quoting or options.quoting)
    columns = reading.of_texts(text=options.text_column if text_column is None else text_column)
    return _examples(trained, [request.text for request in read_requests(path, format_of(path), columns)])


def rows_at_hand(trained: TrainedModel, folder: Path) -> tuple[list[Example], str]:
    """Returns examples to check a file on, and a description of their source.

    The examples are the dev and test rows of the training data, if their files are unchanged since training. If there
    are no such rows, the examples are the sentences of the bundled sample with each context of the model.

    Args:
        trained: the model.
        folder: folder of the model, whose run.yaml has the paths of the training data.
    """
    found = _rows_of_training(trained, folder)
    if found is not None:
        return found
    sentences = [row.sentence for row in load_file(sample_directory() / "test.tsv", SENTIHOOD)]
    return _examples(trained, [*dict.fromkeys(sentences)]), "sentences of the bundled sample"


def spread(rows: Sequence[Example], most: int) -> list[Example]:
    """Returns all examples, or `most` evenly spaced ones if there are more."""
    if len(rows) <= most:
        return list(rows)
    return [rows[index * len(rows) // most] for index in range(most)]


def with_longest(rows: Sequence[Example], max_length: int) -> list[Example]:
    """Returns `rows`, which must not be empty, and one more example, whose text has at least `max_length` tokens."""
    text = " ".join(row.sentence for row in rows[:max_length])
    words = text.split()
    return [*rows, replace(rows[0], sentence=" ".join(words * (max_length // len(words) + 1)), label=None)]


def _rows_of_training(trained: TrainedModel, folder: Path) -> tuple[list[Example], str] | None:
    """Returns rows of dev and test from unchanged files, and a description; None if there are no such rows."""
    record = trained.record
    try:
        paths = read_run_file(folder / RUN_NAME)["data"]
        data = load_data(paths, ("dev", "test"), record.data_options, optional=("dev", "test"), task=record.task)
    except (InputError, KeyError, OSError):
        return None  # the files were moved or changed; `rows_at_hand` uses the sample
    same = [
        split
        for split, files in data.files.items()
        if split in record.data and file_digest(*files) == record.data[split].sha256
    ]
    rows = [row for split in same for row in data.splits[split] if row.context in trained.contexts]
    return (rows, f"{' and '.join(same)} of {', '.join(paths)}") if rows else None


def _examples(trained: TrainedModel, texts: Sequence[str]) -> list[Example]:
    return examples_of(trained, texts, targets=trained.record.targets if trained.task.has_targets else None)
