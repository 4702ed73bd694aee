"""`from_pretrained` of models with a head over any encoder: with a report, and refusals that name the tensor."""

from __future__ import annotations

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
    """Mixed into a PreTrainedModel before it: loads our own checkpoints, published ones, and those of an encoder."""

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
        """Loads a checkpoint of this model, whatever its prefixes, or of its encoder alone.

        A report of loaded, missing and unexpected tensors goes to a logger, as a warning unless every tensor had
        its place. A head that a checkpoint lacks as a whole starts at its initial values.

        Args:
            pretrained_model_name_or_path: a folder, a file of weights, or the name of a repository on the hub.
            config: a configuration, or the file of one; None takes the one beside the weights. For the checkpoint
                of an encoder alone it has to be given, since the one beside it says nothing about the head.
            initialize_missing: start tensors at random that the checkpoint should have and lacks.
            ignore_mismatched_sizes: start tensors of the head anew in place of those of another size.
            output_loading_info: return a pair, the model and a dictionary: that of transformers, and the report
                under "report".
            Others: as in transformers.

        Raises:
            CheckpointError: a ValueError that names the file, and the field or tensor.
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
        **kwargs,  # as for `from_pretrained`
    ):
        """A model with the tensors of one file, or of the shards of an index, and what became of them.

        Args: as for `from_pretrained`.

        Returns:
            The model in evaluation mode; the loading info of transformers, and the report under "report".

        Raises:
            CheckpointError: as for `from_pretrained`.
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
        """The tensors of a model of this class out of those of a checkpoint; see `fit_head`."""
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
    """The configuration of a checkpoint: the file `config`, or the one beside the weights; `fields` win over it.

    Raises:
        CheckpointError: there is none, or a field is unknown or out of its limits.
    """
    path = config_file(weights, config)
    if path is None:
        raise CheckpointError(f"{weights}: has no configuration beside it (config.json); name one")
    try:
        return config_class.from_dict({**read_json(path), **fields})
    except (TypeError, ValueError) as error:
        raise error if isinstance(error, CheckpointError) else CheckpointError(f"{path}: {error}") from None
