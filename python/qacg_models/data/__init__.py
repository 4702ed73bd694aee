"""Data of aspect-based sentiment: every format of it read into the same rows.

| question | its home |
|---|---|
| what an example is, which a row of a file holds, and when its group is whole | `example.py` |
| which format a folder is in, and what its files are called | `formats.py` |
| how a format is read | `sentihood_tsv.py`, `sentihood_json.py`, `semeval_csv.py`, `semeval_xml.py`, `columns.py` |
| delimiters, encodings, Excel and Parquet of tables of your own | `delimiters.py`, `encodings.py`, `tables.py` |
| which rows have an empty cell, and how an error lists them | `row_problems.py` |
| how records of one's own become examples, and which task they have | `records.py` |
| which rows become dev where no dev is shipped | `splitting.py` |
| what a split holds, and what leaks between splits | `description.py` |
| examples by the million, and features of them in a file that is mapped | `example_table.py`, `feature_table.py` |
| which data deserves a warning | `data_warnings.py` |
| labels and aspects | `task.py` |
| prose cut into sentences | `sentences.py` |
| examples as inputs of a model, and batches of them | `tokenization.py`, `collators.py` |
"""

from qacg_models.data.data_warnings import DataWarning, evaluation_warnings, training_warnings
from qacg_models.data.dataset import (
    Dataset,
    check_contexts,
    context_names,
    count_overlap,
    describe,
    describe_examples,
    file_digest,
    label_shares,
    load_data,
    load_file,
    sample_directory,
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
    "context_names",
    "count_overlap",
    "describe",
    "describe_examples",
    "evaluation_warnings",
    "file_digest",
    "label_shares",
    "load_data",
    "load_file",
    "sample_directory",
    "training_warnings",
]
