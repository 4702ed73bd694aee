"""Which tensor of a checkpoint goes where in a model: loaded, missing, unexpected, reshaped; and the refusals."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qacg_kernels.nn import CONTEXT_ROLES, GATE_ROLES
from qacg_models.checkpoints.files import some
from qacg_models.checkpoints.load_report import Report
from qacg_models.checkpoints.permissions import Permissions, asking_for
from qacg_models.checkpoints.source import Source
from qacg_models.checkpoints.tensor_names import part_of, role_of
from qacg_models.errors import CheckpointError

WORDS = "bert.embeddings.word_embeddings.weight"
POSITIONS = "bert.embeddings.position_embeddings.weight"
CONTEXTS = "bert.context_embeddings.weight"


def fit(
    source: Source,
    expected: Mapping[str, torch.Size],
    *,
    model: str,
    heads: int,
    initializer_range: float,
    permissions: Permissions,
    not_needed: Sequence[str] = (),
) -> tuple[dict[str, Tensor], Report]:
    """The tensors of a model out of those of a checkpoint.

    Args:
        expected: shapes of the model's tensors by our names.
        model: its name, for the report.
        heads: its number of attention heads.
        initializer_range: standard deviation of rows that are added to the word table.
        not_needed: patterns of tensors that the model does without.

    Returns:
        The tensors that could be had, by our names, and the report.

    Raises:
        CheckpointError: tensors of the backbone are missing or would be left over, a part other than the
            backbone is there in part only, a tensor has another shape or values that are not finite.
    """
    report = Report(str(source.path), source.layout.describe(), model, unused=list(source.unused))
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        tensor = source.tensors.get(name)
        if tensor is None:
            tensor, how = _absent(name, shape, source)
        elif not tensor.is_floating_point():
            raise CheckpointError(f"{source.path}: {source.called(name)} has dtype {tensor.dtype}, wanted a float")
        else:
            tensor, how = _reshaped(name, tensor, shape, heads, initializer_range, permissions)
            if tensor is None and not (permissions.ignore_mismatched_sizes and part_of(name) == "head"):
                got = tuple(source.tensors[name].shape)
                raise CheckpointError(
                    f"{source.path}: {source.called(name)} has shape {got}, wanted {tuple(shape)}{how}"
                )
        if tensor is None:
            report.missing.append(name)
            continue
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{source.path}: {source.called(name)} has values that are not finite")
        state[name] = tensor
        report.loaded.append(name)
        if how:
            report.reshaped[name] = how
    left_over = [name for name in source.tensors if name not in expected]
    for name in left_over:
        if _is_zero_bias(name, source.tensors[name]):
            report.reshaped[name] = "left out: a bias of zeros"
        elif part_of(name) == "pooler gate" or any(re.search(pattern, name) for pattern in not_needed):
            report.unused.append(source.called(name))
        else:
            report.unexpected.append(source.called(name))
    _refuse_missing(source, report, permissions)
    _refuse_left_over(source, left_over)
    return state, report


def _absent(name: str, shape: torch.Size, source: Source) -> tuple[Tensor | None, str]:
    """Zeros for a gate's bias that a checkpoint without such biases need not have."""
    weight = source.tensors.get(name.removesuffix("bias") + "weight")
    if name.endswith(".bias") and role_of(name) in GATE_ROLES and weight is not None:
        return torch.zeros(shape, dtype=weight.dtype), "a gate without bias has one of zeros"
    return None, ""


