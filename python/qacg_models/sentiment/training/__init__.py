"""A training run, from options and data to a model, for one or several seeds.

All files of an unfinished run are in the folder OUTPUT.unfinished, from which a killed run resumes:

| path | content |
|---|---|
| `choices.json` | number of processes, options without the time limit, data digests; must not change on resuming |
| `checkpoint-STEP/` | state of the training after a step (`trainer.py`) |
| `model/` | after the training, the model with its record; renamed to OUTPUT when it is complete |

`start.py` chooses values for options that are not given, the initial weights and the tokenizer; `rows.py` encodes and
draws rows; `trainer.py` has the steps.
"""

from __future__ import annotations

import json
import math
import shlex
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.sentiment.calibration import SPLIT, calibrate, probabilities_of
from qacg_models.sentiment.dataset import Dataset, file_digests, label_shares
from qacg_models.sentiment.metrics import judge
from qacg_models.sentiment.options import DataOptions, TrainingOptions
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
from qacg_models.sentiment.trained_model import (
    TrainedModel,
    bfloat16_note,
    check_output,
    has_fast_bfloat16,
    load_trained,
    write_descriptions,
    write_weights,
)
from qacg_models.sentiment.training.rows import encode_splits
from qacg_models.sentiment.training.start import Say, begin_model, begin_tokenizer, resolve_options
from qacg_models.utils import files, machine
from qacg_models.utils.fields import read_json_as
from qacg_models.utils.text import counted

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedTokenizerFast

    from qacg_models.sentiment.training.trainer import AspectTrainer

CHOICES_NAME = "choices.json"
MODEL = "model"
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
    every process must call this function. Only one thread of a process trains at a time.

    The data set has the splits train and dev, or train and test for the protocol "released". With `overwrite`, `output`
    and an unfinished run are replaced. With `resume`, an unfinished run is continued, or the model of a finished one is
    returned; without either, a new run starts. The main process calls `say` with each log line.
    """
    machine.join_group()
    output, say = Path(output), machine.main_only(say)
    for warning in dataset.warnings:
        say(warning.describe())
    with _ONE_TRAINING, files.lock_output(output, say):
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
    """Trains once per seed, as `train`, and returns the records, in the order of `seeds`, which are distinct integers.

    The model of a single seed is in `output`. With several seeds, the models are in `output/seed-N`, and
    `output/run.yaml` has the options. Each seed has its own folder of TensorBoard logs.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise InputError(f"seeds: expected one or several different integers, got {list(seeds)}.")
    every = [replace(options, seed=seed) for seed in seeds]  # all seeds are checked before the first one is trained
    if len(seeds) == 1:
        return [train(dataset, output, every[0], overwrite=overwrite, resume=resume, say=say).record]
    machine.join_group()
    output, say = Path(output), machine.main_only(say)
    for warning in dataset.warnings:
        say(warning.describe())
    with _ONE_TRAINING, files.lock_output(output, say):
        machine.run_on_main(lambda: _check_seeds_folder(output, overwrite or resume))
        records = []
        for chosen in every:
            folder, logs = output / f"seed-{chosen.seed}", options.tensorboard
            chosen = replace(chosen, tensorboard=logs and str(Path(logs, folder.name)))
            say(f"seed {chosen.seed}")
            with files.lock_output(folder, say):
                records.append(_train(dataset, folder, chosen, overwrite=overwrite, resume=resume, say=say).record)
        run = (dataset.sources, dataset.options, resolve_options(options, dataset), list(seeds))
        machine.run_on_main(lambda: write_run_file(output / RUN_NAME, *run))
    return records


def _check_seeds_folder(output: Path, continues: bool) -> None:
    if (output / RECORD_NAME).exists():
        raise InputError(f"{output}: expected no model beside those of several seeds, got one. Choose another folder.")
    if output.is_file() or (not continues and output.is_dir() and any(output.iterdir())):
        raise InputError(
            f"{output}: expected a new folder, got files of an earlier run. Continue that run with --resume, or replace"
            " it with --overwrite."
        )


