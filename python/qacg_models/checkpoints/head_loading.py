"""`from_pretrained` of models with a head over any encoder, with a report about every tensor."""

import copy
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from qacg_models.checkpoints.files import read_json, read_tensors, weights_file
from qacg_models.checkpoints.head_fitting import fit_head
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.reported_loading import ReportedLoading
from qacg_models.checkpoints.source import config_file
from qacg_models.errors import CheckpointError


class HeadCheckpointLoading(ReportedLoading):
    """Mixin that loads checkpoints of the model, or of its encoder only; a base class before PreTrainedModel."""

    published_aliases: ClassVar[Collection[tuple[str, str]]] = ()  # see `HeadLayout.of`

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        config: PreTrainedConfig | str | Path | None = None,
        initialize_missing: bool = False,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        **kwargs,  # configuration fields, and the options of transformers' from_pretrained
    ):
        """Loads a checkpoint of this model, or of its encoder only.

        The tensor names of the encoder may have any prefix. A logger reports loaded, missing and unexpected tensors, at
        level INFO if all tensors match, otherwise at level WARNING. A head that the checkpoint does not contain keeps
        its initial values.

        Args:
            pretrained_model_name_or_path: a folder, a file of weights, or the name of a repository on the hub; None:
                the weights are those of the argument `state_dict`, as in transformers.
            *model_args: arguments of the constructor after the configuration.
            config: a configuration, or its file or folder; None: the file beside the weights. Required for the
                checkpoint of an encoder, whose configuration does not describe the head.
            initialize_missing: initialise at random the tensors that the checkpoint should contain but lacks; False:
                raise an error.
            ignore_mismatched_sizes: initialise at random the tensors of the head whose size differs, and those that an
                incomplete head lacks; False: raise an error.
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

        def read(path, *model_args, use_safetensors, variant, **options):
            return cls.from_file(
                weights_file(path, safetensors=use_safetensors, variant=variant) if path.is_dir() else path,
                *model_args,
                config=config,
                initialize_missing=initialize_missing,
                ignore_mismatched_sizes=ignore_mismatched_sizes,
                **options,
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
    def from_file(
        cls,
        weights: Path,
        *model_args,
        config: PreTrainedConfig | str | Path | None = None,
        initialize_missing: bool = False,
        ignore_mismatched_sizes: bool = False,
        **kwargs,  # configuration fields and other options of `from_pretrained`
    ):
        """Builds a model from a file of weights, or from the shards of an index.

        Args:
            weights: the file of weights, or the index of shards.
            *model_args: arguments of the constructor after the configuration.
            config: a configuration, or its file or folder; None: the file beside the weights.
            initialize_missing: initialise at random the tensors that the checkpoint should contain but lacks.
            ignore_mismatched_sizes: initialise at random the tensors of the head whose size differs, and those that an
                incomplete head lacks.
            **kwargs: options of transformers' from_pretrained. Unless `config` is a configuration object, also fields
                that replace the fields of the configuration file.

        Returns:
            A pair: the model in evaluation mode; and the loading info of transformers, a dictionary, with the report
            about every tensor under the key "report".

        Raises:
            CheckpointError: the checkpoint does not fit; the message names the file and the field or tensor.
            TypeError, ValueError: another argument is invalid.
            OSError: a file cannot be read.
        """
        found = read_tensors(weights)
        if not isinstance(config, PreTrainedConfig):
            config = head_configuration(cls.config_class, weights, config, cls.fields_among(kwargs))
        state, report = cls.fit(
            found,
            config,
            *model_args,
            source=weights,
            initialize_missing=initialize_missing,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
        )
        return cls.filled(config, state, report, *model_args, **kwargs)

    @classmethod
    def fit(
        cls,
        found: Mapping[str, Tensor],
        config: PreTrainedConfig,
        *model_args,
        source: Path,
        initialize_missing: bool,
        ignore_mismatched_sizes: bool,
    ) -> tuple[dict[str, Tensor], Report]:
        """Returns the tensors of a checkpoint that a model of this class loads, and the report about every tensor.

        Args:
            found: tensors of the checkpoint by their names in it.
            config: the model's configuration.
            *model_args: arguments of the constructor after the configuration.
            source: path of the checkpoint, for messages and the report.
            initialize_missing: allow missing tensors, which keep their random initial values.
            ignore_mismatched_sizes: allow tensors of the head that are missing or have another size; they keep their
                random initial values.

        Returns:
            The tensors that the checkpoint has, by their names in this package, and the report.

        Raises:
            CheckpointError: the encoder or the head is incomplete; the checkpoint has encoder tensors that the model
                lacks; two tensors are for the same tensor of the model; or a tensor has another shape, is not of a
                floating-point dtype, or contains NaN or infinity. The message names the tensors.
        """
        with torch.device("meta"):
            skeleton = cls(copy.deepcopy(config), *model_args)
        return fit_head(
            found,
            {name: tensor.shape for name, tensor in skeleton.state_dict().items()},
            {name for name, _ in skeleton.named_buffers()},
            base=f"{cls.base_model_prefix}.",
            aliases=cls.published_aliases,
            source=source,
            model=cls.__name__,
            initialize_missing=initialize_missing,
            ignore_mismatched_sizes=ignore_mismatched_sizes,
        )


def head_configuration(
    config_class: type[PreTrainedConfig], weights: Path, config: str | Path | None, fields: Mapping[str, object]
) -> PreTrainedConfig:
    """Returns the configuration of a model with a head.

    Args:
        config_class: class of the configuration.
        weights: the file of weights.
        config: the configuration file or its folder; None: one of CONFIG_NAMES beside the weights.
        fields: fields that replace the fields in the file.

    Raises:
        CheckpointError: there is no configuration file, or a field is unknown or invalid.
    """
    path = config_file(weights, config)
    if path is None:
        raise CheckpointError(
            f"{weights}: expected config.json or bert_config.json beside it, got none. Pass the path of a "
            "configuration file as config."
        )
    try:
        return config_class.from_dict({**read_json(path), **fields})
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"{path}: {error}") from None
