"""Rows in columns of Arrow, the format of the `datasets` library: small ones in memory, many in a file that is mapped.

A mapped file takes the memory that the system can spare, and rows of it become Python objects one block at a time.
"""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.utils.atomic_files import atomic_write_bytes

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

BLOCK = 4096
IN_MEMORY = 64 << 20  # bytes of columns from which they go to a file
_ELSEWHERE = "many rows want a temporary file of about the size of the data; TMPDIR names another folder for it"


class ArrowRows(Sequence[dict]):
    """The rows of record batches, as dictionaries."""

    def __init__(self, batches: Sequence[pa.RecordBatch]):
        self.batches = list(batches)
        self.ends = list(accumulate(len(batch) for batch in self.batches))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index):
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        batch = bisect_right(self.ends, number)
        start = self.ends[batch - 1] if batch else 0
        return self.batches[batch].slice(number - start, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict]:
        for batch in self.batches:
            yield from batch.to_pylist()

    def column(self, name: str) -> np.ndarray:
        """All values of a column of numbers."""
        import numpy as np

        if not self.batches:
            return np.empty(0, np.int64)
        return np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in self.batches])


def blocks(values: Iterable, size: int = BLOCK) -> Iterator[list]:
    """The values in lists of `size`, the last of which may be shorter."""
    iterator = iter(values)
    while block := list(islice(iterator, size)):
        yield block


def write_rows(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Write record batches, one in memory at a time, to a file that has its name once it is whole.

    Raises:
        InputError: the file cannot be written, with the reason.
    """
    import pyarrow as pa

    with atomic_write_bytes(path) as handle, pa.ipc.new_file(handle, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def map_rows(path: Path) -> tuple[list[pa.RecordBatch], dict[bytes, bytes]]:
    """The record batches of a file of `write_rows`, which lie in the file still, and the metadata of its schema.

    Raises:
        ValueError: the file is not one.
    """
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))  # an ArrowInvalid is a ValueError
    return [reader.get_batch(number) for number in range(reader.num_record_batches)], dict(reader.schema.metadata or {})


def gather_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """The record batches: as they are while they are small, else in a temporary file, gone with this process.

    Raises:
        InputError: the temporary file cannot be written, with the folder and the reason.
    """
    batches, kept, size = iter(batches), [], 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > IN_MEMORY:
            break
    else:
        return kept
    try:
        folder = tempfile.TemporaryDirectory(prefix="qacg-rows-", ignore_cleanup_errors=True)
    except OSError as error:
        raise InputError(f"{error.filename}: cannot be made ({error.strerror}); {_ELSEWHERE}") from error
    with folder:
        path = Path(folder.name) / "rows.arrow"
        try:
            write_rows(path, _emptied(kept, batches), schema)
        except InputError as error:
            if not str(error).startswith(f"{path}:"):  # of the data, which is read while it is written
                raise
            raise InputError(f"{error}; {_ELSEWHERE}") from error
        return map_rows(path)[0]  # on POSIX a mapped file needs no name


def _emptied(kept: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches of both; those that are kept are let go as they are passed on."""
    while kept:
        yield kept.pop(0)
    yield from rest
