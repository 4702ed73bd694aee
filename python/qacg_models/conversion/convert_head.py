"""Conversion of the checkpoint of a model that has a head over any encoder.

The result is a folder of this package or, for a BertSum over BERT, a checkpoint for the released code of BertSum.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import PreTrainedConfig

from qacg_models.checkpoints.files import read_tensors, some
from qacg_models.checkpoints.head_loading import HeadCheckpointLoading, head_configuration
from qacg_models.checkpoints.head_names import BERTSUM
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.permissions import Permissions, asking_for
from qacg_models.errors import CheckpointError

_BERTS = ("bert", "plain_bert")


def write_head(
    folder: Path,
    weights: Path,
    model_class: type[HeadCheckpointLoading],
    *,
    to: str,
    config: Path | str | None,
    overrides: Mapping[str, object],
    permissions: Permissions,
    seed: int,
) -> Report:
    """Converts a checkpoint with a head over any encoder, and writes it to `folder`.

    Args:
        folder: an existing folder to write to.
        weights: the file of weights, or the index of shards.
        model_class: class of the model.
        to: "own", or "released" for a BertSum over BERT.
        config: the configuration file or its folder; None: the file beside the weights.
        overrides: fields that replace those of the checkpoint.
        permissions: what the user permits for tensors that are missing or have another size.
        seed: the seed that the caller has set in torch; the report states it if tensors are missing.

    Returns:
        The report about every tensor.

    Raises:
        CheckpointError: the source cannot be read or converted, the format `to` does not support the model, or
            `permissions` permits resizing embedding tables.
    """
    options = {
        "initialize_missing": permissions.initialize_missing,
        "ignore_mismatched_sizes": permissions.ignore_mismatched_sizes,
    }
    for name in ("truncate_positions", "truncate_contexts", "resize_vocabulary"):
        if getattr(permissions, name):
            raise CheckpointError(
                f"{asking_for(name)}: expected False for {model_class.__name__}, got True. Its encoder keeps the sizes "
                "of its embedding tables."
            )
    ready = head_configuration(model_class.config_class, weights, config, overrides)
    if to == "own":
        model, info = model_class.from_file(weights, config=ready, **options)
        model.save_pretrained(folder)
        report = info["report"]
        if report.missing:
            report.notes.append(f"missing tensors have initial values (seed {seed})")
        return report
    kind = ready.encoder.model_type
    if to != "released" or ready.model_type != "bertsum" or kind not in _BERTS:
        raise CheckpointError(
            f"to: expected 'own', or for a BertSum over BERT 'released', got {to!r} for {model_class.__name__} with an "
            f"encoder of type {kind!r}. Use --to own."
        )
    state, report = model_class.fit(read_tensors(weights), ready, source=weights, **options)
    if report.missing:
        raise CheckpointError(
            f"{weights}: expected all tensors of the released code, got none for {some(report.missing)}. Convert a "
            "complete checkpoint."
        )
    torch.save({"model": _as_released(state, ready)}, folder / "checkpoint.pt")
    ready.save_pretrained(folder)
    report.notes.append(
        f"{len(state)} tensors written as released, with zeros for a pooler that the code requires but does not use"
    )
    return report


def _as_released(state: Mapping[str, torch.Tensor], config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    size = config.encoder.hidden_size
    pooler = {"bert.pooler.dense.weight": torch.zeros(size, size), "bert.pooler.dense.bias": torch.zeros(size)}
    return {BERTSUM.from_ours(name): tensor.clone() for name, tensor in {**state, **pooler}.items()}
