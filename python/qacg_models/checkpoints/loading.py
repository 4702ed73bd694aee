"""`from_pretrained` for every kind of checkpoint: with a report, and refusals that name the tensor."""

from __future__ import annotations

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
    """What is known before a model is built.

    Attributes:
        config: of the model.
        tensors: those that the checkpoint has for it, by our names.
        own_names: our name of each tensor of the model by the model's, which has no `bert.` in a base model.
        report: what became of the others.
    """

    config: PreTrainedConfig
    tensors: dict[str, Tensor]
    own_names: dict[str, str]
    report: Report

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors by the model's names."""
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
        config: a ready configuration; None makes one from the checkpoint's and `overrides`.
        overrides: configuration fields that win over the checkpoint's.
        model_options: arguments of the class beside the configuration.

    Raises:
        CheckpointError: as for `configuration`, `check_agreement` and `fit`.
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
    """Mixed into a PreTrainedModel before it: loads foreign checkpoints, and none in part without being told to."""

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
        """Loads a checkpoint of this package, of the published code, of TensorFlow's BERT or of transformers' BERT.

        A report of loaded, missing, unexpected and reshaped tensors goes to a logger, as a warning
        unless every tensor had its place. Parts that a checkpoint lacks as a whole (a head, a pooler, the context
        of a plain BERT) start at their initial values.

        Args:
            pretrained_model_name_or_path: a folder, a file of weights with its configuration beside it, or the
                name of a repository on the hub.
            config: a configuration, or the file of one; None takes the one beside the weights.
            initialize_missing: start tensors at random that the checkpoint should have and lacks.
            truncate_positions: let the position table lose its last rows, with max_position_embeddings=N.
            truncate_contexts: let the context table lose its last rows, with fewer names in contexts. The
                released code has 8 rows whatever it needs.
            resize_vocabulary: let the word table lose or get rows, with vocab_size=N.
            ignore_mismatched_sizes: start a new head in place of one of another size.
            output_loading_info: return a pair, the model and a dictionary: that of transformers, and the report
                under "report".
            Others: as in transformers.

        Raises:
            CheckpointError: a ValueError that names the file, and the field or tensor.
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
        """A model with the tensors of a checkpoint that has been read, and what became of them.

        Args: as for `prepare`.

        Returns:
            The model in evaluation mode; the loading info of transformers, and the report under "report".

        Raises:
            CheckpointError: as for `prepare`.
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
