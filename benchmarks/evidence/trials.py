"""One training of the evidence, from the published files to its result; it goes on where it was ended."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from qacg_models.data import Dataset, load_data
from qacg_models.inference.trained_model import load_trained
from qacg_models.reporting.run_records import row_of
from qacg_models.training import train_seeds
from qacg_models.training.run_folder import unfinished_path

from benchmarks.evidence.gates import gates_of
from benchmarks.evidence.plan import DATA, Trial
from benchmarks.evidence.results import Result, as_scores, keep


def data_of(trial: Trial, data: Path) -> Dataset:
    """The splits that a training sees: a search has no test split, which is thus not looked at."""
    set_ = DATA[trial.data]
    return load_data(data / set_.name, ("train", "dev") if trial.is_search else ("train", "dev", "test"), set_.options)


def carry_out(trial: Trial, data: Path, work: Path, out: Path, say: Callable[[str], None] = print) -> None:
    """Trains, keeps the result, and removes the rest.

    Args:
        data: folder of the published sets, each in a folder of its name.
        work: folder for what is unfinished; a run that was ended there is gone on with.
        out: folder of results.

    Raises:
        DataError: the set is not there.
        InputError: the weights to begin from are not there.
    """
    dataset = data_of(trial, data)
    folder = work / trial.name
    anew = not folder.exists() and not unfinished_path(folder).exists()
    train_seeds(dataset, folder, trial.options, [trial.seed], resume=True, say=say)
    trained = load_trained(folder)
    seconds = time.process_time() if anew else None
    scores = gates = None
    if not trial.is_search:
        scores = as_scores(trained.probabilities(dataset.splits["test"]))
        gates = gates_of(trained, dataset.splits["dev"])
    keep(out, Result(trial, row_of(trained.record), scores, seconds, gates))
    shutil.rmtree(folder)
