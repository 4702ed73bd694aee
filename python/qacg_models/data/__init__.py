"""Aspect-based sentiment data: every file format is read into the same `Example` rows.

| subject | module |
|---|---|
| `Example` and tables of examples, errors of files, the checks of labels and groups | `example.py` |
| labels, aspects and contexts of a task | `task.py` |
| options for reading data | `options.py` |
| encodings, lines and JSON of text files | `text_files.py` |
| a file as a DataFrame of texts; the texts to predict | `tables.py` |
| the columns of a user's DataFrame; the text of a cell of any table | `frames.py` |
| your own tables: names of columns, labelled rows, and the task that follows from them | `columns.py` |
| readers of published data | `published.py` |
| the formats, and their detection for a folder or file | `formats.py` |
| reading a data set, its splits and their overlap | `dataset.py` |
| warnings about the data | `data_warnings.py` |
| sentence splitting and text normalisation | `sentences.py` |
| model inputs, tables of features, and batches | `tokenization.py`, `collators.py` |
"""

from qacg_models.data.data_warnings import DataWarning, evaluation_warnings, training_warnings
from qacg_models.data.dataset import (
    Dataset,
    check_contexts,
    count_overlap,
    describe,
    describe_examples,
    file_digest,
    file_digests,
    label_shares,
    load_data,
    load_file,
    sample_directory,
    sample_reviews,
)
from qacg_models.data.example import DataError, Example, ExampleTable
from qacg_models.data.options import DataOptions

__all__ = [
    "DataError",
    "DataOptions",
    "DataWarning",
    "Dataset",
    "Example",
    "ExampleTable",
    "check_contexts",
    "count_overlap",
    "describe",
    "describe_examples",
    "evaluation_warnings",
    "file_digest",
    "file_digests",
    "label_shares",
    "load_data",
    "load_file",
    "sample_directory",
    "sample_reviews",
    "training_warnings",
]
