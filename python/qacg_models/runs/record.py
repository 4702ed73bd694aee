"""The record of a training, `training.json` in the folder of a model."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from qacg_models.data.options import DataOptions
from qacg_models.errors import ModelFolderError

RECORD_NAME = "training.json"
RECORD_FORMAT = 2
_NEEDED = ("task", "contexts", "max_length", "options", "data_options", "label_shares")


def read_record(folder: Path | str) -> dict:
    """The content of a model folder's training.json.

    Raises:
        ModelFolderError: no such folder or file, or one of another format.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelFolderError(f"{folder}: no such folder")
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderError(f"{folder}: has no {RECORD_NAME}; `qacg train` writes it") from None
    except ValueError as error:
        raise ModelFolderError(f"{folder}/{RECORD_NAME}: is no JSON ({error})") from None
    if not isinstance(record, dict) or record.get("format") != RECORD_FORMAT:
        raise ModelFolderError(f"{folder}/{RECORD_NAME}: is no training record of format {RECORD_FORMAT}")
    missing = [name for name in _NEEDED if name not in record]
    if missing:
        raise ModelFolderError(f"{folder}/{RECORD_NAME}: lacks {', '.join(missing)}, so it is not whole")
    unknown = record["data_options"].keys() - {field.name for field in fields(DataOptions)}
    if unknown:
        raise ModelFolderError(
            f"{folder}/{RECORD_NAME}: data_options has {', '.join(sorted(unknown))}, which this version does not know"
        )
    return record
