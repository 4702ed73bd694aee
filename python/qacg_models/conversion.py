"""Conversion of a checkpoint to a folder of this package, or to a BERT of transformers.

The source is a checkpoint of this package, or a published checkpoint of BERT or of the models of this package.

| format | weights | configuration | read by |
|---|---|---|---|
| own | model.safetensors | config.json | `from_pretrained` of this package |
| huggingface | model.safetensors | config.json | BERT of transformers |
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import BertConfig

from qacg_models.checkpoints.families import BERT_FIELDS
from qacg_models.checkpoints.files import CONFIG_NAMES, config_file, open_source, read_json, weights_file
from qacg_models.checkpoints.fitting import NOTHING, Permissions, Report, Source, asking_for, part_of, some
from qacg_models.checkpoints.loading import EncoderCheckpointLoading, HeadCheckpointLoading, prepare, variant
from qacg_models.errors import CheckpointError
from qacg_models.models.auto import MODELS, load_class, register_auto_classes
from qacg_models.utils.files import atomic_folder, check_writable, explain_write_errors, follow_umask

FORMATS = ("own", "huggingface")
DEFAULT_MODEL = "QACGBertForSequenceClassification"
_TOKENIZER_FILES = (
    *("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "sentencepiece.bpe.model"),
)
# The head by which BERT of transformers is chosen, in this order.
_HEADS = {"qa_outputs.weight": "BertForQuestionAnswering", "classifier.weight": "BertForSequenceClassification"}


def convert(
    src: Path | str,
    dst: Path | str,
    *,
    to: str = "own",
    model: str | None = None,
    config: Path | str | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    permissions: Permissions = NOTHING,
    overwrite: bool = False,
) -> Report:
    """Converts a checkpoint to a model folder, and returns the report about every tensor.

    `src` is a folder, a file of weights, or the index of shards, and `to` is one of FORMATS. `model` names a
    class of this package; None: inferred from the configuration or the tensors. For `config` see `config_file`.
    The folder appears when it is complete. Tokenizer files beside the weights are copied.
    """
    src, dst = Path(src), Path(dst)
    if to not in FORMATS:
        raise CheckpointError(f"to: expected one of {', '.join(FORMATS)}, got {to!r}")
    weights = weights_file(src)
    register_auto_classes()
    _check_destination(src, dst, overwrite)
    check_writable("dst", dst)
    options = {"overrides": overrides, "permissions": permissions}
    head = _head_class(weights, model, config)
    if head is None:
        source = open_source(weights, config=config)
        chosen = _encoder_class(source, model, plain=to != "own")
    elif to != "own":
        raise CheckpointError(f"to: expected 'own' for {head.__name__}, got {to!r}. Use --to own.")
    dst.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(dst) as folder, explain_write_errors(folder), torch.random.fork_rng():
        torch.manual_seed(0)
        if to == "huggingface":
            report = _write_hugging_face(folder, source, chosen, **options)
        else:
            if head is None:
                converted, info = chosen.from_source(source, **options)
            else:
                converted, info = head.from_file(weights, config=config, **options)
            converted.save_pretrained(folder)
            report = info["report"]
            if report.missing:
                report.notes.append("missing tensors have initial values (seed 0)")
        copied = [name for name in _TOKENIZER_FILES if (weights.parent / name).is_file()]
        for name in copied:
            shutil.copyfile(weights.parent / name, folder / name)
        if copied:
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


def _head_class(weights: Path, name: str | None, config: Path | str | None) -> type[HeadCheckpointLoading] | None:
    """Returns the class `name`, or the one in the configuration, if its models have a head over any encoder."""
    heads = [entry for entry in MODELS if entry.tensors == "head"]
    if name is not None:
        chosen = [entry for entry in heads if entry.name == name]
    else:
        path = config_file(weights, config)
        kind = None if path is None else read_json(path).get("model_type")
        chosen = [entry for entry in heads if entry.model_type == kind]
    return load_class(chosen[0]) if chosen else None


def _encoder_class(source: Source, name: str | None, *, plain: bool) -> type[EncoderCheckpointLoading]:
    """Returns the class `name`; None: the class in a configuration of this package, or inferred from the tensors.

    Without context tensors the inferred class is BERT with the checkpoint's head if `plain`, otherwise DEFAULT_MODEL.
    """
    fields = source.fields or {}
    encoders = [entry for entry in MODELS if entry.tensors == "bert"]
    if name is None and any(entry.model_type == fields.get("model_type") for entry in encoders):
        name = next(iter(fields.get("architectures") or [None]))
    if name is None:
        name = _inferred_model(source, plain)
    for entry in encoders:
        if entry.name == name:
            return load_class(entry)
    raise CheckpointError(f"model: expected one of {', '.join(entry.name for entry in MODELS)}, got {name!r}")


def _inferred_model(source: Source, plain: bool) -> str:
    if any(part_of(name) == "context" for name in source.tensors):
        if not any("context_layer." in name for name in source.tensors):
            return "AspectBertForSequenceClassification" if "classifier.weight" in source.tensors else "AspectBertModel"
        fields = variant(source)
        # CG-BERT and QACG-BERT with equal values of these fields have tensors of the same names and shapes. Of the
        # published models, only the released QACG-BERT has the values below.
        if (fields.get("context_projection"), fields.get("lambda_bias")) == ("hidden", True):
            return DEFAULT_MODEL
        raise CheckpointError(
            f"{source.path}: model: expected the name of a class, since the tensors fit both QACG-BERT and CG-BERT, "
            "got none. Set model (qacg convert --model) to that name."
        )
    return _bert_class(source.tensors) if plain else DEFAULT_MODEL


def _bert_class(tensors: Mapping[str, Tensor]) -> str:
    """Returns the name of the BERT, here and in transformers, that has the head in the tensors."""
    return next((model for name, model in _HEADS.items() if name in tensors), "BertModel")


def _write_hugging_face(
    folder: Path,
    source: Source,
    model_class: type[EncoderCheckpointLoading],
    permissions: Permissions,
    overrides: Mapping[str, object],
) -> Report:
    """Writes the tensors that BERT of transformers has; raises CheckpointError for others without permission."""
    prepared = prepare(model_class, source, permissions=permissions, overrides=overrides)
    config, tensors, report = prepared.config, dict(prepared.tensors), prepared.report
    if config.modernbert is not None or config.embedding_size is not None:
        raise CheckpointError(
            f"to: expected 'own' for {report.source}, whose layers are not those of BERT, got 'huggingface'. Use --to"
            " own."
        )
    if "qa_outputs.weight" in tensors and (pooler := [name for name in tensors if part_of(name) == "pooler"]):
        for name in pooler:
            del tensors[name]
        report.notes.append("dropped pooler.dense, which BertForQuestionAnswering of transformers does not have")
    names = [name for name in tensors if part_of(name) in ("context", "pooler gate")]
    if names and not permissions.drop_unplaced:
        raise CheckpointError(
            f"{report.source}: expected only tensors that BERT has, got {some(names)}. Set "
            f"{asking_for('drop_unplaced')} to drop them; predictions then differ from those of {report.model}."
        )
    for name in names:
        del tensors[name]
    if names:
        report.notes.append(f"dropped {len(names)} tensors that BERT does not have")
    fields = {field: getattr(config, field) for field in (*BERT_FIELDS, "id2label", "label2id", "problem_type")}
    BertConfig(**fields, architectures=[_bert_class(tensors)]).save_pretrained(folder)
    copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
    save_file(copies, folder / "model.safetensors", metadata={"format": "pt"})
    follow_umask([folder / "model.safetensors"])
    report.notes.append(f"{len(tensors)} tensors written as huggingface")
    return report
