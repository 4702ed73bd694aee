"""Arrow record batches as a sequence of rows: in memory while small, else in a memory-mapped file."""

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
IN_MEMORY = 64 << 20  # bytes above which rows are written to a file
_ELSEWHERE = "large data needs a temporary file of about the same size; set TMPDIR to use another folder"


class ArrowRows(Sequence[dict]):
    """Rows of Arrow record batches, as dictionaries."""

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
            if not len(self):
                raise IndexError(f"index: expected none, because there are no rows, got {index}")
            raise IndexError(f"index: expected {-len(self)} to {len(self) - 1} for {len(self)} rows, got {index}")
        batch = bisect_right(self.ends, number)
        start = self.ends[batch - 1] if batch else 0
        return self.batches[batch].slice(number - start, 1).to_pylist()[0]

    def __iter__(self) -> Iterator[dict]:
        for batch in self.batches:
            yield from batch.to_pylist()

    def column(self, name: str) -> np.ndarray:
        """Returns the values of a numeric column as one array; an empty int64 array if there are no batches."""
        import numpy as np

        if not self.batches:
            return np.empty(0, np.int64)
        return np.concatenate([batch.column(name).to_numpy(zero_copy_only=False) for batch in self.batches])


def blocks(values: Iterable, size: int = BLOCK) -> Iterator[list]:
    """Yields the values in lists of `size`; the last may be shorter."""
    iterator = iter(values)
    while block := list(islice(iterator, size)):
        yield block


def write_rows(path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
    """Writes record batches to a file atomically, with one batch in memory at a time.

    Raises:
        InputError: the file cannot be written.
    """
    import pyarrow as pa

    with atomic_write_bytes(path) as handle, pa.ipc.new_file(handle, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


def map_rows(path: Path) -> tuple[list[pa.RecordBatch], dict[bytes, bytes]]:
    """Returns the memory-mapped record batches of a file that `write_rows` wrote, and the metadata of their schema.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is not an Arrow file.
    """
    import pyarrow as pa

    reader = pa.ipc.open_file(pa.memory_map(str(path)))  # an ArrowInvalid is a ValueError
    return [reader.get_batch(number) for number in range(reader.num_record_batches)], dict(reader.schema.metadata or {})


def gather_rows(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Returns the record batches: in memory up to IN_MEMORY bytes, else mapped from a temporary file.

    On POSIX, the temporary file is deleted before the function returns, and the mapping stays valid.

    Raises:
        InputError: the temporary folder cannot be created, or the file in it cannot be written.
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
        where = error.filename or "temporary folder"
        raise InputError(f"{where}: cannot be created ({error.strerror}); {_ELSEWHERE}") from error
    with folder:
        path = Path(folder.name) / "rows.arrow"
        try:
            write_rows(path, _drained(kept, batches), schema)
        except InputError as error:
            if not str(error).startswith(f"{path}:"):  # an error in the data that `batches` reads
                raise
            raise InputError(f"{error}; {_ELSEWHERE}") from error
        return map_rows(path)[0]  # on POSIX, a mapping stays valid after the file is deleted


def _drained(kept: list[pa.RecordBatch], rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the batches of `kept`, which are removed from the list one by one, and then the batches of `rest`."""
    while kept:
        yield kept.pop(0)
    yield from rest
