"""Aspect-based sentiment data: every file format is read into the same `Example` rows.

| subject | module |
|---|---|
| the class `Example`, and the class index of a label (`class_index`) | `example.py` |
| labels, aspects and contexts of a task | `task.py` |
| the formats, and their detection for a folder or file | `formats.py` |
| readers of the formats | `sentihood_tsv.py`, `sentihood_json.py`, `semeval_csv.py`, `columns.py` |
| readers of texts with opinions, and the examples made of them | `semeval_xml.py`, `germeval_tsv.py`, `opinions.py` |
| delimiters and records of a CSV | `delimiters.py`, `csv_rows.py` |
| text encodings, Excel and Parquet | `encodings.py`, `tables.py` |
| lines of a text file, items of a JSON array | `lines.py` |
| conversion of records of your own tables to examples; detection of their labels and aspects | `records.py` |
| unusable rows: counts, or an error that lists the rows | `row_problems.py` |
| columns of pandas DataFrames; the text of a cell of any table | `frames.py`, `cell_text.py` |
| texts to predict | `requests.py` |
| options for reading data | `options.py` |
| reading a data set, its splits and their overlap | `dataset.py` |
| division of a training file into training, dev and test rows | `splitting.py` |
| Arrow storage for millions of examples and features | `arrow_rows.py`, `example_table.py`, `feature_table.py` |
| warnings about the data | `data_warnings.py` |
| sentence splitting and text normalisation | `sentences.py` |
| model inputs and batches | `tokenization.py`, `collators.py` |
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
from qacg_models.data.example import DataError, Example
from qacg_models.data.example_table import ExampleTable
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
