"""Features of millions of examples, encoded once into an Arrow file and memory-mapped from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.arrow_rows import ArrowRows, blocks, map_rows, write_rows
from qacg_models.data.tokenization import encode_examples

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from transformers import PreTrainedTokenizerFast

    from qacg_models.data.example import Example


class FeatureTable(ArrowRows):
    """A read-only sequence of the features of labelled examples, as `encode_examples` returns them."""

    def labels(self) -> np.ndarray:
        """Returns (N,) class indices of the labels."""
        return self.column("labels")

    def lengths(self) -> np.ndarray:
        """Returns (N,) numbers of tokens of the rows; the table must have rows."""
        import numpy as np

        return np.concatenate([batch.column("input_ids").value_lengths().to_numpy() for batch in self.batches])

    def texts(self) -> np.ndarray:
        """Returns (N,) text numbers, one for each row; rows with equal input_ids have the same number.

        Texts are numbered from 0, in the order of their first rows.
        """
        import numpy as np

        numbers: dict[bytes, int] = {}
        found = [
            numbers.setdefault(np.asarray(tokens, np.int32).tobytes(), len(numbers))
            for batch in self.batches
            for tokens in batch.column("input_ids").to_numpy(zero_copy_only=False)
        ]
        return np.array(found)


@dataclass(frozen=True)
class Encoding:
    """The arguments of `encode_examples`, except the rows.

    Attributes:
        tokenizer: adds token types and special tokens.
        contexts: context names; None: the model has no contexts.
        max_length: maximum number of tokens of an input.
        context_standalone: True: the name of the context is not part of the input.
    """

    tokenizer: PreTrainedTokenizerFast
    contexts: Sequence[str] | None
    max_length: int
    context_standalone: bool = False


def write_features(path: Path, rows: Sequence[Example], encoding: Encoding) -> int:
    """Encodes labelled rows, and writes their features to a file atomically.

    Args:
        path: the file.
        rows: the rows, at least one.
        encoding: how to encode the rows.

    Returns:
        The number of truncated rows.

    Raises:
        InputError: the context of a row is unknown, `max_length` is too small, or the file cannot be written.
    """
    schema, cut = _schema(encoding.contexts is not None), 0

    def batches() -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        nonlocal cut
        for block in blocks(rows):
            features, cut_here = encode_examples(
                block, encoding.tokenizer, encoding.contexts, encoding.max_length, encoding.context_standalone
            )
            cut += cut_here
            yield pa.RecordBatch.from_pylist(features, schema)

    write_rows(path, batches(), schema)
    return cut


def read_features(path: Path) -> FeatureTable:
    """Returns memory-mapped features of a file that `write_features` wrote.

    Raises:
        OSError: the file cannot be read.
    """
    return FeatureTable(map_rows(path)[0])


def _schema(with_contexts: bool) -> pa.Schema:
    import pyarrow as pa

    tokens = [("input_ids", pa.list_(pa.int32())), ("token_type_ids", pa.list_(pa.int8()))]
    numbers = [("labels", pa.int32())] + ([("context_ids", pa.int32())] if with_contexts else [])
    return pa.schema(tokens + numbers)
