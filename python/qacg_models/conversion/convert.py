"""Conversion of a checkpoint to a folder for this package, or for other programs.

| format | weights | configuration | read by |
|---|---|---|---|
| own | model.safetensors | config.json | `from_pretrained` of this package |
| huggingface | model.safetensors | config.json | BERT of transformers |
| released | checkpoint.bin | bert_config.json | the released QACG-BERT and CG-BERT, as their full state dict |
| released | checkpoint.pt | config.json, for conversion back | the published BertSum |
| tensorflow-names | model.safetensors | bert_config.json | programs that use TensorFlow's variable names |
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig, PreTrainedConfig

from qacg_models.checkpoints.files import some, weights_file
from qacg_models.checkpoints.fitting import CONTEXTS
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.loading import CheckpointLoading, prepare
from qacg_models.checkpoints.permissions import NOTHING, Permissions, asking_for
from qacg_models.checkpoints.source import CONFIG_NAMES, Source, open_source
from qacg_models.checkpoints.tensor_names import HUGGING_FACE, RELEASED, TENSORFLOW, Layout, part_of
from qacg_models.conversion.convert_head import write_head
from qacg_models.conversion.model_choice import choose_head, choose_model
from qacg_models.errors import CheckpointError
from qacg_models.modules.bert_layers import GATE_WIDTH
from qacg_models.utils.atomic_files import atomic_folder, explain_write_errors, follow_umask
from qacg_models.utils.outputs import check_writable

OWN = "own"
LAYOUTS = {"huggingface": HUGGING_FACE, "released": RELEASED, "tensorflow-names": TENSORFLOW}
FORMATS = (OWN, *LAYOUTS)
RELEASED_CONTEXTS = 8  # number of contexts in the context table of the released code, for all data sets

# Values that are constants in the released code: its configuration does not have these fields.
_RELEASED_FIELDS = {
    "qacg_bert": {"context_projection": "hidden", "lambda_bias": True, "lambda_per_head": False},
    "cg_bert": {"context_projection": "head", "lambda_bias": False, "lambda_per_head": False},
}
_RELEASED_VALUES = {
    "context_from_layer": 0,
    "pooler": "cls",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "quasi_scale": 1.0,
    "quasi_bias": 0.0,
    "beta": 1.0,
    "gamma": 1.0,
    "gate_activation": "sigmoid",
}
_BERT_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
    *("initializer_range", "layer_norm_eps"),
)
# Written only if they differ from the default, since a model without the field raises an error for it.
_OPTIONAL_FIELDS = ("layer_norm_initializer", "outside_positions", "answer_pooler")
_TOKENIZER_FILES = (
    *("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)


def convert(
    src: Path | str,
    dst: Path | str,
    *,
    to: str = OWN,
    model: str | None = None,
    config: Path | str | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    permissions: Permissions = NOTHING,
    drop_unplaced: bool = False,
    overwrite: bool = False,
    seed: int = 0,
) -> Report:
    """Converts a checkpoint to a model folder.

    The folder is written under a temporary name beside `dst`, and renamed when complete. Tokenizer files beside the
    weights are copied unless the vocabulary is resized.

    Args:
        src: path of a folder, a file of weights, or the index of shards.
        dst: path of the new folder; its parent folder is created.
        to: one of FORMATS.
        model: name of a class of this package; None: the class is inferred from the configuration or the tensors.
        config: the configuration file or its folder; None: the file beside the weights.
        overrides: fields that replace those of the checkpoint.
        permissions: what the user permits for tensors that are missing or have another size.
        drop_unplaced: True: drop tensors that the format "huggingface" cannot store, such as contexts. False: such
            tensors raise CheckpointError.
        overwrite: replace a model folder at `dst`.
        seed: seed of the random values of new word embeddings (`resize_vocabulary`) and, in the format "own", of
            tensors that the source lacks.

    Returns:
        The report about every tensor.

    Raises:
        CheckpointError: `to` or `model` is unknown, the source cannot be converted, or `dst` has files and must not be
            replaced: `overwrite` is False, or `dst` is no model folder or contains `src`.
        InputError: `dst` cannot be written.
        OSError: a file of the source cannot be read.
    """
    dst = Path(dst)
    if to not in FORMATS:
        raise CheckpointError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    src = Path(src)
    if not src.exists():
        raise CheckpointError(f"{src}: no such file or folder")
    _check_destination(src, dst, overwrite)
    check_writable("dst", dst)
    weights = weights_file(src) if src.is_dir() else src
    head = choose_head(weights, model, config)
    if head is None:
        source = open_source(weights, config=config)
        chosen = choose_model(source, model, plain=to != OWN)
    dst.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(dst) as folder, explain_write_errors(folder), torch.random.fork_rng():
        torch.manual_seed(seed)
        if head is not None:
            report = write_head(
                folder,
                weights,
                head,
                to=to,
                config=config,
                overrides=overrides,
                permissions=permissions,
                seed=seed,
            )
        elif to == OWN:
            report = _write_own(folder, source, chosen, overrides, permissions, seed)
        else:
            report = _write_foreign(folder, source, chosen, to, overrides, permissions, drop_unplaced)
        beside = weights.parent
        copied = [name for name in _TOKENIZER_FILES if (beside / name).is_file()]
        if copied and not permissions.resize_vocabulary:
            for name in copied:
                shutil.copyfile(beside / name, folder / name)
            report.notes.append(f"copied: {', '.join(copied)}")
    return report


def _check_destination(src: Path, dst: Path, overwrite: bool) -> None:
    if not dst.exists() or (dst.is_dir() and not any(dst.iterdir())):
        return
    if dst.resolve() in (src.resolve(), *src.resolve().parents):
        raise CheckpointError(f"dst: expected a folder that does not contain {src}, got {dst}. Choose another folder.")
    if not overwrite:
        raise CheckpointError(
            f"dst: expected a new folder, got {dst}, which exists. Choose another folder, or use --overwrite."
        )
    if not any((dst / name).is_file() for name in CONFIG_NAMES):
        raise CheckpointError(f"dst: expected a model folder to overwrite, got {dst}. Choose another folder.")


def _write_own(
    folder: Path,
    source: Source,
    model_class: type[CheckpointLoading],
    overrides: Mapping[str, object],
    permissions: Permissions,
    seed: int,
) -> Report:
    model, info = model_class.from_source(source, overrides=overrides, permissions=permissions)
    model.save_pretrained(folder)
    report = info["report"]
    if report.missing:
        report.notes.append(f"missing tensors have initial values (seed {seed})")
    return report


def _write_foreign(
    folder: Path,
    source: Source,
    model_class: type[CheckpointLoading],
    to: str,
    overrides: Mapping[str, object],
    permissions: Permissions,
    drop_unplaced: bool,
) -> Report:
    if to == "released":
        if model_class.config_class.model_type == "aspect_bert":
            raise CheckpointError(
                "to: expected another format, since the released code has no Aspect-BERT, got 'released'"
            )
        overrides = {**overrides, **_RELEASED_FIELDS.get(model_class.config_class.model_type, {})}
    prepared = prepare(model_class, source, overrides=overrides, permissions=permissions)
    config, tensors, report = prepared.config, dict(prepared.tensors), prepared.report
    if to == "huggingface":
        _drop_unplaced(tensors, config, report, drop_unplaced)
        _hugging_face_config(config, tensors).save_pretrained(folder)
    else:
        if to == "released":
            _complete_for_released_code(tensors, config, report)
            _add_pooler(tensors, source, config, report)
        fields = {field: getattr(config, field) for field in (*_BERT_FIELDS, *_variant_fields(config))}
        text = json.dumps(fields, indent=2, sort_keys=True, allow_nan=False)
        (folder / "bert_config.json").write_text(text + "\n", encoding="utf-8")
    state = renamed(tensors, LAYOUTS[to])
    if to == "released":
        torch.save(state, folder / "checkpoint.bin")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        follow_umask([folder / "model.safetensors"])
    report.notes.append(f"{len(state)} tensors written as {to}")
    return report


def renamed(tensors: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor]:
    """Returns copies of the tensors under the names of a layout, transposed where the layout stores them transposed."""
    state = {}
    for name, tensor in tensors.items():
        theirs, transposed = layout.from_ours(name)
        state[theirs] = (tensor.T if transposed else tensor).clone(memory_format=torch.contiguous_format)
    return state


def _drop_unplaced(tensors: dict[str, Tensor], config: PreTrainedConfig, report: Report, drop_unplaced: bool) -> None:
    if "qa_outputs.weight" in tensors and (pooler := [name for name in tensors if part_of(name) == "pooler"]):
        for name in pooler:
            del tensors[name]
        report.notes.append("dropped pooler.dense, which BertForQuestionAnswering of transformers does not have")
    names = [name for name in tensors if part_of(name) in ("context", "pooler gate")]
    if not names:
        return
    if not drop_unplaced:
        raise CheckpointError(
            f"{report.source}: expected only tensors that BERT has, got {some(names)}. Set "
            f"{asking_for('drop_unplaced')} to drop them; predictions then differ from those of {report.model}."
        )
    for name in names:
        del tensors[name]
    report.notes.append(f"dropped {len(names)} tensors that BERT does not have")


def _hugging_face_config(config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> BertConfig:
    heads = {
        "qa_outputs.weight": "BertForQuestionAnswering",
        "classifier.weight": "BertForSequenceClassification",
    }
    architecture = next((model for name, model in heads.items() if name in tensors), "BertModel")
    shared = (*_BERT_FIELDS, "id2label", "label2id", "problem_type", "pad_token_id", "classifier_dropout")
    return BertConfig(**{field: getattr(config, field) for field in shared}, architectures=[architecture])


def _complete_for_released_code(tensors: dict[str, Tensor], config: PreTrainedConfig, report: Report) -> None:
    """Adds to `tensors` the unused tensors that the released code requires, because that code loads strictly.

    Raises:
        CheckpointError: a field has a value that the released code does not support, a tensor is missing, or there are
            more than RELEASED_CONTEXTS contexts.
    """
    for field, value in _RELEASED_VALUES.items():
        if getattr(config, field, value) != value:
            raise CheckpointError(
                f"{report.source}: {field}: expected {value!r} as in the released code, got {getattr(config, field)!r}"
            )
    if report.missing:
        raise CheckpointError(
            f"{report.source}: expected all tensors of the released code, got none for {some(report.missing)}. "
            "Convert a complete checkpoint."
        )
    contexts = tensors.get(CONTEXTS)
    if contexts is None:
        return
    if len(contexts) > RELEASED_CONTEXTS:
        raise CheckpointError(
            f"{report.source}: expected at most {RELEASED_CONTEXTS} contexts for the released code, got {len(contexts)}"
        )
    unused = RELEASED_CONTEXTS - len(contexts)
    tensors[CONTEXTS] = torch.cat([contexts, contexts.new_zeros(unused, contexts.shape[1])])
    gate = {"0.weight": (GATE_WIDTH, contexts.shape[1]), "0.bias": (GATE_WIDTH,), "3.weight": (1, GATE_WIDTH)}
    for name, shape in {**gate, "3.bias": (1,)}.items():
        tensors[f"bert.pooler.attention_gate.{name}"] = contexts.new_zeros(shape)
    report.notes.append(
        f"zeros for pooler.attention_gate and {unused} context rows, which the released code requires but does not use"
    )


def _add_pooler(tensors: dict[str, Tensor], source: Source, config: PreTrainedConfig, report: Report) -> None:
    """Adds the two tensors of the pooler to `tensors`, unless `tensors` has both.

    The released BERT requires a pooler even if its head does not use it. If the source lacks one of the two tensors,
    both are zeros.

    Raises:
        CheckpointError: a pooler tensor of the source has another shape, or contains NaN or infinity.
    """
    size = config.hidden_size
    shapes = {"bert.pooler.dense.weight": (size, size), "bert.pooler.dense.bias": (size,)}
    if shapes.keys() <= tensors.keys():
        return
    own = {name: tensor for name in shapes if (tensor := source.tensors.get(name)) is not None}
    for name, tensor in own.items():
        place, shape = f"{source.path}: {source.called(name)}", tuple(tensor.shape)
        if shape != shapes[name]:
            raise CheckpointError(f"{place}: expected shape {shapes[name]}, got {shape}")
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{place}: expected finite values, got NaN or infinity")
    if own.keys() == shapes.keys():
        tensors.update(own)
        report.unused = [name for name in report.unused if name not in map(source.called, own)]
        report.loaded += own
        return
    tensors.update({name: torch.zeros(shape) for name, shape in shapes.items()})
    report.notes.append("zeros for pooler.dense, which the released code requires and this model does not use")


def _variant_fields(config: PreTrainedConfig) -> list[str]:
    """Returns the names of fields, other than BERT's, that change the computation or that conversion back requires."""
    fields = ("contexts", "context_standalone", "pooler", *_RELEASED_FIELDS["qacg_bert"], *_RELEASED_VALUES)
    default = type(config)()
    chosen = [field for field in _OPTIONAL_FIELDS if getattr(config, field, None) != getattr(default, field, None)]
    return [*(field for field in fields if hasattr(config, field) and field not in _BERT_FIELDS), *chosen]
