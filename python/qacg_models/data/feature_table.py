"""Features of millions of examples: made once, a block at a time, in a file beside the run, and mapped from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data.arrow_rows import ArrowRows, blocks, map_rows, write_rows
from qacg_models.data.tokenization import encode_examples

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from transformers import PreTrainedTokenizerFast

    from qacg_models.data.example import Example

FORMAT = 1


class FeatureTable(ArrowRows):
    """Features of labelled examples as `encode_examples` makes them, read-only."""

    def labels(self) -> np.ndarray:
        """(N) class numbers."""
        return self.column("labels")

    def lengths(self) -> np.ndarray:
        """(N) tokens of each."""
        import numpy as np

        return np.concatenate([batch.column("input_ids").value_lengths().to_numpy() for batch in self.batches])


def feature_table(
    path: Path,
    rows: Sequence[Example],
    tokenizer: PreTrainedTokenizerFast,
    contexts: Sequence[str] | None,
    max_length: int,
    context_standalone: bool = False,
    *,
    told_cut: Callable[[int], None],
) -> FeatureTable:
    """The features of examples, from the file if it holds them, else made and written there.

    Args:
        path: of the file. It is known by the tokenizer, the choices and the number of rows; files of data that may
            have changed between two calls want another path.
        rows: with labels, at least one; it and what follows are the arguments of `encode_examples`.
        told_cut: receives how many examples were cut, if any, once they are made.

    Raises:
        InputError: as for `encode_examples`, or the file cannot be written.
    """
    choices = [FORMAT, tokenizer.backend_tokenizer.to_str(), contexts, max_length, context_standalone, len(rows)]
    made_of = hashlib.sha256(json.dumps(choices).encode()).hexdigest().encode()
    if (found := _held(path, made_of)) is not None:
        return FeatureTable(found)
    schema, cut = _schema(contexts is not None, made_of), 0

    def batches() -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        nonlocal cut
        for block in blocks(rows):
            features, cut_here = encode_examples(block, tokenizer, contexts, max_length, context_standalone)
            cut += cut_here
            yield pa.RecordBatch.from_pylist(features, schema)

    write_rows(path, batches(), schema)
    if cut:
        told_cut(cut)
    return FeatureTable(map_rows(path)[0])


def _held(path: Path, made_of: bytes) -> list[pa.RecordBatch] | None:
    """What the file holds, if it is whole and made of the same."""
    try:
        found, metadata = map_rows(path)
    except (OSError, ValueError):  # there is none, or not a whole one
        return None
    return found if metadata.get(b"made_of") == made_of else None


def _schema(with_contexts: bool, made_of: bytes) -> pa.Schema:
    import pyarrow as pa

    tokens = [("input_ids", pa.list_(pa.int32())), ("token_type_ids", pa.list_(pa.int8()))]
    numbers = [("labels", pa.int32())] + ([("context_ids", pa.int32())] if with_contexts else [])
    return pa.schema(tokens + numbers, metadata={b"made_of": made_of})
