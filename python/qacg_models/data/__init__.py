"""Data of aspect-based sentiment: every form of it read into the same rows.

| question | its home |
|---|---|
| what a row is, and when its group is whole | `example.py` |
| which form a folder is in, and what its files are called | `formats.py` |
| how a form is read | `sentihood_tsv.py`, `sentihood_json.py`, `semeval_csv.py`, `semeval_xml.py`, `columns.py` |
| how records of one's own become rows, and which task they have | `records.py` |
| which sentences become dev where no dev is shipped, and what leaks between splits | `splitting.py` |
| labels and aspects | `task.py` |
| rows as inputs of a model, and batches of them | `tokenization.py`, `collators.py` |
"""

from qacg_models.data.dataset import (
    Dataset,
    check_contexts,
    context_names,
    describe,
    file_digest,
    load_data,
    load_file,
    sample_directory,
)
from qacg_models.data.example import DataError, Row, describe_rows, label_shares
from qacg_models.data.options import DataOptions
from qacg_models.data.splitting import count_overlap

__all__ = [
    "DataError",
    "DataOptions",
    "Dataset",
    "Row",
    "check_contexts",
    "context_names",
    "count_overlap",
    "describe",
    "describe_rows",
    "file_digest",
    "label_shares",
    "load_data",
    "load_file",
    "sample_directory",
]
