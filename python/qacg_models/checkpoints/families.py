"""Encoders of transformers that are read as a BERT: the names of their tensors, and the fields of their configuration.

| model_type | what differs from BERT | how it is read |
|---|---|---|
| roberta, xlm-roberta, camembert | positions start at pad_token_id + 1 | the rows before it are dropped |
| electra | embeddings may have a width of their own | `EncoderConfig.embedding_size` |
| modernbert | norms, gates, rotary positions, local attention, no biases | `EncoderConfig.modernbert`; biases are 0 |

MPNet is not read: it adds a learned position bias to every score, which the attention of this package does not have.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import Tensor
from transformers import CONFIG_MAPPING

from qacg_models.errors import CheckpointError
from qacg_models.utils.fields import check_integer

# Fields of BERT with the same name in transformers' configurations.
BERT_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
    *("initializer_range", "layer_norm_eps", "pad_token_id", "classifier_dropout"),
)
# Fields that are passed on if the file has them: labels, and those of which only one value is supported.
_PASSED = ("id2label", "label2id", "num_labels", "problem_type", "is_decoder", "position_embedding_type")
_OTHERS = re.compile("(?:xlm)?(?:roberta|camembert|electra|modernbert)", re.IGNORECASE)
_WORDS, _TYPES, _POSITIONS = (f"embeddings.{name}_embeddings.weight" for name in ("word", "token_type", "position"))


def check_model_type(path: Path, kind: object) -> None:
    """Raises CheckpointError unless `kind`, the model_type in a configuration file, is None or that of an encoder."""
    own = isinstance(kind, str) and kind in CONFIG_MAPPING and hasattr(CONFIG_MAPPING[kind], "reads")
    if not own and kind not in (None, "bert", *FAMILIES):
        known = ", ".join(("bert", *FAMILIES))
        raise CheckpointError(
            f"{path}: model_type: expected one of {known}, or an encoder of this package, got {kind!r}. Use a "
            "checkpoint of such an encoder."
        )


def check_names(path: Path, kind: object, names: Iterable[str]) -> None:
    """Raises CheckpointError if a name, of a class or tensor, is of another family than `kind`, BERT's or None.

    Read as a BERT, such a checkpoint would give other hidden states, and no error.
    """
    if kind in (None, "bert") and (other := next(filter(_OTHERS.match, names), None)):
        raise CheckpointError(
            f"{path}: model_type: expected that of the encoder with {other}, such as 'roberta', got {kind!r}. Add the "
            "model_type to the file."
        )


def as_bert(
    found: dict[str, Tensor], fields: dict[str, Any], path: Path
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, object]]:
    """Returns tensors by the names of BERT, the names in the file by these names, and the fields of BERT.

    `found` are the tensors and `fields` the configuration of a checkpoint of one of FAMILIES; `path` is the file of the
    configuration, for errors.
    """
    kind = fields["model_type"]
    renamings, adapt = FAMILIES[kind]
    if "classifier.dense.weight" in found:  # old files also have the pooler, which this classifier does not read
        renamings = (r"^roberta\.pooler\.", "unused_pooler."), *renamings
    try:
        config = CONFIG_MAPPING[kind].from_dict(dict(fields))  # it has the defaults, and reads old names of fields
        known = {name: getattr(config, name) for name in BERT_FIELDS if hasattr(config, name)}
        known |= {"model_type": "bert"} | {name: fields[name] for name in _PASSED if name in fields}
        tensors, names = {}, {}
        for name, tensor in found.items():
            parts = tensor.chunk(3) if ".Wqkv." in name else (tensor,)
            for role, part in zip(("query", "key", "value"), parts):
                ours = name.replace(".attn.Wqkv.", f".attention.self.{role}.")
                for pattern, replacement in renamings:
                    ours = re.sub(pattern, replacement.replace("LAST", f"{config.num_hidden_layers - 1}"), ours)
                tensors[ours], names[ours] = part, name
        adapt(tensors, known, config)
    except (AttributeError, TypeError, ValueError, StrictDataclassError) as error:
        raise CheckpointError(f"{path}: {error}") from None
    return tensors, names, known


def _roberta(tensors: dict[str, Tensor], known: dict[str, Any], config: Any) -> None:
    """Drops the rows of the position table that no token uses."""
    check_integer("pad_token_id", config.pad_token_id, 0)
    first = config.pad_token_id + 1
    known["max_position_embeddings"] -= first
    for name in tensors:
        if name.endswith(_POSITIONS):
            tensors[name] = tensors[name][first:]


def _electra(tensors: dict[str, Tensor], known: dict[str, Any], config: Any) -> None:
    """Sets the width of the embeddings if it is not that of the hidden states."""
    if config.embedding_size != config.hidden_size:
        known["embedding_size"] = config.embedding_size


def _modernbert(tensors: dict[str, Tensor], known: dict[str, Any], config: Any) -> None:
    """Adds the missing biases and the missing token type as zeros, which compute the same and may be trained."""
    rotary = [config.rope_parameters[kind] for kind in ("full_attention", "sliding_attention")]
    if scaled := [one["rope_type"] for one in rotary if one["rope_type"] != "default"]:
        raise ValueError(f"rope_parameters: expected rope_type 'default', got {scaled[0]!r}")
    known.pop("position_embedding_type", None)  # not read by the model; some files have "sans_pos"
    known |= {
        "hidden_act": config.hidden_activation,
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.embedding_dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "type_vocab_size": 1,
        "modernbert": {
            "rotary_theta": rotary[0]["rope_theta"],
            "local_rotary_theta": rotary[1]["rope_theta"],
            "local_attention": config.local_attention,
            "local_layers": [i for i, kind in enumerate(config.layer_types) if kind == "sliding_attention"],
        },
    }
    trained = {"norm": config.norm_bias, ".attention.": config.attention_bias, ".": config.mlp_bias}
    ours = re.compile(r"(.*(?:encoder\.layer\.|embeddings\.LayerNorm).*)weight")
    for name, weight in list(tensors.items()):
        if name.endswith(_WORDS):
            tensors[name.replace(_WORDS, _TYPES)] = weight.new_zeros(1, weight.shape[-1])
        elif (found := ours.fullmatch(name)) and not next(trained[part] for part in trained if part in name.lower()):
            tensors.setdefault(f"{found[1]}bias", weight.new_zeros(weight.shape[0]))


_ROBERTA = ((r"^classifier\.dense\.", "bert.pooler.dense."), (r"^classifier\.out_proj\.", "classifier.")), _roberta
_MODERNBERT = (
    (r"^classifier\.", "head.classifier."),  # it reads another head than BERT's pooler
    (r"(^|\.)final_norm\.", r"\1layers.LAST.output.LayerNorm."),
    (r"(^|\.)layers\.(\d+)\.", r"\1encoder.layer.\2."),
    (r"embeddings\.tok_embeddings\.", "embeddings.word_embeddings."),
    (r"embeddings\.norm\.", "embeddings.LayerNorm."),
    (r"\.attn_norm\.", ".attention_norm."),
    (r"\.attn\.Wo\.", ".attention.output.dense."),
    (r"\.mlp_norm\.", ".intermediate.norm."),
    (r"\.mlp\.Wi\.", ".intermediate.dense."),
    (r"\.mlp\.Wo\.", ".output.dense."),
)
# By model_type: regular expressions for parts of names, with replacements, in order; and what adapts the rest.
FAMILIES: dict[str, tuple[tuple[tuple[str, str], ...], Callable[..., None]]] = {
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "electra": (((r"embeddings_project\.", "embeddings.project."),), _electra),
    "modernbert": (_MODERNBERT, _modernbert),
}
