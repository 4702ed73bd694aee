"""A training run, from options and data to a model, for one or several seeds.

The temperatures are fitted on dev, and kept only if they lower the log loss of held-out rows. Three candidates are
compared, simplest first: no temperature, one for all labels, and, with at least MIN_SENTENCES sentences, one per
label. Each is evaluated in 10-fold cross-validation on dev, with fewer folds for fewer sentences; all rows of a
sentence are in the same fold. A candidate replaces the best previous one if its log loss is lower by more than MARGIN
standard errors of the difference, computed over sentences.

The criterion is log loss, because with few rows the expected calibration error is mostly noise of its bins. The margin
rejects improvements by chance. Measured on well-calibrated models with dev sets of five to ten sentences: temperatures
lower the held-out log loss in 25 % to 33 % of the cases, and by more than the margin in 4 % to 14 %.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES
from qacg_models.sentiment.calibration import (
    Calibration,
    Candidate,
    Fit,
    fit_temperature,
    fit_temperatures,
    reliability,
    write_calibration,
)
from qacg_models.sentiment.dataset import Dataset, file_digests, label_shares
from qacg_models.sentiment.example import text_digest
from qacg_models.sentiment.metrics import judge
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import (
    RECORD_NAME,
    RUN_NAME,
    Selection,
    SplitFile,
    TrainingRecord,
    write_record,
    write_run_file,
)
from qacg_models.sentiment.tfidf import TfidfBaseline
from qacg_models.sentiment.trained_model import TrainedModel, declare_task, load_trained, probabilities_of, write_card
from qacg_models.sentiment.training.rows import encode_splits
from qacg_models.sentiment.training.run_folder import (
    RunFolder,
    check_choices,
    check_output,
    run_choices,
)
from qacg_models.sentiment.training.start import begin_model, begin_tokenizer, resolve_options
from qacg_models.utils.files import atomic_write, explain_write_errors, lock_output
from qacg_models.utils.machine import (
    attention_backends,
    cpu_threads,
    hidden_library_bars,
    is_main,
    is_out_of_memory,
    join_group,
    local_device,
    main_only,
    now,
    origin,
    run_on_main,
    wait_for_all,
    world_size,
)
from qacg_models.utils.text import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.sentiment.training.trainer import AspectTrainer

SPLIT = "dev"
FOLDS = 10
MARGIN = 1.5
MIN_SENTENCES = 30

Fitting = Callable[[Sequence[int], np.ndarray], tuple[float, ...]]


def calibrate(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> Calibration:
    """Returns the temperatures of the best candidate in cross-validation on dev, or the reason why there are none.

    The reasons: the protocol "released", no rows, a single label or sentence, logits that are not finite, or
    candidates that do not lower the log loss of held-out rows by more than MARGIN standard errors.

    Args:
        protocol: protocol of training, "dev" or "released".
        gold: (N) true classes of the rows of dev.
        logits: (N, classes) logits of the model for these rows; None if the data has no dev.
        sentences: (N) text of each row; rows with the same text are in the same fold.
    """
    reason = _why_not(protocol, gold, logits, sentences)
    if reason is not None or logits is None:
        return Calibration(skipped=reason)
    candidates, folds = _cross_validate(np.asarray(gold), logits, _numbers(sentences))
    none, *others = candidates
    kept = next((one for one in reversed(others) if _better(one)), none)
    count = len(set(sentences))
    fit = Fit(SPLIT, len(gold), none.error, kept.error, count, folds, tuple(candidates))
    if kept is none:
        reason = f"because none lowers the log loss of held-out rows by more than {MARGIN} standard errors"
        return Calibration(fit=fit, skipped=reason)
    return Calibration(_fittings(count)[kept.name](gold, logits), fit)


def _fittings(sentences: int) -> dict[str, Fitting]:
    """Returns the function that fits each candidate, by name, simplest first, for this number of sentences."""
    fittings: dict[str, Fitting] = {
        "none": lambda gold, logits: (1.0,),
        "one": lambda gold, logits: (fit_temperature(gold, logits),),
    }
    return fittings | ({"per label": fit_temperatures} if sentences >= MIN_SENTENCES else {})


def _better(candidate: Candidate) -> bool:
    return candidate.gain > MARGIN * candidate.gain_error


def _numbers(sentences: Sequence[str]) -> np.ndarray:
    """Returns (N) the number, from 0, of each row's sentence; the order of the rows does not change the numbers."""
    texts = sorted(set(sentences), key=text_digest)
    number = {text: index for index, text in enumerate(texts)}
    return np.array([number[text] for text in sentences])


