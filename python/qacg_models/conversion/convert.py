"""What `qacg convert` does: a checkpoint as a folder of ours, or as a folder that other programs read.

| format | weights | configuration | read by |
|---|---|---|---|
| own | model.safetensors | config.json | `from_pretrained` of this package |
| huggingface | model.safetensors | config.json | BERT of transformers |
| released | checkpoint.bin | bert_config.json | the released QACG-BERT and CG-BERT, as their full state dict |
| released | checkpoint.pt | config.json, for the way back | the published BertSum |
| tensorflow-names | model.safetensors | bert_config.json | programs that know TensorFlow's variables by name |
"""

from __future__ import annotations

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
RELEASED_CONTEXTS = 8  # rows of the released context table, whatever the data

# What the released code has written in it. It has no fields for these.
_RELEASED_FIELDS = {
    "qacg_bert": {"context_projection": "hidden", "lambda_bias": True, "lambda_per_head": False},
    "cg_bert": {"context_projection": "head", "lambda_bias": False, "lambda_per_head": False},
}
_RELEASED_VALUES = {
    "pooler": "cls",
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "quasi_scale": 1.0,
    "beta": 1.0,
    "gamma": 1.0,
    "gate_activation": "sigmoid",
}
_BERT_FIELDS = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size"),
    *("initializer_range", "layer_norm_eps"),
)
# Written where somebody has chosen: a model without such a field, as another may be made of the file, refuses it.
_CHOICES = ("layer_norm_initializer", "outside_positions", "answer_pooler")
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
    """Converts a checkpoint.

    `dst` is written under a temporary name beside it and renamed when it is whole. Files of a tokenizer beside
    the source are copied, unless the vocabulary is resized.

    Args:
        src: a folder, a file of weights, or the index of shards.
        dst: folder to make.
        to: one of FORMATS.
        model: a class of this package; None takes the head that our own configuration names, else as `choose_model`.
        config: the configuration file; None takes the one beside the weights.
        overrides: configuration fields that win over the checkpoint's.
        permissions: what may happen to tensors that do not fit.
        drop_unplaced: leave out tensors that the format has no place for, as transformers' BERT has none for
            contexts, instead of refusing.
        overwrite: replace the model folder that `dst` is.
        seed: of the tensors that the source lacks and the format `own` must have.

    Returns:
        What became of every tensor.

    Raises:
        CheckpointError: the source cannot be read, does not fit, or not into that format; `dst` exists.
    """
    dst = Path(dst)
    if to not in FORMATS:
        raise CheckpointError(f"to: got {to!r}, wanted one of {', '.join(FORMATS)}")
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
    with atomic_folder(dst) as folder, explain_write_errors(folder):
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
        raise CheckpointError(f"{dst}: holds {src}, which would be lost; choose another folder")
    if not overwrite:
        raise CheckpointError(f"{dst}: already exists; choose another folder, or ask to overwrite it")
    if not any((dst / name).is_file() for name in CONFIG_NAMES):
        raise CheckpointError(f"{dst}: is not a model folder, so it is left alone")


def _write_own(
    folder: Path,
    source: Source,
    model_class: type[CheckpointLoading],
    overrides: Mapping[str, object],
    permissions: Permissions,
    seed: int,
) -> Report:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, info = model_class.from_source(source, overrides=overrides, permissions=permissions)
    model.save_pretrained(folder)
    report = info["report"]
    if report.missing:
        report.notes.append(f"what was missing has initial values, drawn with seed {seed}")
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
    """Tensors under a layout's names and in its orientation, each with memory of its own."""
    state = {}
    for name, tensor in tensors.items():
        theirs, transposed = layout.from_ours(name)
        state[theirs] = (tensor.T if transposed else tensor).clone(memory_format=torch.contiguous_format)
    return state


