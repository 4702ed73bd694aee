"""Code shared by every `from_pretrained` of this package: options, hub, report, and transformers' loading."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig, modeling_utils

from qacg_models.checkpoints.hub import HubOptions, locate
from qacg_models.checkpoints.load_report import Report

logger = logging.getLogger(__name__)

# Attributes of a configuration that from_pretrained treats as options of loading.
OPTIONS = ("dtype", "torch_dtype", "attn_implementation", "quantization_config")


class ReportedLoading:
    """Base of the mixins that load checkpoints; a model lists them before PreTrainedModel."""

    @classmethod
    def load_reported(
        cls,
        pretrained_model_name_or_path,
        *model_args,
        read: Callable,
        config: PreTrainedConfig | str | Path | None,
        ignore_mismatched_sizes: bool,
        output_loading_info: bool,
        cache_dir: str | Path | None = None,
        force_download: bool = False,
        local_files_only: bool = False,
        token: str | bool | None = None,
        revision: str = "main",
        subfolder: str = "",
        use_safetensors: bool | None = None,
        variant: str | None = None,
        weights_only: bool = True,
        **kwargs,  # configuration fields, and the other options of transformers' from_pretrained
    ):
        """Loads a checkpoint from a folder, a file or the hub, and logs its report.

        Arguments other than `read` are those of the calling `from_pretrained`. If `pretrained_model_name_or_path` is
        None, transformers' `from_pretrained` builds the model, and no report is logged.

        Args:
            read: function that is called as `read(path, *model_args, use_safetensors=..., variant=..., **kwargs)`. It
                returns the model and the loading info, a dictionary with the report under the key "report".

        Returns:
            The model; with output_loading_info the pair of the model and the loading info.
        """
        _check_sources(pretrained_model_name_or_path, weights_only, kwargs)
        if pretrained_model_name_or_path is None:
            return super().from_pretrained(
                None,
                *model_args,
                config=config,
                ignore_mismatched_sizes=ignore_mismatched_sizes,
                output_loading_info=output_loading_info,
                **kwargs,
            )
        path = locate(
            pretrained_model_name_or_path,
            subfolder=subfolder,
            use_safetensors=use_safetensors,
            variant=variant,
            options=HubOptions(cache_dir, force_download, local_files_only, token, revision),
        )
        model, info = read(path, *model_args, use_safetensors=use_safetensors, variant=variant, **kwargs)
        report: Report = info["report"]
        logger.log(logging.INFO if report.clean else logging.WARNING, "%s", report)
        model.name_or_path = model.config.name_or_path = str(pretrained_model_name_or_path)
        return (model, info) if output_loading_info else model

    @classmethod
    def fields_among(cls, kwargs: dict[str, object]) -> dict[str, object]:
        """Removes configuration fields, except those in OPTIONS, from `kwargs`, and returns the removed fields."""
        known = cls.config_class()
        return {name: kwargs.pop(name) for name in list(kwargs) if name not in OPTIONS and hasattr(known, name)}

    @classmethod
    def filled(cls, config: PreTrainedConfig, state_dict: dict, report, *model_args, **kwargs):
        """Returns a model with the tensors of `state_dict`, and the loading info of transformers with the report.

        Args:
            config: configuration of the model.
            state_dict: tensors by their names in the model.
            report: the report about every tensor.
            *model_args: arguments of the constructor after the configuration.
            **kwargs: options of transformers' from_pretrained.
        """
        with _hide_transformers_report():
            model, info = super().from_pretrained(
                None, *model_args, config=config, state_dict=state_dict, output_loading_info=True, **kwargs
            )
        _freeze_unread(model)
        return model, info | {"report": report}


def _check_sources(name: object, weights_only: bool, options: Mapping[str, object]) -> None:
    """Raises ValueError for `weights_only=False`, and for options that name another source of tensors."""
    if not weights_only:
        raise ValueError("weights_only: expected True, got False. Pickled code never runs.")
    for other in ("state_dict", "gguf_file"):
        if name is not None and options.get(other) is not None:
            raise ValueError(f"{other}: expected None with the checkpoint {name}, got a value. Omit {other}.")


def _freeze_unread(model: nn.Module) -> None:
    """Freezes unused parameters again, because transformers' loading replaces them by trainable ones."""
    for module in model.modules():
        if hasattr(module, "freeze_unread"):
            module.freeze_unread()


@contextmanager
def _hide_transformers_report() -> Iterator[None]:
    """Hides transformers' table of missing tensors, which would repeat a part of the report."""

    def hide(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    modeling_utils.logger.addFilter(hide)
    try:
        yield
    finally:
        modeling_utils.logger.removeFilter(hide)