def _cross_validate(gold: np.ndarray, logits: np.ndarray, sentence: np.ndarray) -> tuple[list[Candidate], int]:
    """Returns the candidates, simplest first, each compared with the best previous one, and the number of folds.

    Args:
        gold: (N) true classes.
        logits: (N, classes).
        sentence: (N) number of the sentence of each row.
    """
    count = int(sentence.max()) + 1
    folds = min(FOLDS, count)
    found: list[Candidate] = []
    kept_losses = None
    for name, fitting in _fittings(count).items():
        probabilities = np.empty(logits.shape)
        for fold in range(folds):
            test = sentence % folds == fold
            probabilities[test] = probabilities_of(logits[test], fitting(gold[~test].tolist(), logits[~test]))
        losses = -np.log(np.maximum(probabilities[np.arange(len(gold)), gold], np.finfo(float).tiny))
        gains = np.bincount(sentence, (losses if kept_losses is None else kept_losses) - losses, count)
        candidate = Candidate(
            name,
            float(losses.mean()),
            reliability(gold.tolist(), probabilities).error,
            float(gains.sum() / len(gold)),
            float(gains.std(ddof=1) * count**0.5 / len(gold)),
        )
        if kept_losses is None or _better(candidate):
            kept_losses = losses
        found.append(candidate)
    return found, folds


def _why_not(protocol: str, gold: Sequence[int], logits: np.ndarray | None, sentences: Sequence[str]) -> str | None:
    if protocol == "released":
        return "because the protocol is that of the released code"
    if logits is None or not len(gold):
        return f"because there are no rows of {SPLIT}"
    if len(set(gold)) < 2:
        return f"because the rows of {SPLIT} have a single label"
    if len(set(sentences)) < 2:
        return f"because the rows of {SPLIT} have a single sentence, so none can be held out"
    if not np.isfinite(logits).all():
        return f"because the model's logits are not finite on {SPLIT}"
    return None


Say = Callable[[str], None]

SUMMARY_NAME = "seeds.json"
# The seed, the random generators, the number of threads and the progress bars of libraries are those of the process.
_ONE_TRAINING = threading.RLock()


def train(
    dataset: Dataset,
    output: Path | str,
    options: TrainingOptions | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    say: Say = print,
) -> TrainedModel:
    """Trains, keeps the weights of the best evaluation, and writes the model to `output`.

    During training, all files except TensorBoard's and the lock file are in the folder `output`.unfinished. At the end
    the model in it is renamed to `output`, so at any time `output` is absent, unchanged or complete. Under torchrun
    every process must call this function. Only one thread of a process may train at a time, because the random
    generators are those of the process.

    Args:
        dataset: the data set; it has the splits train and dev, or train and test for the protocol "released". All
            splits except train are evaluated once at the end.
        output: folder to create.
        options: options of training; None: the defaults.
        overwrite: replace `output`, and an unfinished run, if they exist.
        resume: continue an unfinished run, or return the model of a finished one; without either, start a new run.
        say: called with each log line, in the main process only; the progress bar is printed to stderr.

    Returns:
        The model, loaded from `output` to the CPU; its record has the metrics and the loss curve.

    Raises:
        InputError: `output` is a model folder and neither flag is set, or it is a file or another folder with files; a
            file cannot be written; a split is missing; an option does not fit, or requires a package that is not
            installed; an unfinished run exists and neither `resume` nor `overwrite` is set; the run to resume has other
            options, other data or another number of processes; the model or a row does not fit into memory; the metric
            is undefined on the split that selects the checkpoint; or another run writes to `output`.
        OSError: a folder cannot be created, renamed or deleted.
    """
    join_group()
    output, say = Path(output), main_only(say)
    _print_warnings(dataset, say)
    with _ONE_TRAINING, lock_output(output, say):
        return _train(dataset, output, options or TrainingOptions(), overwrite=overwrite, resume=resume, say=say)


