"""The configuration for a checkpoint, and its comparison with the tensors.

The configuration classes define and check the fields.
"""

import json
from collections.abc import Mapping

from transformers import CONFIG_MAPPING, PreTrainedConfig

from qacg_models.checkpoints.permissions import asking_for
from qacg_models.checkpoints.source import Source
from qacg_models.checkpoints.tensor_names import layer_number, part_of, role_of
from qacg_models.errors import CheckpointError

# Fields that are the size of a dimension of a tensor: name of the tensor in this package, and index of the dimension.
_SIZES = {
    "vocab_size": ("bert.embeddings.word_embeddings.weight", 0),
    "hidden_size": ("bert.embeddings.word_embeddings.weight", 1),
    "max_position_embeddings": ("bert.embeddings.position_embeddings.weight", 0),
    "type_vocab_size": ("bert.embeddings.token_type_embeddings.weight", 0),
    "intermediate_size": ("bert.encoder.layer.0.intermediate.dense.weight", 0),
    "num_contexts": ("bert.context_embeddings.weight", 0),
    "num_labels": ("classifier.weight", 0),
}
# Fields that change the computation but no shape, so tensors cannot contradict them.
_COMPUTATION = ("num_attention_heads", "hidden_act", "layer_norm_eps")
_LABEL_NAMES = ("id2label", "label2id")
_FOREIGN = (None, "bert")  # values of model_type in configuration files of BERT by other programs


def configuration(
    config_class: type[PreTrainedConfig], source: Source, overrides: Mapping[str, object]
) -> tuple[PreTrainedConfig, list[str]]:
    """Returns the configuration for loading a checkpoint into a model of this package.

    The value of a field comes from the first of these sources that has it: `overrides`, the checkpoint's configuration
    file, the tensors (see `variant`), the default. If `overrides` has the number or the names of the labels, the number
    and the names in the file are ignored. This function does not compare the fields with the tensors: the caller calls
    `check_agreement`.

    Args:
        config_class: class of the configuration.
        source: the checkpoint.
        overrides: fields that replace the fields of the checkpoint.

    Returns:
        The configuration, and notes about inferred and dropped fields.

    Raises:
        CheckpointError: there is no configuration file; the file is for another architecture; the file has no model
            type, and neither the file nor `overrides` has num_attention_heads; or a field is unknown or invalid.
    """
    if source.fields is None:
        raise CheckpointError(
            f"{source.path}: expected config.json or bert_config.json beside it, got none. Pass the path of a "
            "configuration file as config: the tensors do not determine the number of attention heads."
        )
    kind = source.fields.get("model_type")
    notes: list[str] = []
    stored = dict(source.fields)
    known = config_class()
    if kind not in (config_class.model_type, *_FOREIGN):
        stored = _of_another_model(source, config_class, known, notes)
    if kind is None and "num_attention_heads" not in {**stored, **overrides}:
        raise CheckpointError(
            f"{source.fields_path}: expected num_attention_heads, got none. Set num_attention_heads=N."
        )
    inferred = {
        field: value
        for field, value in variant(source).items()
        if hasattr(known, field) and field not in stored and field not in overrides
    }
    if "num_labels" in inferred and any(field in {**stored, **overrides} for field in _LABEL_NAMES):
        del inferred["num_labels"]
    if kind != config_class.model_type:
        notes += [f"{field} = {json.dumps(value)}, inferred from the tensors" for field, value in inferred.items()]
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
    """Returns the fields that `config_class` shares with `source`, a checkpoint of another model type.

    A note about dropped fields is appended to `notes`. `known` is an instance of `config_class`.

    Raises:
        CheckpointError: the model type is not one of this package, or a model of that type uses context tensors
            differently.
    """
    kind = source.fields["model_type"]
    where, model_type = source.fields_path, config_class.model_type
    if kind not in CONFIG_MAPPING or not hasattr(CONFIG_MAPPING[kind], "reads"):  # see EncoderConfig.reads
        raise CheckpointError(f"{where}: model_type: expected 'bert' or an encoder of this package, got {kind!r}")
    if any(part_of(name) == "context" for name in source.tensors) and "contexts" in known.to_dict():
        raise CheckpointError(
            f"{where}: model_type: expected {model_type!r}, got {kind!r}, which uses context tensors differently. "
            "Use the model class of the checkpoint."
        )
    left_out = [field for field in source.fields if not hasattr(known, field)]
    if left_out:
        notes.append(
            f"dropped {', '.join(sorted(left_out))} of the {kind} configuration: {model_type} has no such fields"
        )
    return {field: value for field, value in source.fields.items() if field not in (*left_out, "architectures")}


