"""Splits a batch that does not fit into memory into micro-batches.

Steps and gradients stay the same, except for rounding and different dropout masks. `auto_find_batch_size` of
transformers restarts training with a smaller batch, which changes the steps. Here only the number of micro-batches
grows, which checkpoints store in `run_state.json`.
"""

from collections.abc import Callable, Iterator

from qacg_models.data.collators import slice_batch
from qacg_models.errors import InputError
from qacg_models.utils.progress import pause_bars


class MicroBatches:
    """The number of micro-batches into which a batch is split.

    Args:
        count: initial number; 1 does not split.
        say: called with a log line when the number grows.
    """

    def __init__(self, count: int, say: Callable[[str], None]):
        self.count, self.say = count, say

    def split(self, batch: dict) -> Iterator[tuple[float, dict]]:
        """Yields pairs (share of the batch's rows, micro-batch); the sizes differ by at most one row."""
        rows = len(batch["labels"])
        count = min(self.count, rows)
        if count == 1:
            yield 1.0, batch
            return
        for index in range(count):
            start, end = index * rows // count, (index + 1) * rows // count
            yield (end - start) / rows, slice_batch(batch, start, end)

    def double(self, batch: dict, step: int) -> None:
        """Doubles the number of micro-batches, after a batch that did not fit into memory.

        Args:
            batch: the batch that did not fit.
            step: the training step, which the caller repeats.

        Raises:
            InputError: the micro-batches already have a single row.
        """
        rows = len(batch["labels"])
        if self.count >= rows:
            raise InputError(
                "max_length: expected rows that each fit into memory, got a row that does not. Use a smaller"
                " --max-length or a smaller model."
            )
        self.count *= 2
        with pause_bars():
            self.say(
                f"{rows} rows do not fit into memory at once: from step {step} on, batches are split into {self.count}"
                " micro-batches, whose gradients are summed"
            )
