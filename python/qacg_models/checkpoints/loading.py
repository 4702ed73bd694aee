"""`from_pretrained` of every model of this package, with a report about every tensor."""

import copy
import inspect
import json
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, modeling_utils

from qacg_models.checkpoints.files import (
    config_file,
    locate,
    no_config,
    open_source,
    read_json,
    read_tensors,
    weights_file,
)
from qacg_models.checkpoints.fitting import (
    BASE,
    NOTHING,
    WORDS,
    Layout,
    Permissions,
    Report,
    Source,
    fit,
    named,
    part_of,
    role_of,
)
from qacg_models.errors import CheckpointError

logger = logging.getLogger(__name__)

# Attributes of a configuration that from_pretrained treats as options of loading.
OPTIONS = ("dtype", "torch_dtype", "attn_implementation", "quantization_config")
_DOWNLOAD = ("cache_dir", "force_download", "local_files_only", "token", "revision")
# Tensors of encoders that heads do not use: the pooler, and buffers that are computed from the sizes.
_NOT_NEEDED_BY_HEADS = r"(^|\.)(pooler\..*|embeddings\.(position_ids|token_type_ids))$"
# Fields that change the computation but no shape, so tensors cannot contradict them.
_COMPUTATION = ("num_attention_heads", "hidden_act", "layer_norm_eps", "modernbert")
LABEL_FIELDS = ("num_labels", "id2label", "label2id", "problem_type")
_FOREIGN = (None, "bert")  # values of model_type in configuration files of BERT by other programs


class CheckpointLoading:
    """Base of the mixins that load checkpoints; a model lists them before PreTrainedModel.

    Each has `from_file`, which returns a model from a file of weights or an index of shards, and the loading info of
    transformers with the report under the key "report". `overrides` replace fields of the configuration file, and are
    ignored if `config` is a configuration.
    """

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        config: PreTrainedConfig | str | Path | None = None,
        initialize_missing: bool = False,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        subfolder: str = "",
        **kwargs,  # configuration fields, and the other options of transformers' from_pretrained
    ):
        """Loads a checkpoint of this package, of a published program, or of the encoder only.

        An encoder reads checkpoints of the released code of QACG-BERT and CG-BERT, and of BERT, from transformers or
        converted from TensorFlow. A head over any encoder reads its own checkpoints, and those of the encoder, whose
        tensor names may have any prefix.

        A logger reports loaded, missing and unexpected tensors, at level WARNING unless all tensors match.
        Parts that the checkpoint does not contain (a head, a pooler, the context layers) keep their initial values.

        Args:
            pretrained_model_name_or_path: a folder, a file of weights with its configuration beside it, or the name of
                a repository on the hub.
            *model_args: arguments of the constructor after the configuration.
            config: a configuration, or its file or folder; None: the file beside the weights. A head over an encoder
                requires it for the checkpoint of the encoder only, whose configuration does not describe the head.
            initialize_missing: initialise at random the tensors that the checkpoint should contain but lacks.
            ignore_mismatched_sizes: initialise the head at random if the checkpoint's head has another size.
            output_loading_info: also return the loading info of transformers, with the report under the key "report".
            subfolder: folder of the checkpoint inside the folder or repository.
            **kwargs: options of transformers' from_pretrained, such as `revision` and `dtype`. Unless `config` is a
                configuration object, also fields that replace the fields of the configuration file.

        Returns:
            The model in evaluation mode; with output_loading_info the pair of the model and the loading info.

        Raises:
            CheckpointError: the checkpoint does not fit; the message names the file and the field or tensor.
            TypeError, ValueError: another argument is invalid.
            OSError: a file cannot be read, or the path does not exist and the download from the hub failed.
        """
        name: Any = pretrained_model_name_or_path
        for other in ("state_dict", "gguf_file", "use_safetensors", "variant", "weights_only"):
            if kwargs.get(other) is not None:
                raise ValueError(f"{other}: expected None with the checkpoint {name}, got a value. Omit {other}.")
        download = {option: kwargs.pop(option) for option in _DOWNLOAD if option in kwargs}
        path = locate(name, subfolder=subfolder, **download)
        known, fields = cls.config_class(), {}
        if not isinstance(config, PreTrainedConfig):
            names = [option for option in kwargs if option not in OPTIONS and hasattr(known, option)]
            fields = {option: kwargs.pop(option) for option in names}
        model, info = cls.from_file(
            weights_file(path),
            *model_args,
            config=config,
            overrides=fields,
            permissions=Permissions(initialize_missing, ignore_mismatched_sizes),
            **kwargs,
        )
        report: Report = info["report"]
        logger.log(logging.INFO if report.clean else logging.WARNING, "%s", report)
        model.name_or_path = model.config.name_or_path = str(name)
        return (model, info) if output_loading_info else model

    @classmethod
    def filled(cls, config: PreTrainedConfig, state_dict: dict, report: Report, *model_args, **kwargs):
        """Returns a model with the tensors of `state_dict`, and the loading info of transformers with the report."""
        modeling_utils.logger.addFilter(_is_no_load_report)
        try:
            model, info = super().from_pretrained(
                None, *model_args, config=config, state_dict=state_dict, output_loading_info=True, **kwargs
            )
        finally:
            modeling_utils.logger.removeFilter(_is_no_load_report)
        # Frozen again, because transformers' loading replaces unused parameters by trainable ones.
        for module in model.modules():
            if hasattr(module, "freeze_unread"):
                module.freeze_unread()
        return model, info | {"report": report}


