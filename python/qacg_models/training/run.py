"""One training, from data to a complete model folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data import Dataset, file_digests, label_shares
from qacg_models.data.collators import batch_maker, padding_share
from qacg_models.data.example_table import distinct
from qacg_models.errors import InputError
from qacg_models.inference.saving import declare_task
from qacg_models.inference.trained_card import write_card
from qacg_models.inference.trained_model import TrainedModel, load_trained
from qacg_models.metrics import judge
from qacg_models.metrics.tfidf import TfidfBaseline
from qacg_models.models.auto import BACKBONES
from qacg_models.runs.calibration import write_calibration
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import RECORD_NAME, Selection, SplitFile, TrainingRecord, write_record
from qacg_models.runs.run_config import RUN_NAME, write_run_file
from qacg_models.runs.training_texts import write_training_texts
from qacg_models.training.arguments import step_limit
from qacg_models.training.choose_temperatures import SPLIT, calibrate
from qacg_models.training.encoded_splits import EncodedSplits, encode_splits
from qacg_models.training.model_setup import begin_model, begin_tokenizer
from qacg_models.training.resolve_options import choose_start, resolve_options
from qacg_models.training.run_folder import RunFolder, check_output, run_choices
from qacg_models.utils.atomic_files import explain_write_errors
from qacg_models.utils.cells import counted
from qacg_models.utils.devices import cpu_threads, is_out_of_memory, local_device
from qacg_models.utils.distributed import is_main, join_group, main_only, run_on_main, wait_for_all, world_size
from qacg_models.utils.output_lock import lock_output
from qacg_models.utils.provenance import attention_backends, now, origin
from qacg_models.utils.quiet import hidden_library_bars

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from qacg_models.models.base import EncoderPreTrainedModel
    from qacg_models.training.trainer import AspectTrainer


def train(
    dataset: Dataset,
    output: Path | str,
    options: TrainingOptions | None = None,
    *,
    overwrite: bool = False,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> TrainedModel:
    """Trains, keeps the weights of the best evaluation, and writes the model to `output`.

    During training, all files except TensorBoard's and the lock file are in the folder `output`.unfinished. At the end
    the model in it is renamed to `output`, so at any time `output` is absent, unchanged or complete. Under torchrun
    every process must call this function. Threads of one process train one after another.

    Args:
        dataset: the data set; it has the splits train and dev, or train and test for the protocol "released". All
            splits except train are evaluated once at the end.
        output: folder to create.
        options: options of training; None: the defaults.
        overwrite: replace `output`, and an unfinished run, if they exist.
        resume: continue an unfinished run; without one, start a new run.
        say: called with each log line, in the main process only; the progress bar is printed to stderr.

    Returns:
        The model, loaded from `output` to the CPU; its record has the metrics and the loss curve.

    Raises:
        InputError: `output` is a model folder and `overwrite` is not set, or it is a file or another folder with files;
            a file cannot be written; a split is missing; an option does not fit, or requires a package that is not
            installed; an unfinished run exists and neither `resume` nor `overwrite` is set; the run to resume has other
            options, other data or another number of processes; the model or a row does not fit into memory; the metric
            is undefined on the split that selects the checkpoint; or another run writes to `output`.
        OSError: a folder cannot be created, renamed or deleted.
    """
    join_group()
    output = Path(output)
    print_data_warnings(dataset, say)
    with lock_output(output, main_only(say)):
        return train_locked(dataset, output, options or TrainingOptions(), overwrite=overwrite, resume=resume, say=say)


def print_data_warnings(dataset: Dataset, say: Callable[[str], None]) -> None:
    """Calls `say` with each warning about the data, in the main process only."""
    if is_main():
        for warning in dataset.warnings:
            say(warning.describe())


def selection_split(options: TrainingOptions) -> str:
    """Returns the name of the split that selects the checkpoint: dev, or test for the protocol "released"."""
    return "test" if options.protocol == "released" else "dev"


# The seed, the random generators, the number of threads and the progress bars of libraries are those of the process.
_TRAINING = threading.RLock()


@contextmanager
def _one_training() -> Iterator[None]:
    """Makes a thread wait, inside the block or function, until no other thread of the process trains."""
    with _TRAINING:
        yield


@_one_training()
@hidden_library_bars()
def train_locked(
    dataset: Dataset,
    output: Path,
    options: TrainingOptions,
    *,
    overwrite: bool,
    resume: bool,
    say: Callable[[str], None],
) -> TrainedModel:
    """Trains as `train` does; the caller has joined the process group, locked `output` and printed data warnings."""
    options, start = choose_start(options, dataset)
    options = resolve_options(options, dataset)
    if (split := selection_split(options)) not in dataset.splits:
        raise InputError(f"data: expected the split {split!r}, got {', '.join(dataset.splits)}.")
    if options.tensorboard is not None:
        from qacg_models.training.callbacks import summary_writer

        summary_writer()
    run = _Run(dataset, options, RunFolder(output), main_only(say))
    run.say(start)
    checkpoint = run_on_main(lambda: _open_folder(run, overwrite, resume))
    try:
        with cpu_threads(options.threads):
            _train(run, checkpoint)
        run_on_main(lambda: _finish(run))
    except BaseException:
        if is_main():
            run.folder.leave(run.say)
        raise
    wait_for_all()
    return load_trained(output)


@dataclass(frozen=True)
class _Run:
    """The data set, the options from `resolve_options`, the run folder and the log function of a training."""

    dataset: Dataset
    options: TrainingOptions
    folder: RunFolder
    say: Callable[[str], None]

    @property
    def split(self) -> str:
        return selection_split(self.options)


def _open_folder(run: _Run, overwrite: bool, resume: bool) -> Path | None:
    """Opens the run folder, and returns the checkpoint to resume from; None to start at the first step."""
    check_output(run.folder.output, overwrite)
    choices = run_choices(run.options, run.dataset.options, file_digests(run.dataset))
    # Another number of processes means other batches, another order and other random numbers.
    choices["torchrun"] = {"processes": world_size()}
    return run.folder.open(choices, overwrite=overwrite, resume=resume, say=run.say)


def _train(run: _Run, checkpoint: Path | None) -> None:
    """Trains, and completes the best weights to a model in the run folder, with a record that lacks the metrics."""
    from transformers import set_seed

    from qacg_models.training.callbacks import StepBar

    set_seed(run.options.seed)
    made_with = origin()  # at the start, because the checkout can change while training runs
    tokenizer = begin_tokenizer(run.dataset, run.options)
    model = begin_model(run.dataset, run.options, tokenizer, run.say)
    splits = encode_splits(run.folder, run.dataset, run.split, run.options, tokenizer, model.config, run.say)
    padding = padding_share(splits.train.lengths().tolist(), run.options.batch_size, run.options.seed)
    make_batch = batch_maker(model, tokenizer)
    run.say(_describe_model(model, run.options))
    run.say(make_batch.describe(padding))
    run.say(plan(run.options, len(splits.train), run.split))
    threads = run.options.threads or made_with["machine"]["threads"]
    sizes = f"{counted(run.options.batch_size, 'row')} per batch, {counted(threads, 'CPU thread')}"
    run.say(f"{sizes} (--batch-size, --threads)")
    if run.split == "test":
        run.say("protocol released: the checkpoint is selected on test, so the metrics on test are optimistic")
    trainer = _make_trainer(run, model, tokenizer, splits, make_batch, checkpoint)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(_out_of_memory(run.options)) from error
    finally:
        bar = trainer.pop_callback(StepBar)
        if bar is not None:
            bar.close()
    run_on_main(lambda: _write_model(run, trainer, tokenizer, padding, made_with))


def _describe_model(model: EncoderPreTrainedModel, options: TrainingOptions) -> str:
    weights = sum(parameter.numel() for parameter in model.parameters())
    return (
        f"model: {BACKBONES[options.model].title}, {counted(model.config.num_hidden_layers, 'layer')},"
        f" hidden {model.config.hidden_size}, {weights:,} weights, {options.attention} attention"
    )


def plan(options: TrainingOptions, rows: int, split: str) -> str:
    """Returns a log line with the limits that end training and the interval of evaluations.

    Args:
        options: options of training, from `resolve_options`.
        rows: number of rows of the training split.
        split: name of the split that selects the checkpoint.
    """
    limit = step_limit(rows, options)
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


def _make_trainer(
    run: _Run,
    model: EncoderPreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    splits: EncodedSplits,
    make_batch: Callable[..., dict],
    checkpoint: Path | None,
) -> AspectTrainer:
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from qacg_models.training.augmentation import WordDropout
    from qacg_models.training.callbacks import (
        CollapseWarning,
        EvaluationMetrics,
        FinalEvaluation,
        StepBar,
        tensorboard,
    )
    from qacg_models.training.trainer import AspectTrainer

    options, task = run.options, run.dataset.task
    callbacks = [FinalEvaluation(), CollapseWarning(task.labels, run.split, run.say)]
    if is_main():
        callbacks += [tensorboard(options.tensorboard)] if options.tensorboard is not None else []
        callbacks += [StepBar(step_limit(len(splits.train), options), task.selection, run.split)]
    trainer = AspectTrainer(
        options=options,
        model=model,
        splits=splits,
        make_batch=make_batch,
        metrics=EvaluationMetrics(task, splits.evaluated_rows),
        callbacks=callbacks,
        hide_words=WordDropout(options.word_dropout, tokenizer.unk_token_id, tokenizer.all_special_ids),
        folder=run.folder,
        say=run.say,
        checkpoint=checkpoint,
    )
    for default in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(default)
    return trainer


def _out_of_memory(options: TrainingOptions) -> str:
    """Returns the error message for a model or a batch that does not fit into memory.

    A single process has already tried micro-batches of one row.
    """
    rows = options.batch_size
    if world_size() == 1 or rows == 1:
        return (
            "model: one row does not fit into memory with the gradients and the optimizer's state. Use a smaller model"
            " or a smaller --max-length."
        )
    same = "" if rows % 2 else ", which computes the same steps"
    return (
        f"batch_size: {rows} rows in each of {world_size()} processes do not fit into memory. Use --batch-size"
        f" {rows // 2} --gradient-accumulation {2 * options.gradient_accumulation}{same}."
    )


def _write_model(
    run: _Run,
    trainer: AspectTrainer,
    tokenizer: PreTrainedTokenizerFast,
    padding: float,
    made_with: dict[str, object],
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
    write_training_texts(model, (text for (text,) in distinct(run.dataset.splits["train"], "sentence")))
    made_with = made_with | {"machine": made_with["machine"] | {"attention": attention_backends()}}
    write_record(model / RECORD_NAME, _record(run, trainer, seconds, padding, made_with))


def _record(
    run: _Run, trainer: AspectTrainer, seconds: float, padding: float, made_with: dict[str, object]
) -> TrainingRecord:
    """Returns the record of a training, without metrics."""
    from qacg_models.training.callbacks import collapsed_steps, evaluations

    dataset, state, digests = run.dataset, trainer.state, file_digests(run.dataset)
    return TrainingRecord(
        task=dataset.task,
        targets=dataset.targets,
        max_length=run.options.max_length,
        options=run.options,
        data_options=dataset.options,
        selected=Selection(run.split, dataset.task.selection, state.best_global_step, state.best_metric),
        collapsed_steps=tuple(collapsed_steps(state.log_history)),
        label_shares=tuple(label_shares(dataset.splits["train"], dataset.task)),
        overlap=tuple((a, b, count) for (a, b), count in dataset.overlap.items()),
        data={name: SplitFile(len(rows), digests[name]) for name, rows in dataset.splits.items()},
        warnings=dataset.warnings,
        padding=padding,
        steps=state.global_step,
        evaluations=len({entry["step"] for entry in evaluations(state)}),
        seconds=seconds,
        ended=trainer.end_reason(),
        parts=trainer.micro_batches.count,
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


def _metrics(
    trained: TrainedModel, dataset: Dataset, logits: dict[str, np.ndarray], say: Callable[[str], None]
) -> dict[str, dict]:
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