def _drop_unplaced(tensors: dict[str, Tensor], config: PreTrainedConfig, report: Report, drop_unplaced: bool) -> None:
    if "qa_outputs.weight" in tensors and (pooler := [name for name in tensors if part_of(name) == "pooler"]):
        for name in pooler:
            del tensors[name]
        report.notes.append("pooler.dense left out, which BERT for question answering there has not, and nothing reads")
    names = [name for name in tensors if part_of(name) in ("context", "pooler gate")]
    if not names:
        return
    if not drop_unplaced:
        raise CheckpointError(
            f"{report.source}: BERT has no place for {some(names)}; {asking_for('drop_unplaced')} would leave them "
            f"out, and what is left computes something else than {report.model}"
        )
    for name in names:
        del tensors[name]
    report.notes.append(f"{len(names)} tensors left out that BERT has no place for")


def _hugging_face_config(config: PreTrainedConfig, tensors: Mapping[str, Tensor]) -> BertConfig:
    heads = {
        "qa_outputs.weight": "BertForQuestionAnswering",
        "classifier.weight": "BertForSequenceClassification",
    }
    architecture = next((model for name, model in heads.items() if name in tensors), "BertModel")
    shared = (*_BERT_FIELDS, "id2label", "label2id", "problem_type", "pad_token_id", "classifier_dropout")
    return BertConfig(**{field: getattr(config, field) for field in shared}, architectures=[architecture])


def _complete_for_released_code(tensors: dict[str, Tensor], config: PreTrainedConfig, report: Report) -> None:
    """What the released code wants and does not use, since it loads its state dict strictly; and refusals."""
    for field, value in _RELEASED_VALUES.items():
        if getattr(config, field, value) != value:
            raise CheckpointError(
                f"{report.source}: {field} is {getattr(config, field)!r}, and the released code has {value!r}"
            )
    if report.missing:
        raise CheckpointError(
            f"{report.source}: lacks {some(report.missing)}, without which the released code loads no state dict"
        )
    contexts = tensors.get(CONTEXTS)
    if contexts is None:
        return
    if len(contexts) > RELEASED_CONTEXTS:
        raise CheckpointError(
            f"{report.source}: has {len(contexts)} contexts, and the released code {RELEASED_CONTEXTS} at most"
        )
    unused = RELEASED_CONTEXTS - len(contexts)
    tensors[CONTEXTS] = torch.cat([contexts, contexts.new_zeros(unused, contexts.shape[1])])
    gate = {"0.weight": (GATE_WIDTH, contexts.shape[1]), "0.bias": (GATE_WIDTH,), "3.weight": (1, GATE_WIDTH)}
    for name, shape in {**gate, "3.bias": (1,)}.items():
        tensors[f"bert.pooler.attention_gate.{name}"] = contexts.new_zeros(shape)
    report.notes.append(
        f"zeros for pooler.attention_gate and {unused} context rows, which the released code wants and never uses"
    )


def _add_pooler(tensors: dict[str, Tensor], source: Source, config: PreTrainedConfig, report: Report) -> None:
    """The pooler that the released BERT has under every head, that of question answering, which skips it, too."""
    size = config.hidden_size
    shapes = {"bert.pooler.dense.weight": (size, size), "bert.pooler.dense.bias": (size,)}
    if shapes.keys() <= tensors.keys():
        return
    own = {name: tensor for name in shapes if (tensor := source.tensors.get(name)) is not None}
    for name, tensor in own.items():
        if tuple(tensor.shape) != shapes[name] or not bool(tensor.isfinite().all()):
            raise CheckpointError(
                f"{source.path}: {source.called(name)} has shape {tuple(tensor.shape)} or values that are not finite, "
                f"wanted finite ones in {shapes[name]}"
            )
    if own.keys() == shapes.keys():
        tensors.update(own)
        report.unused = [name for name in report.unused if name not in map(source.called, own)]
        report.loaded += own
        return
    tensors.update({name: torch.zeros(shape) for name, shape in shapes.items()})
    report.notes.append("zeros for pooler.dense, which the released code wants and this model never uses")


def _variant_fields(config: PreTrainedConfig) -> list[str]:
    """Fields beside BERT's that the way back needs, or that say what is computed."""
    fields = ("contexts", "context_standalone", "pooler", *_RELEASED_FIELDS["qacg_bert"], *_RELEASED_VALUES)
    default = type(config)()
    chosen = [field for field in _CHOICES if getattr(config, field, None) != getattr(default, field, None)]
    return [*(field for field in fields if hasattr(config, field) and field not in _BERT_FIELDS), *chosen]