class EncoderCheckpointLoading(CheckpointLoading):
    """Mixin that loads checkpoints of several programs into an encoder or its classifier."""

    @classmethod
    def from_file(cls, weights: Path, *model_args, config: PreTrainedConfig | str | Path | None = None, **options):
        """Returns a model and the loading info; see `CheckpointLoading`."""
        ready = config if isinstance(config, PreTrainedConfig) else None
        source = open_source(weights, config=None if ready else config)
        return cls.from_source(source, *model_args, config=ready, **options)

    @classmethod
    def from_source(
        cls,
        source: Source,
        *model_args,
        config: PreTrainedConfig | None = None,
        overrides: Mapping[str, object] = MappingProxyType({}),
        permissions: Permissions = NOTHING,
        **kwargs,
    ):
        """Returns a model from a checkpoint that has been read, and the loading info; see `CheckpointLoading`."""
        arguments = list(inspect.signature(cls.__init__).parameters)[2:]  # after self and config
        options = dict(zip(arguments, model_args)) | {name: kwargs[name] for name in arguments if name in kwargs}
        ready = prepare(cls, source, config=config, overrides=overrides, permissions=permissions, model_options=options)
        return cls.filled(ready.config, ready.state_dict, ready.report, *model_args, **kwargs)


class HeadCheckpointLoading(CheckpointLoading):
    """Mixin that loads checkpoints of a model with a head over any encoder, or of its encoder only."""

    published_aliases: ClassVar[Collection[tuple[str, str]]] = ()  # see `Layout.of_head`

    @classmethod
    def from_file(
        cls,
        weights: Path,
        *model_args,
        config: PreTrainedConfig | str | Path | None = None,
        overrides: Mapping[str, object] = MappingProxyType({}),
        permissions: Permissions = NOTHING,
        **kwargs,
    ):
        """Returns a model and the loading info; see `CheckpointLoading`."""
        found = read_tensors(weights)
        if not isinstance(config, PreTrainedConfig):
            path = config_file(weights, config)
            if path is None:
                raise no_config(weights)
            config = _config_from(cls.config_class, path, {**read_json(path), **overrides})
        with torch.device("meta"):
            skeleton = cls(copy.deepcopy(config), *model_args)
        base, shapes = f"{cls.base_model_prefix}.", {name: x.shape for name, x in skeleton.state_dict().items()}
        encoder_names = {name.removeprefix(base) for name in shapes if name.startswith(base)}
        source = named(weights, found, Layout.of_head(found, encoder_names, base, cls.published_aliases))
        state, report = fit(
            source,
            shapes,
            model=cls.__name__,
            permissions=permissions,
            part=lambda name: "encoder" if name.startswith(base) else "head",
            required="encoder",
            not_needed=_NOT_NEEDED_BY_HEADS,
            buffers={name for name, _ in skeleton.named_buffers()},
        )
        return cls.filled(config, state, report, *model_args, **kwargs)


class Prepared(NamedTuple):
    """A checkpoint fitted to a class. `tensors` have their names in this package, and `state_dict` those of the model.

    They differ for a base model, whose names have no prefix `bert.`, and with attention_naming="compact".
    """

    config: PreTrainedConfig
    tensors: dict[str, Tensor]
    state_dict: dict[str, Tensor]
    report: Report


