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
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.recipes import evaluation_steps, pretrained_rate
from qacg_models.training.arguments import step_limit, steps_per_epoch
from qacg_models.utils.plain_text import read_text


def settle(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """The same with nothing left open, but for what a checkpoint settles; what a record stores.

    Raises:
        InputError: an attention that the model does not have, data without a training split, or nothing that would
            end training.
    """
    if not dataset.task.has_absent:
        if options.join_texts:
            raise InputError(
                f"join_texts: got {options.join_texts}, but no label ({', '.join(dataset.task.labels)}) means that"
                " there is no opinion; wanted 0"
            )
        options = replace(options, join_texts=0.0)
    options = options.resolved()
    if "train" not in dataset.splits:
        raise InputError(f"training needs the split 'train'; this data has {', '.join(dataset.splits)}")
    if step_limit(len(dataset.splits["train"]), options) is None and not (options.minutes or options.patience):
        raise InputError(
            "patience and minutes: got 0 for both, so training would not end; wanted one of them, or epochs"
        )
    if options.eval_every is None:
        steps = steps_per_epoch(len(dataset.splits["train"]), options)
        options = replace(options, eval_every=evaluation_steps(steps))
    if options.learning_rate is None:
        options = replace(options, learning_rate=pretrained_rate(_width(located(options.from_checkpoint))))
    return replace(options, attention=_attention(options))


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
