"""Batches taken in parts where a device has no memory for the whole: same steps, same rows, same gradients.

Transformers' `auto_find_batch_size` begins the run anew with smaller batches, which are other steps, and does not keep
the number for a run that goes on. Here the batch stays what it is; only how many of its rows are computed at once
shrinks, and checkpoints keep it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from qacg_models.data.collators import slice_batch
from qacg_models.errors import InputError
from qacg_models.utils.progress import pause_bars

PARTS_NAME = "parts.txt"


class MicroBatches:
    """In how many parts batches are taken.

    Args:
        checkpoint: from which a run goes on, with the number that it had come to; None to begin with 1.
        say: told of a number that has grown.
    """

    def __init__(self, checkpoint: Path | None, say: Callable[[str], None]):
        path = None if checkpoint is None else checkpoint / PARTS_NAME
        # Checkpoints of before there were parts have no such file.
        self.count = int(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else 1
        self.say = say

    def of(self, batch: dict) -> Iterator[tuple[float, dict]]:
        """The parts of a batch, as even as can be, each with its share of the rows."""
        rows = len(batch["labels"])
        count = min(self.count, rows)
        if count == 1:
            yield 1.0, batch
            return
        for index in range(count):
            start, end = index * rows // count, (index + 1) * rows // count
            yield (end - start) / rows, slice_batch(batch, start, end)

    def double(self, batch: dict, step: int) -> None:
        """Takes half as many rows at once as were too many of this batch.

        Args:
            step: that could not be taken.

        Raises:
            InputError: it was a single row.
        """
        rows = len(batch["labels"])
        if self.count >= rows:
            raise InputError(
                f"batch_size: of {rows} rows not even a single one fits into memory; wanted a shorter --max-length or a"
                " smaller model"
            )
        self.count *= 2
        with pause_bars():
            self.say(
                f"{rows} rows do not fit into memory at once: from step {step} on a batch is taken in {self.count}"
                " parts, whose gradients add up to those of the whole"
            )

    def save(self, folder: Path) -> None:
        """Writes the number into the folder of a checkpoint."""
        (folder / PARTS_NAME).write_text(f"{self.count}\n", encoding="utf-8")