def _reshaped(
    name: str, tensor: Tensor, shape: torch.Size, heads: int, initializer_range: float, permissions: Permissions
) -> tuple[Tensor | None, str]:
    """The tensor in the model's shape and what was done; or None and what could be done."""
    if tensor.shape == shape:
        return tensor, ""
    if name == WORDS and tensor.shape[1:] == shape[1:]:
        if not permissions.resize_vocabulary:
            return None, f"; {asking_for('resize_vocabulary')} would drop or add rows"
        if tensor.shape[0] > shape[0]:
            return tensor[: shape[0]], f"{tensor.shape[0]} rows cut to {shape[0]}"
        new = torch.empty(shape[0] - tensor.shape[0], shape[1]).normal_(std=initializer_range)
        return torch.cat([tensor, new.to(tensor)]), f"{tensor.shape[0]} rows, {len(new)} new ones"
    for table, rows, granted in (
        (POSITIONS, "positions", permissions.truncate_positions),
        (CONTEXTS, "contexts", permissions.truncate_contexts),
    ):
        if name == table and tensor.shape[1:] == shape[1:]:
            if tensor.shape[0] < shape[0]:
                return None, f"; {rows} that were never trained cannot be made"
            if not granted:
                return None, f"; {asking_for(f'truncate_{rows}')} would drop rows"
            return tensor[: shape[0]], f"{tensor.shape[0]} rows cut to {shape[0]}"
    role = role_of(name)
    if role in CONTEXT_ROLES:
        return _projection(tensor, shape, heads)
    if role in GATE_ROLES:
        return _gate(tensor, shape)
    return None, ""


def _projection(tensor: Tensor, shape: torch.Size, heads: int) -> tuple[Tensor | None, str]:
    """A context projection between its two forms: D x D shared by the heads, or hidden x hidden."""
    spread = torch.block_diag(*[tensor] * heads) if tensor.dim() == 2 else tensor.repeat(heads)
    if spread.shape == shape:
        return spread, "one head's projection repeated for every head, the same computation"
    if len(shape) == tensor.dim() and all(size * heads == had for size, had in zip(shape, tensor.shape)):
        block = tensor[tuple(slice(size) for size in shape)]
        again = torch.block_diag(*[block] * heads) if block.dim() == 2 else block.repeat(heads)
        if torch.equal(again, tensor):
            return block.clone(), "the one projection that all heads share"
        return None, "; the heads have projections of their own, which one for all cannot replace"
    return None, ""


def _gate(tensor: Tensor, shape: torch.Size) -> tuple[Tensor | None, str]:
    """A layer of the gate between one row for all heads and a row for each."""
    if tensor.dim() != len(shape) or tensor.shape[1:] != shape[1:]:
        return None, ""
    if tensor.shape[0] == 1:
        return tensor.expand(shape).clone(), "one gate repeated for every head, the same computation"
    if shape[0] == 1 and bool((tensor == tensor[:1]).all()):
        return tensor[:1].clone(), "the one gate that all heads share"
    return None, "; the heads have gates of their own, which one for all cannot replace"


def _is_zero_bias(name: str, tensor: Tensor) -> bool:
    return name.endswith(".bias") and role_of(name) in GATE_ROLES and not bool(tensor.any())


def _refuse_missing(source: Source, report: Report, permissions: Permissions) -> None:
    if permissions.initialize_missing:
        return
    by_part: dict[str, list[str]] = {}
    for name in report.missing:
        by_part.setdefault(part_of(name), []).append(name)
    parts_there = {part_of(name) for name in report.loaded}
    for part, names in by_part.items():
        if part == "backbone" or part in parts_there:
            total = len(names) + sum(part_of(name) == part for name in report.loaded)
            raise CheckpointError(
                f"{source.path}: lacks {len(names)} of the {total} {part} tensors of {report.model}: {some(names)}; "
                f"{asking_for('initialize_missing')} would start them at random"
            )


def _refuse_left_over(source: Source, left_over: list[str]) -> None:
    names = [name for name in left_over if part_of(name) == "backbone"]
    if names:
        raise CheckpointError(
            f"{source.path}: {some([source.called(name) for name in names])} would be left over: the model has no "
            "such backbone tensors"
        )
    biased = [n for n in left_over if role_of(n) in GATE_ROLES and not _is_zero_bias(n, source.tensors[n])]
    contexts = any(part_of(name) == "context" for name in left_over if name not in biased)
    if biased and not contexts:
        raise CheckpointError(
            f"{source.path}: {some([source.called(name) for name in biased])} would be left over; with "
            "lambda_bias=True the gates have biases"
        )
