"""The tokenizer and the model at the start of a training, with random weights or those of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
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

    from qacg_models.checkpoints.files import Source
    from qacg_models.models.base import EncoderPreTrainedModel
    from qacg_models.models.config import EncoderConfig

# Maximum number of sentences from which a vocabulary is learned; more sentences change only tokens of the rarest words.
MAX_SENTENCES = 500_000


def begin_tokenizer(dataset: Dataset, options: TrainingOptions) -> PreTrainedTokenizerFast:
    """Returns the given tokenizer, otherwise that of the checkpoint, otherwise one trained on the split train.

    Args:
        dataset: the data set.
        options: options of training, from `resolve_options`.

    Raises:
        InputError: the tokenizer cannot be loaded, or `vocab_size` does not exceed the number of special tokens.
    """
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer, lowercase=not options.cased)
    if options.from_checkpoint is not None:
        path = located(options.from_checkpoint)
        return load_tokenizer(path if path.is_dir() else path.parent)
    names = () if options.context_standalone else dataset.contexts
    sentences = [sentence for (sentence,) in distinct(dataset.splits["train"], "sentence")]
    if len(sentences) > MAX_SENTENCES:  # keep evenly spaced sentences
        sentences = [sentences[number * len(sentences) // MAX_SENTENCES] for number in range(MAX_SENTENCES)]
    return train_tokenizer([*sentences, *names], options.vocab_size)


def begin_model(
    dataset: Dataset,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast,
    say: Callable[[str], None],
) -> EncoderPreTrainedModel:
    """Returns the model at the start of training, with random weights or those of a checkpoint.

    Args:
        dataset: data set whose labels and contexts the model gets.
        options: options of training, from `resolve_options`.
        tokenizer: tokenizer of the model.
        say: called with each log line about the checkpoint, such as its loading report.

    Raises:
        InputError: the checkpoint cannot be used, or has too few positions or too small a vocabulary; a model with
            random weights does not fit into memory; or `context_from_layer` or `frozen_layers` is too large.
    """
    entry = BACKBONES[options.model]
    kind, fields = load_class(entry), _fields(dataset, options)
    if options.from_checkpoint is None:
        if (options.context_from_layer or 0) >= options.layers:
            raise InputError(
                f"context_from_layer: expected 0 to {options.layers - 1}, for a model of {options.layers} layers, got"
                f" {options.context_from_layer}."
            )
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
    from qacg_models.checkpoints.files import open_source
    from qacg_models.checkpoints.fitting import Permissions
    from qacg_models.training.context_start import NAMES_FIELDS, has_contexts, start_from_names

    source = open_source(located(options.from_checkpoint))
    new_contexts = not has_contexts(source)
    from_names = options.context_start == "names" and new_contexts
    if options.context_start == "names" and not from_names:
        say("aspects: their initial vectors come from the checkpoint, not from the names of the aspects")
    model, loading = kind.from_source(
        _with_labels(source, dataset.task.labels, say),
        overrides=NAMES_FIELDS | fields if from_names and entry.quasi_attention else fields,
        permissions=Permissions(ignore_mismatched_sizes=True),
        attn_implementation=options.attention,
    )
    say(str(loading["report"]))
    config = model.config
    if options.max_length > config.max_position_embeddings:
        raise InputError(
            f"max_length: expected at most {config.max_position_embeddings}, the number of positions of"
            f" {options.from_checkpoint}, got {options.max_length}. Set a smaller --max-length."
        )
    if len(tokenizer) > config.vocab_size:
        raise InputError(
            f"tokenizer: expected at most {config.vocab_size} tokens, the vocabulary of {options.from_checkpoint}, got"
            f" {len(tokenizer)}. Use the tokenizer of the checkpoint."
        )
    if from_names:
        start_from_names(model, tokenizer)
        say("aspects: their initial vectors come from their names; for random vectors, set --context-start random")
    if options.frozen_layers:
        _freeze(model, options, new_contexts and entry.contexts and not entry.adds_context)
        say(f"frozen: the embeddings of tokens, and layers 1 to {options.frozen_layers}")
    return model


def _with_labels(source: Source, labels: Sequence[str], say: Callable[[str], None]) -> Source:
    """Returns a checkpoint whose classifier has its rows in the order of `labels`, by their names without case.

    A classifier with other labels is returned unchanged, and a note lists the pairs of old and new labels.
    """
    head = [name for name in ("classifier.weight", "classifier.bias") if name in source.tensors]
    if not head or any(source.tensors[name].shape[:1] != (len(labels),) for name in head):
        return source  # without a classifier, or with a new one
    named = (source.fields or {}).get("id2label")
    named = named if isinstance(named, dict) else {}
    stored = [str(named.get(str(index), f"LABEL_{index}")) for index in range(len(labels))]
    places = {name.casefold(): index for index, name in enumerate(stored)}
    order = [places.get(label.casefold()) for label in labels]
    if None in order or len({*order}) < len(order):
        pairs = ", ".join(f"{old} as {new}" for old, new in zip(stored, labels))
        say(f"classifier: the labels of the checkpoint differ, and are used by position: {pairs}")
        return source
    return replace(source, tensors=source.tensors | {name: source.tensors[name][order] for name in head})


def _freeze(model: EncoderPreTrainedModel, options: TrainingOptions, new_contexts: bool) -> None:
    """Excludes the embeddings of tokens (words, positions, types) and the first layers from training.

    With `new_contexts`, the layers from `context_from_layer` on have new weights for the aspect.

    Raises:
        InputError: `frozen_layers` exceeds the number of layers, or exceeds `context_from_layer` with `new_contexts`.
    """
    layers = model.base_model.encoder.layer
    most, counted, note = len(layers), f"the number of layers of {options.from_checkpoint}", ""
    if new_contexts:
        most, counted = options.context_from_layer or 0, "the number of layers below context_from_layer"
        note = " The other layers have new weights, which read the aspect."
    if options.frozen_layers > most:
        raise InputError(
            f"frozen_layers: expected at most {most}, {counted}, got {options.frozen_layers}.{note} Set a smaller"
            " --frozen-layers."
        )
    for part in (model.base_model.embeddings, *layers[: options.frozen_layers]):
        part.requires_grad_(False)


def _check_memory(config: EncoderConfig, options: TrainingOptions) -> None:
    """Raises InputError if the model cannot fit into memory, where the system would otherwise kill the process."""
    import torch

    # Bytes in float32: the weights and, on the CPU without sharding, gradients and AdamW's two moments.
    on_cpu = not (options.fsdp or torch.cuda.is_available())
    needed, memory = config.least_weights * (16 if on_cpu else 4), _memory()
    if memory is not None and needed > memory:
        raise InputError(
            f"hidden_size, layers, intermediate_size, vocab_size, max_length: expected a model that fits into"
            f" {memory / 1e9:,.3g} GB, the memory of this machine, got sizes that need at least {needed / 1e9:,.3g} GB."
            " Use smaller sizes."
        )


def _memory() -> int | None:
    """Returns the memory of this machine in bytes; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _fields(dataset: Dataset, options: TrainingOptions) -> dict[str, object]:
    """Returns the configuration fields that the data and the options define, for random weights and checkpoints."""
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
        fields["context_projection"] = options.context_projection
    if entry.context_from_layer:
        fields["context_from_layer"] = options.context_from_layer
    return fields | options.quasi_attention
