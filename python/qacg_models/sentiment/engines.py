"""`BatchPredictor`, which engines for many processes and machines call with the batches of a table.

A worker imports this module to unpickle a description. Torch is imported at the first call, without its warnings.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import ON_EMPTY
from qacg_models.utils.machine import cpu_threads, load_libraries

if TYPE_CHECKING:
    from qacg_models.sentiment.estimators import AspectSentiment

_loading = threading.Lock()


@cache
def _loaded(model: str, threads: int, written: float | None) -> AspectSentiment:
    """Returns the model of a folder or the hub; if its weights are `written` again, they are loaded again."""
    load_libraries()
    from qacg_models.sentiment.estimators import AspectSentiment

    with cpu_threads(threads):  # a forked process blocks if it loads with several threads after its parent used several
        return AspectSentiment.from_pretrained(model, precision="auto", threads=threads)


@dataclass(frozen=True)
class BatchPredictor:
    """Predicts the batches of a table in the processes of an engine, such as Ray, Spark or Dask.

    The object is a description of some 200 bytes, which engines pickle. The first call in a process loads the model,
    and later calls with the same model use it. A call prints nothing. The precision is that of `qacg predict`, "auto".

    Args:
        model: folder that `qacg train` wrote, under the same path on every machine, or the name of a model of the hub.
        text: name of the column of texts; None: the name in the training data.
        aspects: names of the aspects; None: all aspects of the model.
        keep: names of columns that are copied to the result, with their dtypes. Errors name a row by these columns.
        on_empty: for an empty text: "raise" InputError, or "skip" the text, which then has one row without a label.
        threads: CPU threads of each process.

    Raises:
        TypeError: `keep`, `aspects` or `threads` has the wrong type.
        ValueError: `threads` is below 1. InputError: `on_empty` is unknown.

    Example:
        >>> predict = BatchPredictor("mine", text="review", aspects=["food"], keep=["id"], on_empty="skip")
        >>> predict.threads
        1
    """

    model: str | os.PathLike
    _: KW_ONLY
    text: str | None = None
    aspects: Sequence[str] | None = None
    keep: Sequence[str] = ()
    on_empty: str = "raise"
    threads: int = 1

    def __post_init__(self):
        for name in ("aspects", "keep"):
            value = getattr(self, name)
            if value is None and name == "aspects":
                continue
            if isinstance(value, str) or not isinstance(value, Iterable):
                raise TypeError(f"{name}: expected a sequence of names, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        if type(self.threads) is not int:
            raise TypeError(f"threads: expected an int, got {type(self.threads).__name__}")
        if self.threads < 1:
            raise ValueError(f"threads: expected at least 1, got {self.threads}")
        if self.on_empty not in ON_EMPTY:
            raise InputError(f"on_empty: expected one of {', '.join(ON_EMPTY)}, got {self.on_empty!r}.")
        if Path(self.model).exists():  # workers can have other working folders
            object.__setattr__(self, "model", os.path.abspath(self.model))

    def __call__(self, batch: pd.DataFrame) -> pd.DataFrame:
        """Predicts a batch.

        Args:
            batch: N texts, in columns of any dtype. The index is not read.

        Returns:
            A frame with a row for each text and aspect: the columns of `keep`, target (if the model has targets), text,
            aspect and label of dtype "string", and p(LABEL) of dtype float64 for every label. The dtypes do not depend
            on the rows of the batch, also without any.

        Raises:
            TypeError: a cell is no text, number or boolean.
            InputError: a text, a column or another argument cannot be used; with `keep`, the message has the kept
                columns of the first such text. ModelFolderError: the model cannot be loaded.
        """
        weights = Path(self.model) / "model.safetensors"
        with _loading:
            ask = _loaded(os.fspath(self.model), self.threads, weights.stat().st_mtime if weights.exists() else None)
        named = self.keep and set(self.keep) <= set(batch)  # otherwise `predict` raises the error
        rows = batch[[*self.keep]].to_dict("records") if named else range(len(batch))
        frame = batch.set_axis(pd.Index(rows, dtype=object, tupleize_cols=False))
        found = ask.predict(frame, self.aspects, text=self.text, keep=self.keep, on_empty=self.on_empty)
        texts = ["target", "text", "aspect", "label"]
        return found.reset_index(drop=True).astype({name: "string" for name in texts if name in found})

    def stream(self, batches: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        """Returns an iterator over the results of batches, which `mapInPandas` of Spark requires."""
        return map(self, batches)
