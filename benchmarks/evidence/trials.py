"""One training of the evidence, from the published files to its result; it goes on where it was ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from qacg_models.data import Dataset, load_data
from qacg_models.reporting.run_records import row_of
from qacg_models.training import train

from benchmarks.evidence.gates import gates_of
from benchmarks.evidence.plan import DATA, Trial
from benchmarks.evidence.results import Result, as_scores


def data_of(trial: Trial, data: Path) -> Dataset:
    """The splits that a training sees: a search has no test split, which is thus not looked at."""
    set_ = DATA[trial.data]
    return load_data(data / set_.name, ("train", "dev") if trial.is_search else ("train", "dev", "test"), set_.options)


def carry_out(trial: Trial, data: Path, work: Path, say: Callable[[str], None] = print) -> Result:
    """Trains, and removes all but the result.

    Args:
        data: folder of the published sets, each in a folder of its name.
        work: folder for what is unfinished; a run that was ended there is gone on with.

    Raises:
        DataError: the set is not there.
        InputError: the weights to begin from are not there.
    """
    dataset = data_of(trial, data)
    anew = not (work / trial.name).exists()
    trained = train(dataset, work / trial.name, trial.options, resume=True, say=say)
    seconds = time.process_time() if anew else None
    scores = gates = None
    if not trial.is_search:
        scores = as_scores(trained.probabilities(dataset.splits["test"]))
        gates = gates_of(trained, dataset.splits["dev"])
    result = Result(trial, row_of(trained.record), scores, seconds, gates)
    shutil.rmtree(work / trial.name)
    return result
