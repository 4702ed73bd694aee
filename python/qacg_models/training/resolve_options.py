"""The choices of a training with everything settled that the options, the data and the number of processes settle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from qacg_models.checkpoints.packaged import located
from qacg_models.data import Dataset
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import check_attention
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.runs.options import SCRATCH, TrainingOptions
from qacg_models.runs.recipes import (
    COUNTED_ROWS,
    LEAST_TO_SELECT,
    evaluation_steps,
    pretrained_epochs,
    pretrained_rate,
)
from qacg_models.training.arguments import step_limit, steps_per_epoch
from qacg_models.training.start import choose_start
from qacg_models.utils.plain_text import read_text


def resolve_options(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """The same with nothing left open, but for what a checkpoint settles; what a record stores.

    Raises:
        InputError: an attention that the model does not have, data without a training split, or nothing that would
            end training.
    """
    if "train" not in dataset.splits:
        raise InputError(f"training needs the split 'train'; this data has {', '.join(dataset.splits)}")
    options = choose_start(options, dataset)[0]
    if not dataset.task.has_absent:
        if options.join_texts:
            raise InputError(
                f"join_texts: got {options.join_texts}, but no label ({', '.join(dataset.task.labels)}) means that"
                " there is no opinion; wanted 0"
            )
        options = replace(options, join_texts=0.0)
    options = _adjusted(_counted(options, dataset), dataset).resolved()
    if step_limit(len(dataset.splits["train"]), options) is None and not (options.minutes or options.patience):
        raise InputError(
            "patience and minutes: got 0 for both, so training would not end; wanted one of them, or epochs"
        )
    if options.eval_every is None:
        steps = steps_per_epoch(len(dataset.splits["train"]), options)
        options = replace(options, eval_every=evaluation_steps(steps))
    if options.learning_rate is None:
        options = replace(options, learning_rate=pretrained_rate(_width(located(options.from_checkpoint))))
    if options.bf16 is None:
        options = replace(options, bf16=options.from_checkpoint is not None and _multiplies_in_bf16())
    return replace(options, attention=_attention(options))


def _counted(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """The number of epochs for a checkpoint, unless the data is large or an option gives training another end.

    The rate then falls to 0, and of few dev rows none chooses a checkpoint: one evaluation follows the last step.
    """
    rows = len(dataset.splits["train"])
    others = (options.epochs, options.max_steps, options.schedule, options.patience, options.eval_every)
    if options.from_checkpoint == SCRATCH or options.protocol == "released" or rows > COUNTED_ROWS:
        return options
    if any(value is not None for value in others):
        return options
    epochs = pretrained_epochs(steps_per_epoch(rows, options.resolved()))
    options = replace(options, epochs=epochs, minutes=60.0 if options.minutes is None else options.minutes)
    if len(dataset.splits.get("dev", ())) < LEAST_TO_SELECT:
        options = replace(options, eval_every=step_limit(rows, options.resolved()))
    return options


def _adjusted(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """Adjusted logits in place of balanced drawing, for a checkpoint that macro-F1 judges."""
    given = options.logit_adjustment is not None or options.balance is not None or options.protocol == "released"
    if given or options.from_checkpoint == SCRATCH or dataset.task.selection != "macro_f1":
        return options
    return replace(options, logit_adjustment=1.0, balance=0.0)


def _multiplies_in_bf16() -> bool:
    """Whether training runs on a CPU with instructions for bfloat16, where autocast takes half the time of float32."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return not torch.accelerator.is_available() and any(getattr(torch.cpu, name, bool)() for name in checks)


def _attention(options: TrainingOptions) -> str:
    """The implementation that `options` asks for."""
    kind = load_class(BACKBONES[options.model])
    fastest = "fused" if "fused" in kind.implementations else kind.implementations[0]
    chosen = fastest if options.attention == "auto" else options.attention
    check_attention(kind, chosen)
    return chosen


def _width(checkpoint: Path) -> int | None:
    """The hidden size that the configuration beside a checkpoint names; None where nothing does."""
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    for name in ("config.json", "bert_config.json"):
        try:
            width = json.loads(read_text(folder / name))["hidden_size"]
        except (OSError, ValueError, LookupError, TypeError):  # whoever loads the checkpoint says what is wrong with it
            continue
        return width if isinstance(width, int) and width > 0 else None
    return None