def variant(source: Source) -> dict[str, object]:
    """Returns the configuration fields that the tensors determine.

    The fields are num_labels, contexts (their number), context_projection, lambda_bias, lambda_per_head and pooler.
    Fields whose tensors are missing are left out. A checkpoint with a pooler gate has pooler "attention" if its
    attention layers are called Wq, Wk and Wv. If they are called query, key and value, the released code stores the
    gate but does not use it, so pooler is "cls".
    """
    tensors = source.tensors
    fields: dict[str, object] = {}
    if (classifier := tensors.get("classifier.weight")) is not None and classifier.dim() == 2:
        fields["num_labels"] = classifier.shape[0]
    if (contexts := tensors.get("bert.context_embeddings.weight")) is not None:
        fields["contexts"] = contexts.shape[0]
    hidden_size = size_in_tensors(source, "hidden_size")
    for name, tensor in tensors.items():
        role = role_of(name)
        if role == "context_query" and name.endswith(".weight"):
            fields["context_projection"] = "hidden" if tensor.shape[0] == hidden_size else "head"
        elif role == "gate_query" and name.endswith(".weight"):
            fields["lambda_bias"] = name.removesuffix("weight") + "bias" in tensors
            fields["lambda_per_head"] = tensor.shape[0] > 1
    if any(part_of(name) == "pooler gate" for name in tensors):
        fields["pooler"] = "attention" if source.layout.attention == "compact" else "cls"
    return fields


def size_in_tensors(source: Source, field: str) -> int | None:
    """Returns the value of a size field according to the tensors; None if its tensor is missing or not 2-D.

    `field` is "num_hidden_layers" or a key of _SIZES.
    """
    if field == "num_hidden_layers":
        numbers = {number for name in source.tensors if (number := layer_number(name)) is not None}
        return max(numbers) + 1 if numbers else None
    name, dimension = _SIZES[field]
    tensor = source.tensors.get(name)
    return tensor.shape[dimension] if tensor is not None and tensor.dim() == 2 else None


def check_agreement(config: PreTrainedConfig, source: Source, may_differ: frozenset[str]) -> None:
    """Raises CheckpointError for the first size that differs from the tensors; sizes in `may_differ` are skipped.

    The fields in _COMPUTATION, which change no shape, are compared with the checkpoint's configuration file, if any.

    Args:
        config: configuration of the model.
        source: the checkpoint.
        may_differ: names of fields whose sizes may differ from the tensors.
    """
    for field in (*_SIZES, "num_hidden_layers"):
        size, found = getattr(config, field, None), size_in_tensors(source, field)
        if None in (size, found) or size == found or field in may_differ:
            continue
        where = "encoder.layer" if field == "num_hidden_layers" else source.called(_SIZES[field][0])
        raise CheckpointError(
            f"{source.path}: {field}: expected {found} as in {where}, got {size}. {_advice(field, found)}"
        )
    for field in _COMPUTATION:
        stored = (source.fields or {}).get(field)
        if stored is not None and hasattr(config, field) and getattr(config, field) != stored:
            raise CheckpointError(
                f"{source.fields_path}: {field}: expected {stored!r}, with which the model was trained, "
                f"got {getattr(config, field)!r}. Do not set this field."
            )


def _advice(field: str, size: int) -> str:
    return {
        "vocab_size": f"Set it to {size}, or set {asking_for('resize_vocabulary')}.",
        "max_position_embeddings": f"Set it to {size}, or a smaller value with {asking_for('truncate_positions')}.",
        "num_contexts": f"Set contexts to {size} names, or fewer with {asking_for('truncate_contexts')}.",
        "num_labels": f"Set num_labels or id2label to {size} labels, or start a new classifier with "
        f"{asking_for('ignore_mismatched_sizes')}.",
    }.get(field, f"Set it to {size}.")
