"""What training begins from: a tokenizer, and a model with random weights or those of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from qacg_models.checkpoints.packaged import located
from qacg_models.data import Dataset
from qacg_models.data.example_table import distinct
from qacg_models.data.tokenization import load_tokenizer, train_tokenizer
from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.runs.options import TrainingOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.configs.encoder import EncoderConfig
    from qacg_models.models.pretrained import EncoderPreTrainedModel

# What a vocabulary is learned from, at most: more sentences change the pieces of the rarest words only.
ENOUGH_SENTENCES = 500_000


def begin_tokenizer(dataset: Dataset, options: TrainingOptions) -> PreTrainedTokenizerFast:
    """The tokenizer that is given, the one beside the checkpoint, or one learned from the training split.

    Raises:
        InputError: it cannot be loaded.
    """
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer, lowercase=not options.cased)
    if options.from_checkpoint is not None:
        path = located(options.from_checkpoint)
        return load_tokenizer(path if path.is_dir() else path.parent)
    names = () if options.context_standalone else dataset.contexts
    sentences = [sentence for (sentence,) in distinct(dataset.splits["train"], "sentence")]
    if len(sentences) > ENOUGH_SENTENCES:  # evenly from the first to the last
        sentences = [sentences[number * len(sentences) // ENOUGH_SENTENCES] for number in range(ENOUGH_SENTENCES)]
    return train_tokenizer([*sentences, *names], options.vocab_size)


def begin_model(
    dataset: Dataset,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    say: Callable[[str], None],
) -> EncoderPreTrainedModel:
    """The model before its first step.

    Args:
        options: of `settle`.
        say: receives what became of the checkpoint's tensors.

    Raises:
        InputError: the checkpoint cannot be used, or has too few positions or words.
    """
    kind, fields = load_class(BACKBONES[options.model]), _fields(dataset, options)
    if options.from_checkpoint is None:
        config = kind.config_class(
            vocab_size=len(tokenizer),
            hidden_size=options.hidden_size,
            num_hidden_layers=options.layers,
            num_attention_heads=options.heads,
            intermediate_size=options.intermediate_size,
            max_position_embeddings=options.max_length,
            initializer_range=options.initializer_range,
            pad_token_id=tokenizer.pad_token_id,
            **fields,
        )
        _check_memory(config, options)
        return kind._from_config(config, attn_implementation=options.attention)
    from qacg_models.checkpoints.permissions import Permissions
    from qacg_models.checkpoints.source import open_source

    model, loading = kind.from_source(
        open_source(located(options.from_checkpoint)),
        overrides=fields,
        permissions=Permissions(ignore_mismatched_sizes=True),
        attn_implementation=options.attention,
    )
    say(str(loading["report"]))
    config = model.config
    if options.max_length > config.max_position_embeddings:
        raise InputError(
            f"max_length: got {options.max_length}, wanted at most {config.max_position_embeddings}, the positions of"
            f" {options.from_checkpoint}"
        )
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"tokenizer: has {len(tokenizer)} pieces, wanted at most {config.vocab_size}, the words of"
            f" {options.from_checkpoint}"
        )
    return model


def _check_memory(config: EncoderConfig, options: TrainingOptions) -> None:
    """InputError if the machine cannot hold the model: else the system would end the process without a word."""
    import torch

    # In float32: weights, and on the CPU their gradients and AdamW's two moments, if one process has them all.
    alone = not (options.fsdp or torch.cuda.is_available())
    needed, there = config.least_weights * (16 if alone else 4), _memory()
    if there is not None and needed > there:
        raise InputError(
            f"hidden_size, layers, intermediate_size, vocab_size, max_length: a model of these sizes needs at least "
            f"{needed / 1e9:,.3g} GB, and this machine has {there / 1e9:,.3g} GB of memory; wanted smaller ones"
        )


def _memory() -> int | None:
    """Bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _fields(dataset: Dataset, options: TrainingOptions) -> dict[str, object]:
    """Configuration fields that the data and the options settle, whatever the weights."""
    labels = dataset.task.labels
    fields: dict[str, object] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
        "pooler": options.pooler,
    }
    if options.dropout is not None:
        fields |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), options.dropout)
    entry = BACKBONES[options.model]
    if entry.contexts:
        fields |= {"contexts": list(dataset.contexts), "context_standalone": options.context_standalone}
    if entry.context_projection:
        fields |= {"context_projection": options.context_projection}
    return fields | options.quasi_attention