def prepare(
    model_class: type[PreTrainedModel],
    source: Source,
    *,
    config: PreTrainedConfig | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    permissions: Permissions = NOTHING,
    model_options: Mapping[str, object] = MappingProxyType({}),
) -> Prepared:
    """Fits a checkpoint to the class of an encoder or its classifier.

    Without `config`, the configuration is that of `configuration`. `model_options` are arguments of the constructor.
    """
    notes: list[str] = []
    if config is None:
        config, notes = configuration(model_class.config_class, source, overrides)
    for field in _COMPUTATION:
        stored = (source.fields or {}).get(field)
        if stored is not None and hasattr(config, field) and getattr(config, field) != stored:
            raise CheckpointError(
                f"{source.fields_path}: {field}: expected {stored!r}, with which the model was trained, "
                f"got {getattr(config, field)!r}. Do not set this field."
            )
    with torch.device("meta"):
        model = model_class(copy.deepcopy(config), **model_options)
    layout = Layout(encoder=BASE if hasattr(model, BASE.removesuffix(".")) else "")
    own_names = {name: layout.to_ours(name) or name for name in model.state_dict()}
    tensors, report = fit(
        source,
        {own_names[name]: tensor.shape for name, tensor in model.state_dict().items()},
        model=model_class.__name__,
        permissions=permissions,
        not_needed="|".join(model_class._keys_to_ignore_on_load_unexpected or ()) or None,
    )
    report.notes += notes
    state = {name: tensors[ours] for name, ours in own_names.items() if ours in tensors}
    return Prepared(config, tensors, state, report)


def configuration(
    config_class: type[PreTrainedConfig], source: Source, overrides: Mapping[str, object]
) -> tuple[PreTrainedConfig, list[str]]:
    """Returns the configuration for loading a checkpoint into an encoder, and notes about inferred and dropped fields.

    The value of a field comes from the first of these sources that has it: `overrides`, the checkpoint's configuration
    file, the tensors (see `variant`), the default. `overrides` of a label field replace all label fields of the file.
    """
    if source.fields is None or source.fields_path is None:
        raise no_config(source.path)
    where, kind, expected = source.fields_path, source.fields.get("model_type"), config_class.model_type
    notes: list[str] = []
    stored = dict(source.fields)
    known = config_class()
    if kind not in (expected, *_FOREIGN):
        if any(part_of(name) == "context" for name in source.tensors) and "contexts" in known.to_dict():
            raise CheckpointError(
                f"{where}: model_type: expected {expected!r}, got {kind!r}, which uses context tensors differently. "
                "Use the model class of the checkpoint."
            )
        stored = {field: value for field, value in stored.items() if hasattr(known, field) and field != "architectures"}
        if left_out := sorted(field for field in source.fields if not hasattr(known, field)):
            notes.append(f"dropped {', '.join(left_out)} of the {kind} configuration: {expected} has no such fields")
    if kind is None and "num_attention_heads" not in {**stored, **overrides}:
        raise CheckpointError(f"{where}: expected num_attention_heads, got none. Set num_attention_heads=N.")
    given = {**stored, **overrides}
    inferred = {name: value for name, value in variant(source).items() if hasattr(known, name) and name not in given}
    if given.keys() & {"id2label", "label2id"}:
        inferred.pop("num_labels", None)
    if kind != expected:
        notes += [f"{field} = {json.dumps(value)}, inferred from the tensors" for field, value in inferred.items()]
    if overrides.keys() & {*LABEL_FIELDS}:
        stored = {field: stored[field] for field in stored if field not in LABEL_FIELDS}
    fields = {**stored, **inferred, **overrides, "model_type": expected}
    return _config_from(config_class, where, fields), notes


def _config_from(config_class: type[PreTrainedConfig], path: Path, fields: Mapping[str, object]) -> PreTrainedConfig:
    """Returns a configuration; errors name its file."""
    try:
        return config_class.from_dict(dict(fields))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: {error}") from None


def variant(source: Source) -> dict[str, object]:
    """Returns the configuration fields that the tensors determine.

    A checkpoint with a pooler gate has pooler "attention" if its attention layers are called Wq, Wk and Wv. If they are
    called query, key and value, the released code stores the gate but does not use it, so pooler is "cls".
    """
    tensors = source.tensors
    fields: dict[str, object] = {}
    if (classifier := tensors.get("classifier.weight")) is not None and classifier.dim() == 2:
        fields["num_labels"] = classifier.shape[0]
    if (contexts := tensors.get("bert.context_embeddings.weight")) is not None:
        fields["contexts"] = contexts.shape[0]
    hidden_size = tensors[WORDS].shape[-1] if WORDS in tensors else None
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


def _is_no_load_report(record: logging.LogRecord) -> bool:
    """Returns False for transformers' table of missing tensors, which would repeat a part of the report."""
    return "LOAD REPORT" not in record.getMessage()
