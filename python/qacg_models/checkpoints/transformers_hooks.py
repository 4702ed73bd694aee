"""Where loading meets transformers' own: what it may be asked for, and what it says."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from transformers import modeling_utils

from qacg_models.checkpoints.load_report import Report

logger = logging.getLogger(__name__)

# Attributes of a configuration that from_pretrained takes as options of loading.
OPTIONS = ("dtype", "torch_dtype", "attn_implementation", "quantization_config")


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
