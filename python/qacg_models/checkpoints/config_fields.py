"""The configuration of the model that a checkpoint is loaded into, and whether the tensors agree with it.

Which fields there are, and which values they take, is the business of the configuration classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from transformers import PreTrainedConfig

from qacg_models.checkpoints.permissions import asking_for
from qacg_models.checkpoints.source import Source
from qacg_models.checkpoints.tensor_names import layer_number, part_of, role_of
from qacg_models.configs.encoders import ENCODER_CONFIGS
from qacg_models.errors import CheckpointError

# The tensors, under our names, whose sizes are fields: the dimension of each.
_SIZES = {
    "vocab_size": ("bert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("bert.embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("bert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("bert.embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("bert.encoder.layer.0.intermediate.dense.weight", 0),
    "num_contexts": ("bert.context_embeddings.weight", 0),
    "num_labels": ("classifier.weight", 0),
}
# Fields that change what the same tensors compute.
_MEANING = ("num_attention_heads", "hidden_act", "layer_norm_eps")
_LABEL_NAMES = ("id2label", "label2id")
_FOREIGN = (None, "bert")  # model types of configuration files that other programs write for a BERT


def configuration(
    config_class: type[PreTrainedConfig], source: Source, overrides: Mapping[str, object]
) -> tuple[PreTrainedConfig, list[str]]:
    """The configuration of a model of ours for a checkpoint.

    Its fields are, the first that is known: the overrides, the configuration file beside the weights, what
    the tensors tell of contexts, gates and labels, the default.

    Returns:
        The configuration, and notes on what was inferred or left out.

    Raises:
        CheckpointError: there is no configuration file, or one of another architecture, or a field is unknown,
            out of its limits or says something else than the tensors.
    """
    if source.fields is None:
        raise CheckpointError(
            f"{source.path}: has no configuration beside it (config.json or bert_config.json), and its tensors do "
            "not tell the number of heads; name one"
        )
    kind = source.fields.get("model_type")
    notes: list[str] = []
    stored = dict(source.fields)
    known = config_class()
    if kind not in (config_class.model_type, *_FOREIGN):
        stored = _of_another_model(source, config_class, known, notes)
    if kind is None and "num_attention_heads" not in {**stored, **overrides}:
        raise CheckpointError(f"{source.fields_path}: has no num_attention_heads, and no tensor tells it")
    inferred = {
        field: value
        for field, value in variant(source).items()
        if hasattr(known, field) and field not in stored and field not in overrides
    }
    if "num_labels" in inferred and any(field in {**stored, **overrides} for field in _LABEL_NAMES):
        del inferred["num_labels"]
    if kind != config_class.model_type:
        notes += [f"{field} = {json.dumps(value)}, told by the tensors" for field, value in inferred.items()]
    if {"num_labels", *_LABEL_NAMES} & overrides.keys():
        stored = {field: stored[field] for field in stored if field not in ("num_labels", *_LABEL_NAMES)}
    try:
        config = config_class.from_dict({**stored, **inferred, **overrides, "model_type": config_class.model_type})
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{source.fields_path}: {error}") from None
    return config, notes


def _of_another_model(
    source: Source, config_class: type[PreTrainedConfig], known: PreTrainedConfig, notes: list[str]
) -> dict[str, object]:
    """The fields that a configuration of another model of this package shares with `config_class`."""
    kind = source.fields["model_type"]
    where, wanted = source.fields_path, config_class.model_type
    if kind not in ENCODER_CONFIGS:
        raise CheckpointError(
            f"{where}: model_type: got {kind!r}, wanted 'bert' or one of {', '.join(map(repr, ENCODER_CONFIGS))}"
        )
    if any(part_of(name) == "context" for name in source.tensors) and "contexts" in known.to_dict():
        raise CheckpointError(
            f"{where}: model_type: got {kind!r}, whose context tensors {wanted!r} has too but reads in another way"
        )
    left_out = [field for field in source.fields if not hasattr(known, field)]
    if left_out:
        notes.append(f"of the {kind} configuration {', '.join(sorted(left_out))} left out: {wanted} has none")
    return {field: value for field, value in source.fields.items() if field not in (*left_out, "architectures")}


def variant(source: Source) -> dict[str, object]:
    """Fields that the tensors tell: number of contexts and labels, form of projections, gates and pooler.

    The published texts whose attention is called Wq, Wk, Wv pool with the attention gate; the released code
    has its weights and does not use them.
    """
    tensors = source.tensors
    told: dict[str, object] = {}
    if (classifier := tensors.get("classifier.weight")) is not None and classifier.dim() == 2:
        told["num_labels"] = classifier.shape[0]
    if (contexts := tensors.get("bert.context_embeddings.weight")) is not None:
        told["contexts"] = contexts.shape[0]
    hidden_size = size_told(source, "hidden_size")
    for name, tensor in tensors.items():
        role = role_of(name)
        if role == "context_query" and name.endswith(".weight"):
            told["context_projection"] = "hidden" if tensor.shape[0] == hidden_size else "head"
        elif role == "gate_query" and name.endswith(".weight"):
            told["lambda_bias"] = name.removesuffix("weight") + "bias" in tensors
            told["lambda_per_head"] = tensor.shape[0] > 1
    if any(part_of(name) == "pooler gate" for name in tensors):
        told["pooler"] = "attention" if source.layout.attention == "compact" else "cls"
    return told


def size_told(source: Source, field: str) -> int | None:
    """The value of a size as the tensors have it; None where they do not tell."""
    if field == "num_hidden_layers":
        numbers = {number for name in source.tensors if (number := layer_number(name)) is not None}
        return max(numbers) + 1 if numbers else None
    name, dimension = _SIZES[field]
    tensor = source.tensors.get(name)
    return tensor.shape[dimension] if tensor is not None and tensor.dim() == 2 else None


def check_agreement(config: PreTrainedConfig, source: Source, may_differ: frozenset[str]) -> None:
    """Raises CheckpointError for the first size that the tensors have otherwise, but for those in `may_differ`.

    Fields that no shape shows are compared with the configuration file beside the weights.
    """
    for field in (*_SIZES, "num_hidden_layers"):
        wanted, told = getattr(config, field, None), size_told(source, field)
        if None in (wanted, told) or wanted == told or field in may_differ:
            continue
        where = "encoder.layer" if field == "num_hidden_layers" else source.called(_SIZES[field][0])
        raise CheckpointError(f"{source.path}: {field} is {wanted}, but {where} has {told}{_advice(field, told)}")
    for field in _MEANING:
        stored = (source.fields or {}).get(field)
        if stored is not None and hasattr(config, field) and getattr(config, field) != stored:
            raise CheckpointError(
                f"{source.fields_path}: {field} is {stored!r}, and with {getattr(config, field)!r} the same tensors "
                "would compute something else"
            )


def _advice(field: str, told: int) -> str:
    return {
        "vocab_size": f"; set it to {told}, or ask for {asking_for('resize_vocabulary')}",
        "max_position_embeddings": f"; set it to {told}, or a smaller one with {asking_for('truncate_positions')}",
        "num_contexts": f"; name {told} contexts, or fewer with {asking_for('truncate_contexts')}",
        "num_labels": f"; name {told} labels, or start a new classifier with {asking_for('ignore_mismatched_sizes')}",
    }.get(field, f"; set it to {told}")
