"""Rows of a table chosen by what their machine code promises, among the candidates that `tune` would measure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.static.hardware import CHIPS
from benchmarks.static.operator import JudgedRow, judge_row
from qacg_kernels.backends.triton.candidates import candidates
from qacg_kernels.backends.triton.tile_tables import Key, Table, TileEntry

# Rows that promise no more than this beside each other are alike: the difference is within the model's own doubt. Of
# such rows the one that is there stays; else the first of the candidates is taken, whose tile is the larger.
_DOUBT = 1.03
ROWS_OF_A_WARP = 16
# Bytes of a thread. Calls of other kinds may take more than the one that is judged: `make check-triton` judges them,
# and where it refuses a row the next best has to serve.
_FORWARD_STACK, _BACKWARD_STACK = 32, 120


class Choice(NamedTuple):
    """The best row of a key, the one that was there (None if the chip cannot run it), and how many were tried."""

    best: JudgedRow
    before: JudgedRow | None
    tried: int


def chosen(table: Table, keys: list[Key]) -> Iterator[Choice]:
    """For each key; one for which no candidate is fit is left out."""
    for key in keys:
        own = table.by_key[key]
        tried = [own, *(row for row in _comparable(key, own) if row != own and not repeats_work(row))]
        found = {row: judged for row in tried if (judged := _judged(table, row)) is not None}
        fit = [judged for row, judged in found.items() if _fits(judged) and not repeats_work(row)]
        if fit:
            most = max(judged.tflops for judged in fit)
            best = next(judged for judged in fit if _DOUBT * judged.tflops >= most)
            yield Choice(best, found.get(own), len(found))


def _fits(found: JudgedRow) -> bool:
    """The forward spills nothing within its loop; what the backward spills there costs time, which is in its rate."""
    if found.row.kernel in ("whole_row_forward", "tiled_forward"):
        return not found.judged.spills and found.judged.stack <= _FORWARD_STACK
    return found.judged.stack <= _BACKWARD_STACK


def with_rows(table: Table, rows: dict[Key, TileEntry]) -> Table:
    return replace(table, entries=tuple(rows.get(row.key, row) for row in table.entries))


def repeats_work(row: TileEntry) -> bool:
    """Whether a tiled row of 16 bits has more warps than its scores have rows for: 16 to a warp, else several warps
    compute the same."""
    rows = row.block_n if row.kernel == "key_gradients" else row.block_m
    return row.bits == 16 and not row.kernel.startswith("whole_row") and rows < ROWS_OF_A_WARP * row.num_warps


def _comparable(key: Key, own: TileEntry) -> list[TileEntry]:
    """How many keys a row takes whole stays as it is: it decides which kernel a call goes to."""
    whole = key[0].startswith("whole_row")
    return [row for row in candidates(key) if not whole or row.block_n == own.block_n]


def _judged(table: Table, row: TileEntry) -> JudgedRow | None:
    """None where the chip has not the memory, or the compiler cannot."""
    try:
        found = judge_row(with_rows(table, {row.key: row}), row)
    except Exception as error:  # compilers have errors of their own kinds
        print(f"left out: {row}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None
    most = min(table.shared_bytes, CHIPS[table.architecture].shared_bytes_of_block)
    return found if found.judged.shared <= most else None
