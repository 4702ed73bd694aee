"""One training, from data to one complete folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.data import Dataset, file_digest, label_shares
from qacg_models.data.collators import batch_maker, padding_share
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel, load_trained
from qacg_models.metrics import Metrics, judge
from qacg_models.metrics.tfidf import TfidfBaseline
from qacg_models.models.auto import BACKBONES
from qacg_models.runs.calibration import write_calibration
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.record import RECORD_NAME, Selection, SplitFile, TrainingRecord, write_record
from qacg_models.runs.run_config import RUN_NAME, write_run_file
from qacg_models.training.calibration import SPLIT, calibrate
from qacg_models.training.encoded_splits import encode_splits
from qacg_models.training.model_setup import begin_model, begin_tokenizer
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.run_folder import MODEL, check_output, close_workplace, leave, open_workplace, unfinished_path
from qacg_models.training.start import choose_start
from qacg_models.training.trained_card import write_card
from qacg_models.training.whole_folders import DIGESTS_NAME, find_damage
from qacg_models.utils.atomic_files import explain_write_errors
from qacg_models.utils.devices import cpu_threads, is_out_of_memory, local_device
from qacg_models.utils.distributed import is_main, join_group, main_only, run_on_main, wait_for_all, world_size
from qacg_models.utils.output_lock import lock_output
from qacg_models.utils.provenance import attention_backends, now, origin

if TYPE_CHECKING:
    import numpy as np
    from transformers import TrainingArguments

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
    """Train, keep the weights of the best evaluation, and write them to `output`.

    Until it is done the run lies in `output`.unfinished, with checkpoints; then that folder becomes `output` at once,
    which is thus absent, what it was before, or complete. Under torchrun every process calls this.

    Args:
        dataset: with the splits train and dev, or train and test for the protocol "released". All splits but train
            are evaluated once at the end.
        output: folder to make.
        options: None for the defaults.
        overwrite: replace `output`, and an unfinished run, if they exist.
        resume: go on with an unfinished run.
        say: receives lines of progress; the progress bar goes to stderr.

    Returns:
        The model as loaded back from `output`; its record holds the figures and the loss curve.

    Raises:
        InputError: `output` exists and may not be replaced, a split is missing, an option does not fit or needs
            what is not installed, an unfinished run is in the way or was begun otherwise, or another run is at work on
            `output`.
    """
    join_group()
    output = Path(output)
    say_warnings(dataset, say)
    with lock_output(output, main_only(say)):
        return train_held(dataset, output, options or TrainingOptions(), overwrite=overwrite, resume=resume, say=say)


def say_warnings(dataset: Dataset, say: Callable[[str], None]) -> None:
    """Passes the warnings about the data to `say`, in the main process only."""
    if is_main():
        for warning in dataset.warnings:
            say(warning.describe())


def train_held(
    dataset: Dataset,
    output: Path,
    options: TrainingOptions,
    *,
    overwrite: bool,
    resume: bool,
    say: Callable[[str], None],
) -> TrainedModel:
    """`train` for who has joined the group and holds `output` already."""
    options, start = choose_start(options, dataset)
    options = resolve_options(options, dataset)
    if (split := selection_split(options)) not in dataset.splits:
        raise InputError(f"training needs the split {split!r}; this data has {', '.join(dataset.splits)}")
    if options.tensorboard is not None:
        from qacg_models.training.callbacks import summary_writer

        summary_writer()
    say = main_only(say)
    say(start)
    checkpoint = run_on_main(lambda: _take_up(dataset, output, options, overwrite, resume, say))
    try:
        with cpu_threads(options.threads):
            _train_into(unfinished_path(output), dataset, options, checkpoint, say)
        run_on_main(lambda: _finish(dataset, output, say))
    except BaseException:
        if is_main():
            leave(output, say)
        raise
    wait_for_all()
    return load_trained(output)


def selection_split(options: TrainingOptions) -> str:
    """The split by which checkpoints are chosen: dev, but test in the released protocol."""
    return "test" if options.protocol == "released" else "dev"


def plan(options: TrainingOptions, rows: int, split: str) -> str:
    """How long training is going to take, as one line.

    Args:
        options: settled.
        rows: of the training split.
        split: on which checkpoints are judged.
    """
    from qacg_models.training.arguments import step_limit

    limit = step_limit(rows, options)
    parts = [] if limit is None else [f"{limit:,} steps"]
    if options.minutes:
        parts.append(f"{'' if limit else 'while ' + split + ' rises, '}at most {options.minutes:g} minutes (--minutes)")
    if options.patience:
        parts.append(f"until {options.patience} evaluations in a row are no better")
    every = f"every {options.eval_every} steps" if options.eval_every else "once per epoch"
    if options.eval_every == limit:
        every = "after the last step, whose weights are kept"
    return f"training: {', '.join(parts)}; {split} is judged {every}"


def _take_up(
    dataset: Dataset,
    output: Path,
    options: TrainingOptions,
    overwrite: bool,
    resume: bool,
    say: Callable[[str], None],
) -> Path | None:
    check_output(output, overwrite)
    digests = {split: file_digest(*files) for split, files in dataset.files.items()}
    training = asdict(options)
    del training["minutes"]  # the only choice that may change on the way: it ends a run, and decides nothing else
    choices = {"training": training, "data": asdict(dataset.options), "files": digests}
    return open_workplace(output, choices, overwrite=overwrite, resume=resume, say=say)


def _finish(dataset: Dataset, output: Path, say: Callable[[str], None]) -> None:
    """Takes temperatures and figures of what was written, puts it in place, and removes the rest."""
    work = unfinished_path(output)
    trained = load_trained(work / MODEL, device=local_device())
    # The figures on record are those of the files on disk, not of the model still in memory.
    logits = {split: trained.logits(rows) for split, rows in dataset.splits.items() if split != "train"}
    rows = [(row.label, row.sentence) for row in dataset.splits.get(SPLIT, ())]
    gold, sentences = [label for label, _ in rows], [sentence for _, sentence in rows]
    calibration = calibrate(trained.record.options.protocol, gold, logits.get(SPLIT), sentences)
    say(calibration.describe())
    write_calibration(work / MODEL, calibration)
    trained = replace(trained, calibration=calibration)
    trained = replace(trained, record=replace(trained.record, **_figures(trained, dataset, logits, say)))
    write_record(work / MODEL / RECORD_NAME, trained.record)
    write_card(work / MODEL, trained)
    close_workplace(output)


def _train_into(
    work: Path,
    dataset: Dataset,
    options: TrainingOptions,
    checkpoint: Path | None,
    say: Callable[[str], None],
) -> None:
    """Train in `work` and write the best model to `work/model`, with a record that lacks the figures."""
    from transformers import set_seed

    from qacg_models.training.callbacks import StepBar

    set_seed(options.seed)
    # A checkout may have moved on by the time that training ends.
    made_with = origin()
    split = selection_split(options)
    tokenizer = begin_tokenizer(dataset, options)
    model = begin_model(dataset, options, tokenizer, say)
    encoded = encode_splits(work, dataset, split, options, tokenizer, model.config, say)
    weights = sum(parameter.numel() for parameter in model.parameters())
    padding = padding_share(encoded.train.lengths().tolist(), options.batch_size, options.seed)
    say(
        f"model: {BACKBONES[options.model].title}, {model.config.num_hidden_layers} layers,"
        f" hidden {model.config.hidden_size}, {weights:,} weights, {options.attention} attention"
    )
    make_batch = batch_maker(model, tokenizer)
    say(make_batch.describe(padding))
    say(plan(options, len(encoded.train), split))
    if not options.threads:
        say(f"threads: {made_with['machine']['threads']} on the CPU; --threads N takes another number")
    if split == "test":
        say("protocol released: the checkpoint is chosen on test, so the figures on test are optimistic")

    trainer = _trainer(work, dataset, options, model, tokenizer, encoded, make_batch, checkpoint, say)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(_no_memory(options)) from error
    finally:
        bar = trainer.pop_callback(StepBar)
        if bar is not None:
            bar.close()
    run_on_main(lambda: _write_model(work, dataset, options, trainer, tokenizer, padding, made_with))


def _no_memory(options: TrainingOptions) -> str:
    """What to do where there is no memory, although a process by itself takes batches in parts."""
    rows, parts = options.batch_size, options.gradient_accumulation
    if world_size() == 1 or rows == 1:
        return "model: it does not fit into memory with its gradients and moments; wanted a smaller one"
    return (
        f"batch_size: {rows} rows in each of {world_size()} processes do not fit into memory; wanted --batch-size"
        f" {rows // 2} --gradient-accumulation {2 * parts}, which takes the same steps"
    )


def _write_model(
    work: Path,
    dataset: Dataset,
    options: TrainingOptions,
    trainer: AspectTrainer,
    tokenizer,
    padding: float,
    made_with: dict[str, object],
) -> None:
    from qacg_models.training.callbacks import collapsed_steps

    seconds = trainer.seconds()
    state, split, task = trainer.state, selection_split(options), dataset.task
    if state.best_global_step is None:
        raise InputError(f"{task.selection} cannot be taken on {split}, so no checkpoint could be chosen by it")
    best = trainer.best_weights()
    if damage := find_damage(best):
        raise InputError(f"{damage}; --resume goes on from an older checkpoint")
    shutil.rmtree(work / MODEL, ignore_errors=True)
    with explain_write_errors(work):
        (work / MODEL).mkdir()
        for path in best.iterdir():
            if path.name not in ("training_args.bin", DIGESTS_NAME):
                shutil.copyfile(path, work / MODEL / path.name)
        # What calls set is not the tokenizer's own; a run that goes on has its features, and may not have called it.
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        tokenizer.save_pretrained(work / MODEL)
        write_run_file(work / MODEL / RUN_NAME, dataset.sources, dataset.options, options, [options.seed])
    record = TrainingRecord(
        task=task,
        contexts=dataset.contexts,
        max_length=options.max_length,
        options=options,
        data_options=dataset.options,
        selected=Selection(split, task.selection, state.best_global_step, state.best_metric),
        collapsed_steps=tuple(collapsed_steps(state.log_history)),
        label_shares=tuple(label_shares(dataset.splits["train"], task)),
        overlap=tuple((a, b, count) for (a, b), count in dataset.overlap.items()),
        data={name: SplitFile(len(rows), file_digest(*dataset.files[name])) for name, rows in dataset.splits.items()},
        warnings=dataset.warnings,
        padding=padding,
        steps=state.global_step,
        seconds=seconds,
        ended=trainer.ended(),
        parts=trainer.parts.count,
        loss=tuple((entry["step"], entry["loss"]) for entry in state.log_history if "loss" in entry),
        **made_with | {"machine": made_with["machine"] | {"attention": attention_backends()}},
        written=now(),
        metrics={},
        tfidf={},
        majority={},
    )
    write_record(work / MODEL / RECORD_NAME, record)


def _trainer(work, dataset, options, model, tokenizer, encoded, make_batch, checkpoint, say) -> AspectTrainer:
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from qacg_models.training.arguments import step_limit, training_arguments
    from qacg_models.training.callbacks import CollapseWarning, FinalEvaluation, StepBar, tensorboard
    from qacg_models.training.compute_metrics import EvaluatedRows
    from qacg_models.training.trainer import AspectTrainer
    from qacg_models.training.word_dropout import WordDropout

    split, task = selection_split(options), dataset.task
    arguments: TrainingArguments = training_arguments(work, options, len(encoded.train), model, task.selection)
    callbacks = [FinalEvaluation(), CollapseWarning(task.labels, split, say)]
    if is_main():
        callbacks += [tensorboard(options.tensorboard)] if options.tensorboard is not None else []
        callbacks += [StepBar(step_limit(len(encoded.train), options), task.selection, split)]
    trainer = AspectTrainer(
        options=options,
        model=model,
        args=arguments,
        train_features=encoded.train,
        eval_features=encoded.evaluated,
        make_batch=make_batch,
        compute_metrics=EvaluatedRows(task, encoded.evaluated_rows),
        callbacks=callbacks,
        hide_words=WordDropout(options.word_dropout, tokenizer.unk_token_id, tokenizer.all_special_ids),
        say=say,
        checkpoint=checkpoint,
    )
    for default in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(default)
    return trainer


def _figures(
    trained: TrainedModel, dataset: Dataset, logits: dict[str, np.ndarray], say: Callable[[str], None]
) -> dict[str, dict[str, Metrics]]:
    """Metrics of the model, by its logits, of TF-IDF with logistic regression and of the majority row on every split
    but train."""
    rows = {split: dataset.splits[split] for split in logits}
    return {
        "metrics": {split: trained.judge(rows[split], logits[split])(None) for split in rows},
        "tfidf": _tfidf_figures(dataset, [*rows], say),
        "majority": {split: trained.majority(rows[split]) for split in rows},
    }


def _tfidf_figures(dataset: Dataset, splits: Sequence[str], say: Callable[[str], None]) -> dict[str, Metrics]:
    rows, task = dataset.splits["train"], dataset.task
    baseline = TfidfBaseline(rows, task)
    say(baseline.describe())
    if baseline.used < len(rows):
        say(f"baseline: fitted to {baseline.used:,} of {len(rows):,} training rows, to limit its time")
    judged = {split: dataset.splits[split] for split in splits}
    return {split: judge(task, asked, baseline.probabilities(asked)) for split, asked in judged.items()}