def train_seeds(
    dataset: Dataset,
    output: Path | str,
    options: TrainingOptions,
    seeds: Sequence[int],
    *,
    overwrite: bool = False,
    resume: bool = False,
    say: Say = print,
) -> list[TrainingRecord]:
    """Trains once per seed, into `output` for one seed, and into `output/seed-N` for several.

    With several seeds, `output/seeds.json` has the mean and standard deviation of the metrics, and `output/run.yaml`
    has the options. Each seed has its own folder of TensorBoard logs.

    Args:
        dataset: the data set; it has the splits train and dev, or train and test for the protocol "released".
        output: folder to create.
        options: options of training, the same for all seeds.
        seeds: distinct integers.
        overwrite: replace the models of these seeds, and unfinished runs, if they exist.
        resume: continue unfinished runs; finished seeds are kept.
        say: called with each log line; the progress bar is printed to stderr.

    Returns:
        The record of every seed, in the order of `seeds`.

    Raises:
        InputError: `seeds` is empty or repeats an integer; `train` raises InputError for a seed; or, with several
            seeds, `output` is a file, or a folder with files, and neither `overwrite` nor `resume` is set.
        OSError: a folder cannot be created, renamed or deleted.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: expected one or several different integers, got {list(seeds)}.")
    every = [replace(options, seed=seed) for seed in seeds]  # all seeds are checked before the first one is trained
    if len(seeds) == 1:
        return [train(dataset, output, every[0], overwrite=overwrite, resume=resume, say=say).record]
    join_group()
    output, say = Path(output), main_only(say)
    _print_warnings(dataset, say)
    with lock_output(output, say):
        run_on_main(lambda: _check_seeds_folder(output, overwrite or resume))
        records = []
        for chosen in every:
            folder, logs = output / f"seed-{chosen.seed}", options.tensorboard
            chosen = replace(chosen, tensorboard=logs and str(Path(logs, folder.name)))
            say(f"seed {chosen.seed}")
            with lock_output(folder, say):
                records.append(_train(dataset, folder, chosen, overwrite=overwrite, resume=resume, say=say).record)
        resolved = resolve_options(options, dataset)

        def write() -> None:
            for name in (SUMMARY_NAME, RUN_NAME):  # temporary folders of killed runs
                for left in output.glob(f".{name}.*/"):
                    shutil.rmtree(left)
            with atomic_write(output / SUMMARY_NAME) as handle:
                handle.write(json.dumps(summarize(records), indent=1, allow_nan=False) + "\n")
            write_run_file(output / RUN_NAME, dataset.sources, dataset.options, resolved, list(seeds))

        run_on_main(write)
    return records


def _check_seeds_folder(output: Path, continues: bool) -> None:
    if output.is_file() or (not continues and output.is_dir() and any(output.iterdir())):
        raise InputError(
            f"{output}: expected a new folder, got files of an earlier run. Continue that run with --resume, or replace"
            " it with --overwrite."
        )


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


def selection_split(options: TrainingOptions) -> str:
    """Returns the name of the split that selects the checkpoint: dev, or test for the protocol "released"."""
    return "test" if options.protocol == "released" else "dev"


def _print_warnings(dataset: Dataset, say: Say) -> None:
    for warning in dataset.warnings:
        say(warning.describe())


@hidden_library_bars()
def _train(
    dataset: Dataset, output: Path, options: TrainingOptions, *, overwrite: bool, resume: bool, say: Say
) -> TrainedModel:
    """Trains as `train` does; the caller has joined the process group and locked `output`."""
    starts: list[str] = []
    options = resolve_options(options, dataset, starts.append)
    if (split := selection_split(options)) not in dataset.splits:
        raise InputError(f"data: expected the split {split!r}, got {', '.join(dataset.splits)}.")
    run = _Run(dataset, options, RunFolder(output), say)
    choices = run_choices(options, dataset.options, file_digests(dataset))
    if resume:
        run_on_main(run.folder.finish_if_done)
        if (output / RECORD_NAME).is_file() and not run.folder.path.exists():
            say(f"{output}: the run is finished; nothing is left to resume")
            return _finished(output, choices)
    say(starts[0])
    checkpoint = run_on_main(lambda: _open_folder(run, choices, overwrite, resume))
    try:
        with cpu_threads(options.threads):
            _fit(run, checkpoint)
        run_on_main(lambda: _finish(run))
    except BaseException:
        if is_main():
            run.folder.leave(say)
        raise
    wait_for_all()
    return load_trained(output)


@dataclass(frozen=True)
class _Run:
    """The data set, the options from `resolve_options`, the run folder and the log function of a training."""

    dataset: Dataset
    options: TrainingOptions
    folder: RunFolder
    say: Say

    @property
    def split(self) -> str:
        return selection_split(self.options)


def _finished(output: Path, choices: dict) -> TrainedModel:
    """Returns the model of a finished run; raises InputError if its options or data files were different."""
    trained = load_trained(output)
    record = trained.record
    trained_files = {split: part.sha256 for split, part in record.data.items()}
    check_choices(output, run_choices(record.options, record.data_options, trained_files), choices)
    return trained


def _open_folder(run: _Run, choices: dict, overwrite: bool, resume: bool) -> Path | None:
    """Opens the run folder, and returns the checkpoint to resume from; None to start at the first step."""
    check_output(run.folder.output, overwrite)
    # Another number of processes means other batches, another order and other random numbers.
    choices = choices | {"torchrun": {"processes": world_size()}}
    return run.folder.open(choices, overwrite=overwrite, resume=resume, say=run.say)


def _fit(run: _Run, checkpoint: Path | None) -> None:
    """Trains, and completes the best weights to a model in the run folder, with a record that lacks the metrics."""
    from transformers import set_seed

    from qacg_models.sentiment.training.trainer import AspectTrainer, EvaluationMetrics

    options, dataset, say = run.options, run.dataset, run.say
    set_seed(options.seed)
    made_with = origin()  # at the start, because the checkout can change while training runs
    tokenizer = begin_tokenizer(dataset, options)
    model = begin_model(dataset, options, tokenizer, say)
    splits = encode_splits(dataset, run.split, options, tokenizer, model.config, say)
    weights = sum(parameter.numel() for parameter in model.parameters())
    say(
        f"model: {BACKBONES[options.model].title}, {counted(model.config.num_hidden_layers, 'layer')},"
        f" hidden {model.config.hidden_size}, {weights:,} weights, {options.attention} attention"
    )
    say(plan(options, len(splits.train), run.split))
    threads = options.threads or made_with["machine"]["threads"]
    sizes = f"{counted(options.batch_size, 'row')} per batch, {counted(threads, 'CPU thread')}"
    say(f"{sizes} (--batch-size, --threads)")
    if run.split == "test":
        say("protocol released: the checkpoint is selected on test, so the metrics on test are optimistic")
    trainer = AspectTrainer(
        options=options,
        model=model,
        tokenizer=tokenizer,
        splits=splits,
        metrics=EvaluationMetrics(dataset.task, splits.evaluated_rows, run.split, say),
        folder=run.folder,
        checkpoint=checkpoint,
    )
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(_out_of_memory(options)) from error
    finally:
        trainer.bar.close()
    run_on_main(lambda: _write_model(run, trainer, tokenizer, made_with))


def plan(options: TrainingOptions, rows: int, split: str) -> str:
    """Returns a log line with the limits that end training and the interval of evaluations.

    Args:
        options: options of training, from `resolve_options`.
        rows: number of rows of the training split.
        split: name of the split that selects the checkpoint.
    """
    limit = options.step_limit(rows)
    parts = [] if limit is None else [counted(limit, "step")]
    if options.minutes:
        improving = f"while {split} improves, " if options.patience and limit is None else ""
        parts.append(f"{improving}at most {options.minutes:g} minute{'' if options.minutes == 1 else 's'} (--minutes)")
    if options.patience:
        parts.append(f"until {counted(options.patience, 'evaluation is', 'evaluations in a row are')} no better")
    every = f"every {counted(options.eval_every, 'step')}" if options.eval_every else "once per epoch"
    if options.eval_every == limit:
        every = "after the last step, whose weights are kept"
    return f"training: {', '.join(parts)}; {split} is evaluated {every}"


def _out_of_memory(options: TrainingOptions) -> str:
    """Returns the error message for a model or a batch that does not fit into memory."""
    rows = options.batch_size
    if rows == 1:
        return (
            "model: one row does not fit into memory with the gradients and the optimizer's state. Use a smaller model"
            " or a smaller --max-length."
        )
    same = "" if rows % 2 else ", which computes the same steps"
    return (
        f"batch_size: {rows} rows in each process do not fit into memory. Use --batch-size {rows // 2}"
        f" --set gradient_accumulation={2 * options.gradient_accumulation}{same}."
    )


def _write_model(
    run: _Run, trainer: AspectTrainer, tokenizer: PreTrainedTokenizerFast, made_with: dict[str, object]
) -> None:
    """Writes the tokenizer, run.yaml and the record beside the best weights in the run folder."""
    seconds, task = trainer.seconds(), run.dataset.task
    if trainer.state.best_global_step is None:
        raise InputError(
            f"{run.split}: expected rows on which {task.selection} is defined, to select a checkpoint, got no such"
            f" rows. Add rows with other labels to {run.split}."
        )
    model = run.folder.best
    with explain_write_errors(run.folder.path):
        (model / "training_args.bin").unlink()  # the Trainer's
        # Encoding sets the tokenizer's truncation and padding, which no model needs.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.save_pretrained(model)
        write_run_file(model / RUN_NAME, run.dataset.sources, run.dataset.options, run.options, [run.options.seed])
    made_with = made_with | {"machine": made_with["machine"] | {"attention": attention_backends()}}
    write_record(model / RECORD_NAME, _record(run, trainer, seconds, made_with))


def _record(run: _Run, trainer: AspectTrainer, seconds: float, made_with: dict[str, object]) -> TrainingRecord:
    """Returns the record of a training, without metrics."""
    from qacg_models.sentiment.training.trainer import evaluations

    dataset, state, digests = run.dataset, trainer.state, file_digests(run.dataset)
    return TrainingRecord(
        task=dataset.task,
        targets=dataset.targets,
        max_length=run.options.max_length,
        options=run.options,
        data_options=dataset.options,
        selected=Selection(run.split, dataset.task.selection, state.best_global_step, state.best_metric),
        label_shares=tuple(label_shares(dataset.splits["train"], dataset.task)),
        overlap=tuple((a, b, count) for (a, b), count in dataset.overlap.items()),
        data={name: SplitFile(len(rows), digests[name]) for name, rows in dataset.splits.items()},
        warnings=dataset.warnings,
        steps=state.global_step,
        evaluations=len({entry["step"] for entry in evaluations(state)}),
        seconds=seconds,
        ended=trainer.ending.reason(state),
        loss=tuple((entry["step"], entry["loss"]) for entry in state.log_history if "loss" in entry),
        **made_with,
        written=now(),
        metrics={},
        tfidf={},
        majority={},
        confusion={},
    )


def _finish(run: _Run) -> None:
    """Adds temperatures, metrics and the model card to the model in the run folder, and renames it to the output."""
    model = run.folder.best
    trained = load_trained(model, device=local_device())
    # Metrics are those of the files on the disk, not of the model in memory.
    logits = {split: trained.logits(rows) for split, rows in run.dataset.splits.items() if split != "train"}
    rows = [(row.label, row.sentence) for row in run.dataset.splits.get(SPLIT, ())]  # reads a large table once
    gold, sentences = [label for label, _ in rows], [sentence for _, sentence in rows]
    calibration = calibrate(run.options.protocol, gold, logits.get(SPLIT), sentences)
    run.say(calibration.describe())
    write_calibration(model, calibration)
    trained = replace(trained, calibration=calibration)
    trained = replace(trained, record=replace(trained.record, **_metrics(trained, run.dataset, logits, run.say)))
    write_record(model / RECORD_NAME, trained.record)
    declare_task(trained)
    trained.model.config.save_pretrained(model)
    write_card(model, trained)
    run.folder.finish()


def _metrics(trained: TrainedModel, dataset: Dataset, logits: dict[str, np.ndarray], say: Say) -> dict[str, dict]:
    """Returns metrics of the model, of TF-IDF and of the majority baseline, and confusion matrices, by split."""
    rows = {split: dataset.splits[split] for split in logits}
    training, task = dataset.splits["train"], dataset.task
    baseline = TfidfBaseline(training, task)
    say(baseline.describe())
    if baseline.used < len(training):
        say(f"baseline: fitted to {baseline.used:,} of {len(training):,} training rows, to limit its time")
    return {
        "metrics": {split: trained.judge(rows[split], logits[split])(None) for split in rows},
        "tfidf": {split: judge(task, asked, baseline.probabilities(asked)) for split, asked in rows.items()},
        "majority": {split: trained.majority(rows[split]) for split in rows},
        "confusion": {split: trained.confusion(rows[split], logits[split]) for split in rows},
    }
