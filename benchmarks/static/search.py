"""Chooses tile-table entries by their predicted rate, among the candidates that `tune` would measure."""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.static.hardware import CHIPS
from benchmarks.static.operator import EstimatedEntry, estimate_entry
from qacg_kernels.backends.triton.candidates import candidates
from qacg_kernels.backends.triton.tile_tables import Key, Table, TileEntry

# Estimates that differ by at most this factor are equal within the error of the model. Then the present entry stays; if
# there is none, the first candidate is chosen, which has the largest tile.
_DOUBT = 1.03
ROWS_OF_A_WARP = 16
# Limits on the stack, in bytes per thread. Calls other than the estimated one may use more: replace an entry that `make
# check-triton` reports by the next best one.
_FORWARD_STACK, _BACKWARD_STACK = 32, 120


class Choice(NamedTuple):
    """The choice for one key of a tile table.

    Attributes:
        best: the entry that is chosen.
        before: the table's present entry; None if it cannot run.
        tried: number of estimated entries.
    """

    best: EstimatedEntry
    before: EstimatedEntry | None
    tried: int


def chosen(table: Table, keys: list[Key]) -> Iterator[Choice]:
    """Yields the choice for each key, except keys for which no candidate fits."""
    for key in keys:
        own = table.by_key[key]
        tried = [own, *(entry for entry in _comparable(key, own) if entry != own and not repeats_work(entry))]
        found = {entry: estimate for entry in tried if (estimate := _estimated(table, entry)) is not None}
        fit = [estimate for entry, estimate in found.items() if _fits(estimate) and not repeats_work(entry)]
        if fit:
            most = max(estimate.tflops for estimate in fit)
            best = next(estimate for estimate in fit if _DOUBT * estimate.tflops >= most)
            yield Choice(best, found.get(own), len(found))


def _fits(found: EstimatedEntry) -> bool:
    """Whether an entry may be chosen. A forward must not spill in its loop; a backward may, at the predicted cost."""
    if found.entry.kernel in ("whole_row_forward", "tiled_forward"):
        return not found.estimate.spills and found.estimate.stack <= _FORWARD_STACK
    return found.estimate.stack <= _BACKWARD_STACK


def with_entries(table: Table, entries: dict[Key, TileEntry]) -> Table:
    return replace(table, entries=tuple(entries.get(one.key, one) for one in table.entries))


def repeats_work(entry: TileEntry) -> bool:
    """Whether several warps of a tiled 16-bit entry compute the same scores, because a warp has fewer than 16 rows."""
    rows = entry.block_n if entry.kernel == "key_gradients" else entry.block_m
    return entry.bits == 16 and not entry.kernel.startswith("whole_row") and rows < ROWS_OF_A_WARP * entry.num_warps


def _comparable(key: Key, own: TileEntry) -> list[TileEntry]:
    """The candidates for a key; for a single-tile kernel, only those with the same longest row as `own`."""
    whole = key[0].startswith("whole_row")
    return [entry for entry in candidates(key) if not whole or entry.block_n == own.block_n]


def _estimated(table: Table, entry: TileEntry) -> EstimatedEntry | None:
    """Estimates an entry; returns None if it does not compile or requires more shared memory than there is."""
    try:
        found = estimate_entry(with_entries(table, {entry.key: entry}), entry)
    except Exception as error:  # compilers raise many types of exceptions
        print(f"left out: {entry}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return None
    most = min(table.shared_bytes, CHIPS[table.architecture].shared_bytes_of_block)
    return found if found.estimate.shared <= most else None
