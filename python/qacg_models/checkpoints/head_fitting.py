"""Assigns the tensors of a checkpoint to a model with a head over any encoder."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from qacg_models.checkpoints.files import some
from qacg_models.checkpoints.head_names import HeadLayout
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.permissions import asking_for
from qacg_models.errors import CheckpointError

# Tensors of encoders that heads do not use: the pooler, and buffers that are computed from the sizes.
_NOT_NEEDED = re.compile(r"(^|\.)(pooler\..*|embeddings\.(position_ids|token_type_ids))$")


def fit_head(
    found: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    buffers: Collection[str],
    *,
    base: str,
    aliases: Collection[tuple[str, str]],
    source: Path,
    model: str,
    initialize_missing: bool,
    ignore_mismatched_sizes: bool,
) -> tuple[dict[str, Tensor], Report]:
    """Returns the tensors of a checkpoint that a model loads, and the report about every tensor.

    Args:
        found: tensors of the checkpoint by their names in it.
        expected: shapes of the tensors of the model by their names in this package.
        buffers: names of tensors that the model computes, which the checkpoint may lack.
        base: prefix of the tensors of the encoder.
        aliases: pairs (published name, name in this package) of a head module; each name ends with a dot.
        source: path of the checkpoint, for messages and the report.
        model: name of the model, for messages and the report.
        initialize_missing: allow missing tensors, which keep their random initial values.
        ignore_mismatched_sizes: allow tensors of the head that are missing or have another size; they keep their random
            initial values.

    Returns:
        The tensors that the checkpoint has, by their names in this package, and the report.

    Raises:
        CheckpointError: the encoder or the head is incomplete; the checkpoint has encoder tensors that the model lacks;
            two tensors are for the same tensor of the model; or a tensor has another shape, is not of a floating-point
            dtype, or contains NaN or infinity. The message names the tensors.
    """
    layout = HeadLayout.of(
        found, {name.removeprefix(base) for name in expected if name.startswith(base)}, base, aliases
    )
    report = Report(str(source), layout.describe(), model)
    called: dict[str, str] = {}
    for name in found:
        ours = layout.to_ours(name)
        if ours in called:
            raise CheckpointError(f"{source}: expected one tensor for {ours}, got {called[ours]} and {name}")
        called[ours] = name
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        if name not in called:
            report.missing.append(name)
            continue
        tensor = found[called[name]]
        if tensor.shape != shape and ignore_mismatched_sizes and not name.startswith(base):
            report.missing.append(name)
            continue
        if tensor.shape != shape:
            hint = (
                ""
                if name.startswith(base)
                else f". Set {asking_for('ignore_mismatched_sizes')} to initialise it at random."
            )
            raise CheckpointError(
                f"{source}: {called[name]}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}"
            )
        if not tensor.is_floating_point() and name not in buffers:
            raise CheckpointError(f"{source}: {called[name]}: expected a floating-point type, got {tensor.dtype}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{source}: {called[name]}: expected finite values, got NaN or infinity")
        state[name] = tensor
        report.loaded.append(name)
    for ours, name in called.items():
        if ours not in expected:
            (report.unused if _NOT_NEEDED.search(ours) else report.unexpected).append(name)
    _check_unused(report, layout, base, expected, source)
    if not initialize_missing:
        _check_missing(report, base, buffers, source, ignore_mismatched_sizes)
    return state, report


def _check_unused(report: Report, layout: HeadLayout, base: str, expected: Collection[str], source: Path) -> None:
    modules = {name.removeprefix(base).split(".")[0] for name in expected if name.startswith(base)}
    ours = {name: layout.to_ours(name) for name in report.unexpected}
    # If the names of the encoder have no prefix, tensors outside its modules belong to a head of another program.
    unused = [
        name
        for name, mine in ours.items()
        if mine.startswith(base) and (layout.encoder or mine.removeprefix(base).split(".")[0] in modules)
    ]
    if unused:
        raise CheckpointError(
            f"{source}: expected only tensors that the encoder has, got {some(unused)}. "
            "Use the configuration of the checkpoint's encoder."
        )


def _check_missing(
    report: Report, base: str, buffers: Collection[str], source: Path, ignore_mismatched_sizes: bool
) -> None:
    for part, inside in (("encoder", True), ("head", False)):
        missing = [n for n in report.missing if n.startswith(base) == inside and n not in buffers]
        there = [n for n in report.loaded if n.startswith(base) == inside]
        if missing and (inside or (there and not ignore_mismatched_sizes)):
            raise CheckpointError(
                f"{source}: expected {len(missing) + len(there)} {part} tensors of {report.model}, got {len(there)}, "
                f"without {some(missing)}. Set {asking_for('initialize_missing')} to initialise them at random."
            )