@machine.hidden_library_bars()
def _train(
    dataset: Dataset, output: Path, options: TrainingOptions, *, overwrite: bool, resume: bool, say: Say
) -> TrainedModel:
    """Trains as `train` does; the caller has joined the process group and locked `output`."""
    starts: list[str] = []
    options = resolve_options(options, dataset, starts.append)
    if (split := options.selection_split) not in dataset.splits:
        raise InputError(f"data: expected the split {split!r}, got {', '.join(dataset.splits)}.")
    run = _Run(dataset, options, output, say)
    choices = run_choices(options, dataset.options, file_digests(dataset))
    if resume and not run.folder.exists() and (output / RECORD_NAME).is_file():
        machine.run_on_main(lambda: files.remove_folder(run.folder))  # its deletion may have been interrupted
        say(f"{output}: the run is finished; nothing is left to resume")
        trained = load_trained(output)
        digests = {split: part.sha256 for split, part in trained.record.data.items()}
        check_choices(output, run_choices(trained.record.options, trained.record.data_options, digests), choices)
        return trained
    say(starts[0])
    # Another number of processes means other batches, another order and other random numbers.
    choices |= {"torchrun": {"processes": machine.world_size()}}
    checkpoint = machine.run_on_main(lambda: open_folder(run, choices, overwrite, resume))
    try:
        with machine.cpu_threads(options.threads):
            _fit(run, checkpoint)
        machine.run_on_main(lambda: _finish(run))
    except BaseException:
        if machine.is_main():
            _leave(run)
        raise
    machine.wait_for_all()
    return load_trained(output)


@dataclass(frozen=True)
class _Run:
    """The data set, the options from `resolve_options`, the output and the log function of a training."""

    dataset: Dataset
    options: TrainingOptions
    output: Path
    say: Say

    @property
    def folder(self) -> Path:
        return files.unfinished_path(self.output)

    @property
    def model(self) -> Path:
        return self.folder / MODEL


def run_choices(options: TrainingOptions, data_options: DataOptions, digests: Mapping[str, str]) -> dict:
    """Returns all on which the weights depend except the number of processes, as a JSON file would store it.

    The time limit only decides when training ends. `digests` are those of the splits' files.
    """
    training = asdict(options)
    del training["minutes"]
    return json.loads(json.dumps({"training": training, "data": asdict(data_options), "files": {**digests}}))


def check_choices(folder: Path, before: dict, now: dict) -> None:
    """Raises InputError, which names `folder` and the first difference, unless both choices are equal."""
    for part in before | now:
        was, given = before.get(part, {}), now.get(part, {})
        for name in was | given:  # the model is first, from which others follow
            if was.get(name) != given.get(name):
                expected, same = was.get(name), "the same value"
                if part in ("training", "data") and name != "seed" and expected is not None:
                    value = expected if isinstance(expected, str) else json.dumps(expected, ensure_ascii=False)
                    same = f"--set {shlex.quote(f'{name}={value}')}"
                raise InputError(
                    f"{folder}: {part} {name}: expected {expected!r}, as when the run started, got"
                    f" {given.get(name)!r}. Use {same}, or start over with --overwrite."
                )


