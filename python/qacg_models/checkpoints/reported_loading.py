"""What every `from_pretrained` of this package does around the reading of a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch import nn
from transformers import PreTrainedConfig, modeling_utils

from qacg_models.checkpoints.hub import HubOptions, locate
from qacg_models.checkpoints.load_report import Report

logger = logging.getLogger(__name__)

# Attributes of a configuration that from_pretrained takes as options of loading.
OPTIONS = ("dtype", "torch_dtype", "attn_implementation", "quantization_config")


class ReportedLoading:
    """Mixed into a PreTrainedModel before it, by way of a class that reads checkpoints."""

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
        """A checkpoint from a folder, a file or the hub, with its report sent to a logger.

        Args:
            read: called with the path, `model_args`, and by name `use_safetensors`, `variant` and the keyword
                arguments that are left; gives the model, and the loading info with the report under "report".
            Others: as for the `from_pretrained` that calls this.
        """
        refuse_other_sources(pretrained_model_name_or_path, weights_only, kwargs)
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
        log_report(info["report"])
        model.name_or_path = model.config.name_or_path = str(pretrained_model_name_or_path)
        return (model, info) if output_loading_info else model

    @classmethod
    def fields_among(cls, kwargs: dict[str, object]) -> dict[str, object]:
        """Takes the fields of the configuration out of the keyword arguments of a `from_pretrained`."""
        known = cls.config_class()
        return {name: kwargs.pop(name) for name in list(kwargs) if name not in OPTIONS and hasattr(known, name)}

    @classmethod
    def filled(cls, config: PreTrainedConfig, state_dict: dict, report, *model_args, **kwargs):
        """A model with tensors by its own names, and the loading info of transformers with the report beside."""
        with one_report():
            model, info = super().from_pretrained(
                None, *model_args, config=config, state_dict=state_dict, output_loading_info=True, **kwargs
            )
        freeze_unread(model)
        return model, info | {"report": report}


def refuse_other_sources(name: object, weights_only: bool, options: Mapping[str, object]) -> None:
    """ValueError for options of transformers' from_pretrained that would take tensors from somewhere else."""
    if not weights_only:
        raise ValueError("weights_only: got False; pickled code is never run")
    for other in ("state_dict", "gguf_file"):
        if name is not None and options.get(other) is not None:
            raise ValueError(f"{other}: got one beside {name}, wanted one of them")


def freeze_unread(model: nn.Module) -> None:
    """Freezes what a model's modules freeze when they are built, by a `freeze_unread` of theirs: transformers' loading
    makes every parameter anew, and asks for gradients that never come."""
    for module in model.modules():
        if hasattr(module, "freeze_unread"):
            module.freeze_unread()


def log_report(report: Report) -> None:
    """Sends a report to this module's logger, as a warning unless every tensor had its place."""
    logger.log(logging.INFO if report.clean else logging.WARNING, "%s", report)


@contextmanager
def one_report() -> Iterator[None]:
    """Keeps transformers' own table of missing tensors back, which would repeat part of ours."""

    def hide(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()

    modeling_utils.logger.addFilter(hide)
    try:
        yield
    finally:
        modeling_utils.logger.removeFilter(hide)
