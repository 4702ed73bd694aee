"""Data of aspect-based sentiment: every form of it read into the same rows.

| question | its home |
|---|---|
| what a row is, and when its group is whole | `rows.py` |
| which form a folder is in, and what its files are called | `formats.py` |
| how a form is read | `sentihood_tsv.py`, `sentihood_json.py`, `semeval_csv.py`, `semeval_xml.py`, `columns.py` |
| which sentences become dev where no dev is shipped | `splitting.py` |
| what leaks between splits | `leakage.py` |
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
from qacg_models.data.leakage import count_overlap
from qacg_models.data.options import DataOptions
from qacg_models.data.rows import DataError, Row, describe_rows, label_shares

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
