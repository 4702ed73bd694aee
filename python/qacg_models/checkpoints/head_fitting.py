"""Which tensor of a checkpoint goes where in a model with a head over any encoder; and the refusals."""

from __future__ import annotations

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

# Of an encoder, but needed by no head: buffers computed from the sizes, and the pooler.
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
    """The tensors of a model out of those of a checkpoint.

    Args:
        found: the checkpoint's tensors by its names.
        expected: shapes of the model's by ours.
        buffers: those of them that the model can compute.
        base: prefix of the encoder's.
        aliases: as for `HeadLayout.of`.
        source, model: for messages and the report.
        initialize_missing, ignore_mismatched_sizes: as for `from_pretrained`.

    Returns:
        The tensors that could be had, by our names, and the report.

    Raises:
        CheckpointError: tensors of the encoder are missing or would be left over, a head is there in part only,
            a tensor has another shape or values that are not finite.
    """
    layout = HeadLayout.of(
        found, {name.removeprefix(base) for name in expected if name.startswith(base)}, base, aliases
    )
    report = Report(str(source), layout.describe(), model)
    called: dict[str, str] = {}
    for name in found:
        ours = layout.to_ours(name)
        if ours in called:
            raise CheckpointError(f"{source}: {called[ours]} and {name} are names of one tensor, {ours}")
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
            hint = "" if name.startswith(base) else f"; {asking_for('ignore_mismatched_sizes')} would start it anew"
            raise CheckpointError(
                f"{source}: {called[name]} has shape {tuple(tensor.shape)}, wanted {tuple(shape)}{hint}"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{source}: {called[name]} has values that are not finite")
        state[name] = tensor
        report.loaded.append(name)
    for ours, name in called.items():
        if ours not in expected:
            (report.unused if _NOT_NEEDED.search(ours) else report.unexpected).append(name)
    _refuse_left_over(report, layout, base, expected, source)
    if not initialize_missing:
        _refuse_missing(report, base, buffers, source, ignore_mismatched_sizes)
    return state, report


def _refuse_left_over(report: Report, layout: HeadLayout, base: str, expected: Collection[str], source: Path) -> None:
    modules = {name.removeprefix(base).split(".")[0] for name in expected if name.startswith(base)}
    ours = {name: layout.to_ours(name) for name in report.unexpected}
    # Where the encoder's names have no prefix, what is in none of its modules is a head of another program.
    left_over = [
        name
        for name, mine in ours.items()
        if mine.startswith(base) and (layout.encoder or mine.removeprefix(base).split(".")[0] in modules)
    ]
    if left_over:
        raise CheckpointError(f"{source}: {some(left_over)} would be left over: the encoder has no such tensors")


def _refuse_missing(
    report: Report, base: str, buffers: Collection[str], source: Path, ignore_mismatched_sizes: bool
) -> None:
    for part, inside in (("encoder", True), ("head", False)):
        missing = [n for n in report.missing if n.startswith(base) == inside and n not in buffers]
        there = [n for n in report.loaded if n.startswith(base) == inside]
        if missing and (inside or (there and not ignore_mismatched_sizes)):
            raise CheckpointError(
                f"{source}: lacks {len(missing)} of the {len(missing) + len(there)} {part} tensors of {report.model}: "
                f"{some(missing)}; {asking_for('initialize_missing')} would start them at random"
            )
