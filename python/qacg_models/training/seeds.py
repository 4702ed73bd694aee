"""Trains one model per seed, and computes means and standard deviations of the metrics over the seeds."""

import json
import math
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.data import Dataset, file_digests
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import RECORD_NAME, TrainingRecord, read_record
from qacg_models.runs.run_config import RUN_NAME, write_run_file
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.run import print_data_warnings, train_locked
from qacg_models.training.run_folder import RunFolder, check_choices, run_choices
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.distributed import join_group, main_only, run_on_main
from qacg_models.utils.output_lock import lock_output

SUMMARY_NAME = "seeds.json"
# Names begin so; after a kill, folders with temporary files and partly deleted folders are left.
_NAMES = (SUMMARY_NAME, RUN_NAME, "seed-", ".seed-")
_LEFT_BY_A_KILL = (f".{SUMMARY_NAME}.", f".{RUN_NAME}.", ".deleting-seed-")


def train_seeds(
    dataset: Dataset,
    output: Path | str,
    options: TrainingOptions,
    seeds: Sequence[int],
    *,
    overwrite: bool = False,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> list[TrainingRecord]:
    """Trains once per seed, into `output` for one seed, and into `output/seed-N` for several.

    With several seeds, `output/seeds.json` has the mean and standard deviation of the metrics, and `output/run.yaml`
    has the options. Each seed has its own folder of TensorBoard logs.

    Args:
        dataset: the data set; it has the splits train and dev, or train and test for the protocol "released".
        output: folder to create.
        options: options of training, the same for all seeds.
        seeds: distinct integers.
        overwrite: replace `output`, and unfinished runs, if they exist.
        resume: continue unfinished runs; finished seeds are kept.
        say: called with each log line; the progress bar is printed to stderr.

    Returns:
        The record of every seed, in the order of `seeds`.

    Raises:
        InputError: `seeds` is empty or repeats an integer; `resume` is set and a finished seed has other options or
            data; or `train` raises InputError for a seed. There are two more cases with several seeds: `output` is a
            file, or has files that no training of several seeds writes; or `output` has files of an earlier training,
            and neither `overwrite` nor `resume` is set.
        OSError: a folder cannot be created, renamed or deleted.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: expected one or several different integers, got {list(seeds)}.")
    every = [replace(options, seed=seed) for seed in seeds]  # all seeds are checked before the first one is trained
    join_group()
    output, say = Path(output), main_only(say)
    print_data_warnings(dataset, say)
    if len(seeds) == 1:
        return [_train_one(dataset, output, every[0], overwrite=overwrite, resume=resume, say=say)]
    with lock_output(output, say):
        run_on_main(lambda: _check_output(output, overwrite, resume))
        records = []
        for seed, chosen in zip(seeds, every):
            folder, logs = output / f"seed-{seed}", options.tensorboard
            chosen = replace(chosen, tensorboard=logs and str(Path(logs, folder.name)))
            say(f"seed {seed}")
            records.append(_train_one(dataset, folder, chosen, overwrite=overwrite, resume=resume, say=say))
        summary = summarize(records)
        run_on_main(lambda: _write(output, dataset, options, list(seeds), summary))
    return records


def _train_one(
    dataset: Dataset,
    output: Path,
    options: TrainingOptions,
    *,
    overwrite: bool,
    resume: bool,
    say: Callable[[str], None],
) -> TrainingRecord:
    folder = RunFolder(output)
    with lock_output(output, say):
        if resume:
            run_on_main(folder.finish_if_done)
            if (output / RECORD_NAME).is_file() and not folder.path.exists():
                say(f"{output}: the run is finished; nothing is left to resume")
                return _finished(output, dataset, options)
        return train_locked(dataset, output, options, overwrite=overwrite, resume=resume, say=say).record


def summarize(records: Sequence[TrainingRecord]) -> dict:
    """Returns the mean and sample standard deviation of every metric over the seeds, by split.

    Args:
        records: the records of the seeds, at least one.

    Returns:
        A dictionary that JSON supports. `metrics` has, by split and metric, the keys `mean`, `deviation` and `values`
        (one per seed). Mean and deviation are None if the metric is undefined for a seed; the deviation is also None
        for a single record. The other keys are `seeds`, `selected_on` (the split that selected the checkpoints),
        `tfidf` and `majority` (the baselines of the first record), and `seconds` (the sum).
    """
    every = [record.to_json()["metrics"] for record in records]

    def statistic(split: str, name: str) -> dict:
        values = [metrics[split][name] for metrics in every]
        defined = [value for value in values if value is not None]
        complete = len(defined) == len(values)
        return {
            "mean": statistics.fmean(defined) if complete else None,
            "deviation": statistics.stdev(defined) if complete and len(defined) > 1 else None,
            "values": values,
        }

    first = records[0]
    return {
        "seeds": [record.options.seed for record in records],
        "selected_on": first.selected.split,
        "metrics": {
            split: {name: statistic(split, name) for name in metrics if name != "undefined"}
            for split, metrics in every[0].items()
        },
        "tfidf": first.to_json()["tfidf"],
        "majority": first.to_json()["majority"],
        "seconds": math.fsum(record.seconds for record in records),
    }


def _finished(folder: Path, dataset: Dataset, options: TrainingOptions) -> TrainingRecord:
    """Returns the record of a finished seed; raises InputError if its options or data files were different."""
    record = read_record(folder)
    trained_files = {split: part.sha256 for split, part in record.data.items()}
    before = run_choices(record.options, record.data_options, trained_files)
    now = run_choices(resolve_options(options, dataset), dataset.options, file_digests(dataset))
    check_choices(folder, before, now)
    return record


def _check_output(output: Path, overwrite: bool, resume: bool) -> None:
    """Creates the folder, or checks an existing one and deletes files that killed runs left.

    Raises:
        InputError: `output` is a file, or has files that no training of several seeds writes; or `output` has files of
            an earlier training, and neither `overwrite` nor `resume` is set.
    """
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        output.mkdir(parents=True, exist_ok=True)
        return
    if not output.is_dir() or any(not path.name.startswith(_NAMES + _LEFT_BY_A_KILL) for path in output.iterdir()):
        raise InputError(f"{output}: expected only folders of seeds, got other files too. Choose another --output.")
    if not (overwrite or resume):
        raise InputError(
            f"{output}: expected no seeds of an earlier run, got some. Continue that run with --resume, or replace it"
            " with --overwrite."
        )
    for path in output.iterdir():
        if path.is_dir() and path.name.startswith(_LEFT_BY_A_KILL):  # an editor's swap file has such a name too
            shutil.rmtree(path)


def _write(output: Path, dataset: Dataset, options: TrainingOptions, seeds: list[int], summary: dict) -> None:
    with atomic_write(output / SUMMARY_NAME) as handle:
        handle.write(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_run_file(output / RUN_NAME, dataset.sources, dataset.options, resolve_options(options, dataset), seeds)
