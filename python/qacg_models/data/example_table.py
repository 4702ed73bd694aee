"""Arrow storage for millions of examples, used like a sequence of `Example`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from qacg_models.data.arrow_rows import ArrowRows, blocks, gather_rows
from qacg_models.data.example import Example

if TYPE_CHECKING:
    import pyarrow as pa

_NAMES = tuple(field.name for field in fields(Example))
_NUMBERS = {"label": "int32", "line": "int64"}  # other columns are text


class ExampleTable(Sequence[Example]):
    """A read-only sequence of examples; it compares equal to any sequence of the same examples.

    The examples take about as many bytes as their texts. Up to 64 MiB are in memory; larger tables are in a
    memory-mapped temporary file.

    Args:
        examples: consumed in blocks, so that a generator's examples are never in memory together.

    Raises:
        InputError: the temporary file cannot be written.
    """

    def __init__(self, examples: Iterable[Example]):
        schema = _schema()

        def columns(block: list[Example]) -> pa.RecordBatch:
            import pyarrow as pa

            values = zip(*map(attrgetter(*_NAMES), block))
            return pa.record_batch([pa.array(column, field.type) for column, field in zip(values, schema)], schema)

        self._store(map(columns, blocks(examples)))

    def _store(self, batches: Iterable[pa.RecordBatch]) -> None:
        self.rows = ArrowRows(gather_rows(batches, _schema()))

    def where(self, condition: Callable[[list[str]], list[bool]], name: str) -> ExampleTable:
        """Returns the examples that meet a condition on the field `name`.

        Args:
            condition: function from a block of values of the field to a list with True or False for each value.
            name: name of the field.

        Raises:
            InputError: the temporary file cannot be written.
        """
        import pyarrow as pa

        kept = ExampleTable.__new__(ExampleTable)
        kept._store(
            batch.filter(pa.array(condition(batch.column(name).to_pylist()), pa.bool_())) for batch in self.rows.batches
        )
        return kept

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):
        found = self.rows[index]
        return [Example(**row) for row in found] if isinstance(index, slice) else Example(**found)

    def __iter__(self) -> Iterator[Example]:
        for row in self.rows:
            yield Example(**row)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} examples>"


def distinct(examples: Sequence[Example], *names: str) -> list[tuple]:
    """Returns the distinct values of some fields, as tuples in the order of first occurrence."""
    if not isinstance(examples, ExampleTable):
        return list(dict.fromkeys(tuple(getattr(row, name) for name in names) for row in examples))
    import pyarrow as pa

    table = pa.Table.from_batches(examples.rows.batches, _schema()).select(names)
    found = table.group_by(list(names), use_threads=False).aggregate([])  # threads would change the order
    return list(zip(*(found.column(name).to_pylist() for name in names)))


def column_values(examples: Sequence[Example], *names: str) -> Iterator[tuple]:
    """Yields the values of some fields of each example, as tuples; reads a block at a time."""
    if not isinstance(examples, ExampleTable):
        yield from (tuple(getattr(row, name) for name in names) for row in examples)
        return
    for batch in examples.rows.batches:
        yield from zip(*(batch.column(name).to_pylist() for name in names))


def counts(examples: Sequence[Example], name: str) -> dict[Any, int]:
    """Returns the number of occurrences of each value of a field, in the order of first occurrence."""
    if not isinstance(examples, ExampleTable):
        return dict(Counter(getattr(row, name) for row in examples))
    import pyarrow as pa

    table = pa.Table.from_batches(examples.rows.batches, _schema())
    found = pa.chunked_array(table.column(name)).value_counts()
    return {value["values"]: value["counts"] for value in found.to_pylist()}


def _schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema([(name, _NUMBERS.get(name, "large_string")) for name in _NAMES])