def open_folder(run: _Run, choices: dict, overwrite: bool, resume: bool) -> Path | None:
    """Creates OUTPUT.unfinished, or opens that of a killed run, which was allowed to replace the output.

    Returns the newest whole checkpoint; None to start at the first step.
    """
    folder, choices_path = run.folder, run.folder / CHOICES_NAME
    exists = choices_path.is_file()
    # A run that is killed before it writes choices.json leaves at most a temporary folder.
    others = [path for path in folder.glob("*") if not path.name.startswith(f".{CHOICES_NAME}.")]
    if not exists and (others or folder.is_file()):
        raise InputError(
            f"{folder}: expected no folder or an unfinished run, got another folder. Move that folder away."
        )
    if exists and resume:
        check_choices(folder, read_json_as(dict[str, dict[str, object]], choices_path), choices)
        return _newest_checkpoint(run)
    check_output(run.output, overwrite)
    if exists and not overwrite:
        raise InputError(f"{folder}: is an unfinished run. Continue it with --resume, or start over with --overwrite.")
    if resume:
        run.say("there is no unfinished run; starting a new one")
    files.remove_folder(folder)
    folder.mkdir(parents=True)
    with files.atomic_write(choices_path) as handle:
        handle.write(json.dumps(choices, indent=1) + "\n")
    return None


def _newest_checkpoint(run: _Run) -> Path | None:
    from qacg_models.sentiment.training.trainer import WRITING, checkpoints, damage_of

    # A killed run may have left these; the old model is only needed if nothing has replaced it.
    for name in (WRITING, MODEL, *([files.OLD] if run.output.exists() else [])):
        shutil.rmtree(run.folder / name, ignore_errors=True)
    for checkpoint in reversed(checkpoints(run.folder)):
        if (damage := damage_of(checkpoint)) is None:
            run.say(f"resuming from {checkpoint.name}")
            return checkpoint
        run.say(f"{checkpoint} cannot be used: {damage}")
    run.say("the unfinished run has no checkpoint; starting over")
    return None


def _leave(run: _Run) -> None:
    """Deletes the folder after a failure, unless it has a checkpoint, whose name is logged, or the old model."""
    from qacg_models.sentiment.training.trainer import checkpoints

    if found := checkpoints(run.folder):
        run.say(f"{run.folder} still has {found[-1].name}; --resume continues from it")
    elif not (run.folder / files.OLD).exists():
        shutil.rmtree(run.folder, ignore_errors=True)


def _fit(run: _Run, checkpoint: Path | None) -> None:
    """Trains, and writes the best weights as a model to the run folder, with a record that lacks the metrics."""
    from transformers import set_seed

    from qacg_models.sentiment.training.trainer import AspectTrainer, EvaluationMetrics

    options, dataset, say, split = run.options, run.dataset, run.say, run.options.selection_split
    set_seed(options.seed)
    made_with = machine.origin()  # at the start, because the checkout can change while training runs
    tokenizer = begin_tokenizer(dataset, options)
    model = begin_model(dataset, options, tokenizer, say)
    splits = encode_splits(dataset, split, options, tokenizer, model.config, say)
    weights = sum(parameter.numel() for parameter in model.parameters())
    say(
        f"model: {options.entry.title}, {counted(model.config.num_hidden_layers, 'layer')},"
        f" hidden {model.config.hidden_size}, {weights:,} weights, {options.attention} attention"
    )
    say(plan(options, len(splits.train), split))
    threads = options.threads or made_with["machine"]["threads"]
    sizes = f"{counted(options.batch_size, 'row')} per batch, {counted(threads, 'CPU thread')}"
    say(f"{sizes} (--batch-size, --threads)")
    if split == "test":
        say("protocol released: the checkpoint is selected on test, so the metrics on test are optimistic")
    metrics = EvaluationMetrics(dataset.task, splits.evaluated_rows, split, say)
    trainer = AspectTrainer(options, model, tokenizer, splits, metrics, run.folder, checkpoint)
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except RuntimeError as error:
        if not machine.is_out_of_memory(error):
            raise
        raise InputError(
            f"batch_size: {counted(options.batch_size, 'row')} in each process do not fit into memory. Use a smaller"
            " --batch-size, with --set gradient_accumulation=N for the same rows per step, or a smaller --max-length or"
            " model."
        ) from error
    finally:
        trainer.bar.close()
    machine.run_on_main(lambda: _write_model(run, trainer, tokenizer, made_with))


def plan(options: TrainingOptions, rows: int, split: str) -> str:
    """Returns a log line with the limits that end training on `rows` rows, and how often `split` is evaluated."""
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


