"""Several seeds: one model each, and the mean and standard deviation of their figures."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from qacg_models.data import Dataset, file_digest
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import RECORD_NAME, TrainingRecord, read_record
from qacg_models.runs.run_config import RUN_NAME, write_run_file
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.run import say_warnings, train_held
from qacg_models.training.run_folder import close_if_done, plain, unfinished_path
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.distributed import join_group, main_only, run_on_main
from qacg_models.utils.output_lock import lock_output

SUMMARY_NAME = "seeds.json"
# What was being written, or deleted, when a run was killed.
_LEFT_BY_A_KILL = re.compile(rf"\.({re.escape(SUMMARY_NAME)}|{re.escape(RUN_NAME)})\.\w+|\.deleting-seed-.*")
# Of a run of one seed, which may be under way.
_LOCK = re.compile(r"\.seed-.*\.lock")


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
    """Trains once per seed: `output` itself for one seed, `output/seed-N` for several.

    With several, `output/seeds.json` gets the mean and standard deviation, `output/run.yaml` the choices, and each
    seed a folder of TensorBoard logs of its own. With `resume`, seeds that are done are left as they are.

    Returns:
        The record of every seed, in the order of `seeds`.

    Raises:
        InputError: no seeds, or one twice; `output` exists and may not be replaced; or as for `train`.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: got {list(seeds)}, wanted one or several different ones")
    choices = [replace(options, seed=seed) for seed in seeds]  # a seed that cannot be is refused before any is trained
    join_group()
    output = Path(output)
    say_warnings(dataset, say)
    if len(seeds) == 1:
        return [_train_one(dataset, output, choices[0], overwrite=overwrite, resume=resume, say=say)]
    with lock_output(output, main_only(say)):
        run_on_main(lambda: _check_output(output, overwrite, resume))
        records = []
        for seed, chosen in zip(seeds, choices):
            folder, logs = output / f"seed-{seed}", options.tensorboard
            chosen = replace(chosen, tensorboard=logs and str(Path(logs, folder.name)))
            say(f"seed {seed}")
            records.append(_train_one(dataset, folder, chosen, overwrite=overwrite, resume=resume, say=say))
        summary = summarize(records)
        run_on_main(lambda: _write(output, dataset, options, list(seeds), summary))
    return records


def _train_one(
    dataset: Dataset,
    folder: Path,
    options: TrainingOptions,
    *,
    overwrite: bool,
    resume: bool,
    say: Callable[[str], None],
) -> TrainingRecord:
    with lock_output(folder, main_only(say)):
        if resume:
            run_on_main(lambda: close_if_done(folder))
            if (folder / RECORD_NAME).is_file() and not unfinished_path(folder).exists():
                say(f"{folder}: is finished; nothing is left to resume")
                return _finished(folder, dataset, options)
        return train_held(dataset, folder, options, overwrite=overwrite, resume=resume, say=say).record


def summarize(records: Sequence[TrainingRecord]) -> dict:
    """Mean and standard deviation (of a sample) of every figure over the records of several seeds."""

    every = [record.to_json()["metrics"] for record in records]

    def spread(split: str, name: str) -> dict:
        values = [metrics[split][name] for metrics in every]
        known = [value for value in values if value is not None]
        whole = len(known) == len(values)
        return {
            "mean": statistics.fmean(known) if whole else None,
            "deviation": statistics.stdev(known) if whole and len(known) > 1 else None,
            "values": values,
        }

    first = records[0]
    return {
        "seeds": [record.options.seed for record in records],
        "selected_on": first.selected.split,
        "metrics": {
            split: {name: spread(split, name) for name in figures if name != "undefined"}
            for split, figures in every[0].items()
        },
        "tfidf": first.to_json()["tfidf"],
        "majority": first.to_json()["majority"],
        "seconds": math.fsum(record.seconds for record in records),
    }


def _finished(folder: Path, dataset: Dataset, options: TrainingOptions) -> TrainingRecord:
    """The record of a seed that is done, once it is known to be of the same choices and files."""
    record = read_record(folder)
    wanted = plain(asdict(resolve_options(options, dataset)))
    trained, read = (plain(asdict(choices)) for choices in (record.options, record.data_options))
    pairs = [(name, trained[name], value) for name, value in wanted.items()]
    reading = plain(asdict(dataset.options))
    pairs += [(name, read[name], value) for name, value in reading.items()]
    digests = {split: part.sha256 for split, part in record.data.items()}
    pairs += [(f"{split}'s file", digests.get(split), file_digest(*files)) for split, files in dataset.files.items()]
    for name, was, now in pairs:
        if was != now:
            raise InputError(
                f"{folder}: was trained with {name} = {was!r}, and now it is {now!r};"
                " choose another --output, or --overwrite"
            )
    return record


def _check_output(output: Path, overwrite: bool, resume: bool) -> None:
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        output.mkdir(parents=True, exist_ok=True)
        return
    ours = output.is_dir() and all(
        path.name in (SUMMARY_NAME, RUN_NAME)
        or path.name.startswith("seed-")
        or any(pattern.fullmatch(path.name) for pattern in (_LEFT_BY_A_KILL, _LOCK))
        for path in output.iterdir()
    )
    if not ours:
        raise InputError(f"{output}: holds something else than seeds; choose another --output")
    if not (overwrite or resume):
        raise InputError(f"{output}: holds seeds; go on with --resume, or train them anew with --overwrite")
    for path in output.iterdir():
        if _LEFT_BY_A_KILL.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _write(output: Path, dataset: Dataset, options: TrainingOptions, seeds: list[int], summary: dict) -> None:
    with atomic_write(output / SUMMARY_NAME) as handle:
        handle.write(json.dumps(summary, indent=1, allow_nan=False) + "\n")
    write_run_file(output / RUN_NAME, dataset.sources, dataset.options, resolve_options(options, dataset), seeds)
