"""`from_pretrained` of the encoders and their classifiers, with a report about every tensor."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from qacg_models.checkpoints.config_fields import check_agreement, configuration
from qacg_models.checkpoints.fitting import fit
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.permissions import NOTHING, Permissions
from qacg_models.checkpoints.reported_loading import ReportedLoading
from qacg_models.checkpoints.source import Source, open_source
from qacg_models.checkpoints.tensor_names import BASE, Layout


@dataclass(frozen=True)
class Prepared:
    """A checkpoint fitted to a model class, before the model is built.

    Attributes:
        config: configuration of the model.
        tensors: the tensors for the model, by their names in this package (`tensor_names.py`). Tensors in
            `report.missing` are left out.
        own_names: maps the names in the model's state dict to the names in this package. They differ for a base model,
            whose names have no prefix `bert.`, and with attention_naming="compact".
        report: the report about every tensor.
    """

    config: PreTrainedConfig
    tensors: dict[str, Tensor]
    own_names: dict[str, str]
    report: Report

    def state_dict(self) -> dict[str, Tensor]:
        """Returns the tensors by their names in the model's state dict."""
        return {name: self.tensors[ours] for name, ours in self.own_names.items() if ours in self.tensors}


def prepare(
    model_class: type[PreTrainedModel],
    source: Source,
    *,
    config: PreTrainedConfig | None = None,
    overrides: Mapping[str, object] = MappingProxyType({}),
    permissions: Permissions = NOTHING,
    model_options: Mapping[str, object] = MappingProxyType({}),
) -> Prepared:
    """Fits a checkpoint to a model class.

    Args:
        model_class: class of the model.
        source: the checkpoint.
        config: configuration of the model; None: built from the checkpoint's configuration file and `overrides`.
        overrides: fields that replace the fields of the checkpoint; ignored if `config` is given.
        permissions: what the user permits if a tensor is missing or has another shape.
        model_options: arguments of the constructor in addition to the configuration.

    Raises:
        CheckpointError: the configuration or a tensor does not fit; the message names the field or tensor.
    """
    notes: list[str] = []
    if config is None:
        config, notes = configuration(model_class.config_class, source, overrides)
    check_agreement(config, source, permissions.fields())
    with torch.device("meta"):
        model = model_class(copy.deepcopy(config), **model_options)
    layout = Layout(base=BASE if hasattr(model, BASE.removesuffix(".")) else "")
    own_names = {name: layout.to_ours(name)[0] for name in model.state_dict()}
    tensors, report = fit(
        source,
        {own_names[name]: tensor.shape for name, tensor in model.state_dict().items()},
        model=model_class.__name__,
        heads=config.num_attention_heads,
        initializer_range=config.initializer_range,
        permissions=permissions,
        not_needed=tuple(model_class._keys_to_ignore_on_load_unexpected or ()),
    )
    report.notes += notes
    return Prepared(config, tensors, own_names, report)


class CheckpointLoading(ReportedLoading):
    """Mixin that loads checkpoints of several programs; a base class before PreTrainedModel."""

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        config: PreTrainedConfig | str | Path | None = None,
        initialize_missing: bool = False,
        truncate_positions: bool = False,
        truncate_contexts: bool = False,
        resize_vocabulary: bool = False,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **kwargs,  # configuration fields, and the options of transformers' from_pretrained
    ):
        """Loads a checkpoint of this package, of the released code, or of BERT.

        The released code is the published code of QACG-BERT and CG-BERT. BERT checkpoints come from TensorFlow or
        transformers.

        A logger reports loaded, missing, unexpected and reshaped tensors, at level INFO if all tensors match, otherwise
        at level WARNING. Parts that the checkpoint does not contain (a head, a pooler, the context layers) keep their
        initial values.

        Args:
            pretrained_model_name_or_path: a folder, a file of weights with its configuration beside it, or the
                name of a repository on the hub; None: the weights are those of the argument
                `state_dict`, as in transformers.
            *model_args: arguments of the constructor after the configuration.
            config: a configuration, or its file or folder; None: the file beside the weights.
            initialize_missing: initialise at random the tensors that the checkpoint should contain but lacks; False:
                raise an error.
            truncate_positions: allow dropping the last position embeddings, if the checkpoint has more than
                max_position_embeddings=N.
            truncate_contexts: allow dropping the last context embeddings, if the checkpoint has more than `contexts`
                has names. Checkpoints of the released code have 8.
            resize_vocabulary: allow dropping or adding word embeddings, if the checkpoint has more or fewer than
                vocab_size=N.
            ignore_mismatched_sizes: initialise the head at random if the checkpoint's head has another size.
            output_loading_info: also return the loading info of transformers, a dictionary, with the report under the
                key "report".
            **kwargs: options of transformers' from_pretrained. Unless `config` is a configuration object, also fields
                that replace the fields of the configuration file.

        Returns:
            The model in evaluation mode; with output_loading_info the pair of the model and the loading info.

        Raises:
            CheckpointError: the checkpoint does not fit; the message names the file and the field or tensor.
            TypeError, ValueError: another argument is invalid, such as weights_only=False, or state_dict or gguf_file
                in addition to a checkpoint.
            OSError: a file cannot be read, or the path does not exist and the download from the hub failed.
        """
        permissions = Permissions(
            initialize_missing=initialize_missing,
            truncate_positions=truncate_positions,
            truncate_contexts=truncate_contexts,
            resize_vocabulary=resize_vocabulary,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
        )

        def read(path, *model_args, use_safetensors, variant, **options):
            ready = config if isinstance(config, PreTrainedConfig) else None
            source = open_source(path, config=None if ready else config, safetensors=use_safetensors, variant=variant)
            overrides = {} if ready else cls.fields_among(options)
            return cls.from_source(
                source, *model_args, config=ready, overrides=overrides, permissions=permissions, **options
            )

        return cls.load_reported(
            pretrained_model_name_or_path,
            *model_args,
            read=read,
            config=config,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
            output_loading_info=output_loading_info,
            **kwargs,
        )

    @classmethod
    def from_source(
        cls,
        source: Source,
        *model_args,
        config: PreTrainedConfig | None = None,
        overrides: Mapping[str, object] = MappingProxyType({}),
        permissions: Permissions = NOTHING,
        **kwargs,  # the options of transformers' from_pretrained, and of the class
    ):
        """Builds a model from a checkpoint that has been read.

        Args:
            source: the checkpoint.
            *model_args: arguments of the constructor after the configuration.
            config: configuration of the model; None: built from the checkpoint's configuration file and `overrides`.
            overrides: fields that replace the fields of the checkpoint; ignored if `config` is given.
            permissions: what the user permits if a tensor is missing or has another shape.
            **kwargs: options of transformers' from_pretrained, and arguments of the constructor.

        Returns:
            A pair: the model in evaluation mode; and the loading info of transformers, a dictionary, with the report
            about every tensor under the key "report".

        Raises:
            CheckpointError: the configuration or a tensor does not fit; the message names the field or tensor.
        """
        names = list(inspect.signature(cls.__init__).parameters)[2:]  # after self and config
        model_options = dict(zip(names, model_args)) | {name: kwargs[name] for name in names if name in kwargs}
        prepared = prepare(
            cls,
            source,
            config=config,
            overrides=overrides,
            permissions=permissions,
            model_options=model_options,
        )
        return cls.filled(prepared.config, prepared.state_dict(), prepared.report, *model_args, **kwargs)