def _write_model(
    run: _Run, trainer: AspectTrainer, tokenizer: PreTrainedTokenizerFast, made_with: dict[str, object]
) -> None:
    """Writes the best weights, the tokenizer and a record without metrics to the run folder."""
    from qacg_kernels.backends import dispatch
    from qacg_models.sentiment.training.trainer import evaluations

    seconds, dataset, task = trainer.seconds(), run.dataset, run.dataset.task
    split = run.options.selection_split
    if not trainer.best:
        raise InputError(
            f"{split}: expected rows on which {task.selection} is defined, to select a checkpoint, got no such"
            f" rows. Add rows with other labels to {split}."
        )
    trainer.model.load_state_dict(trainer.best)
    state, digests = trainer.state, file_digests(dataset)
    record = TrainingRecord(
        task=task,
        targets=dataset.targets,
        max_length=run.options.max_length,
        options=run.options,
        data_options=dataset.options,
        selected=Selection(split, task.selection, state.best_global_step, state.best_metric),
        label_shares=tuple(label_shares(dataset.splits["train"], task)),
        overlap=tuple((a, b, count) for (a, b), count in dataset.overlap.items()),
        data={name: SplitFile(len(rows), digests[name]) for name, rows in dataset.splits.items()},
        warnings=dataset.warnings,
        steps=state.global_step,
        evaluations=len({entry["step"] for entry in evaluations(state)}),
        seconds=seconds,
        ended=trainer.ending.reason(state),
        # JSON has no number for the loss of a training that diverged after its best evaluation.
        loss=tuple((e["step"], e["loss"]) for e in state.log_history if math.isfinite(e.get("loss", math.nan))),
        **made_with | {"machine": made_with["machine"] | {"attention": dispatch.chosen_so_far()}},
        written=machine.now(),
        **{name: {} for name in ("metrics", "tfidf", "majority", "confusion")},
    )
    with files.explain_write_errors(run.folder):
        write_weights(trainer.model, tokenizer, run.model)
        write_record(run.model / RECORD_NAME, record)


def _finish(run: _Run) -> None:
    """Adds temperatures, metrics and the model card to the model in the run folder, and renames it to the output."""
    trained = load_trained(run.model, device=machine.local_device())
    # Metrics are those of the files on the disk, not of the model in memory.
    logits = {split: trained.logits(rows) for split, rows in run.dataset.splits.items() if split != "train"}
    rows = [(row.label, row.sentence) for row in run.dataset.splits.get(SPLIT, ())]  # reads a large table once
    gold, sentences = [label for label, _ in rows], [sentence for _, sentence in rows]
    calibration = calibrate(run.options.protocol, gold, logits.get(SPLIT), sentences)
    run.say(calibration.describe())
    trained = replace(trained, calibration=calibration)
    measured = _metrics(trained, run.dataset, logits, run.say)
    if SPLIT in logits and trained.model.device.type == "cpu" and has_fast_bfloat16():
        measured["bfloat16_agreement"] = _bfloat16_agreement(trained, run, logits[SPLIT])
    trained = replace(trained, record=replace(trained.record, **measured))
    if note := bfloat16_note(trained.record):
        run.say(note)
    with files.explain_write_errors(run.folder):
        write_descriptions(trained, run.model, run.dataset.sources)
    files.replace_folder(run.model, run.output)
    files.remove_folder(run.folder)


def _bfloat16_agreement(trained: TrainedModel, run: _Run, logits: np.ndarray) -> float:
    """Returns the share of the rows of dev with the same label in bfloat16 as by `logits`, those of float32."""
    other = load_trained(run.model, precision="bfloat16").logits(run.dataset.splits[SPLIT])
    labels = [probabilities_of(x, trained.calibration.temperatures).argmax(1) for x in (logits, other)]
    return float((labels[0] == labels[1]).mean())


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
