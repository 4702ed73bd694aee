"""Assigns the tensors of a checkpoint to a model; reports missing, unexpected and reshaped tensors."""

import re
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES
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
    """Returns the tensors of a checkpoint that a model loads, and the report about every tensor.

    Args:
        source: the checkpoint.
        expected: shapes of the tensors of the model by their names in this package.
        model: name of the model, for the report.
        heads: number of attention heads of the model.
        initializer_range: standard deviation of the random rows that are added to the word embeddings.
        permissions: what the user permits if a tensor is missing or has another shape.
        not_needed: regular expressions for the names of tensors that the model does not use.

    Returns:
        The tensors that the checkpoint has, and zeros for gate biases that it lacks, by their names in this
        package; and the report.

    Raises:
        CheckpointError: the checkpoint does not fit the model. Tensors are missing: at least one of the backbone, or
            some but not all of another part (PARTS). Tensors are left over: backbone tensors, or nonzero biases for
            gates that have no bias in the model. Or a tensor has another shape, is not of a floating-point dtype, or
            contains NaN or infinity. `permissions` can allow missing tensors and some changes of shape.
    """
    report = Report(str(source.path), source.layout.describe(), model, unused=list(source.unused))
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        tensor = source.tensors.get(name)
        if tensor is None:
            tensor, how = _absent(name, shape, source)
        elif not tensor.is_floating_point():
            raise CheckpointError(
                f"{source.path}: {source.called(name)}: expected a floating-point dtype, got {tensor.dtype}"
            )
        else:
            tensor, how = _reshaped(name, tensor, shape, heads, initializer_range, permissions)
            if tensor is None and not (permissions.ignore_mismatched_sizes and part_of(name) == "head"):
                got = tuple(source.tensors[name].shape)
                raise CheckpointError(
                    f"{source.path}: {source.called(name)}: expected shape {tuple(shape)}, got {got}{how}"
                )
        if tensor is None:
            report.missing.append(name)
            continue
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{source.path}: {source.called(name)}: expected finite values, got NaN or infinity")
        state[name] = tensor
        report.loaded.append(name)
        if how:
            report.reshaped[name] = how
    left_over = [name for name in source.tensors if name not in expected]
    for name in left_over:
        if _is_zero_bias(name, source.tensors[name]):
            report.reshaped[name] = "dropped: a bias of zeros"
        elif part_of(name) == "pooler gate" or any(re.search(pattern, name) for pattern in not_needed):
            report.unused.append(source.called(name))
        else:
            report.unexpected.append(source.called(name))
    _check_missing(source, report, permissions)
    _check_unused(source, left_over)
    return state, report


def _absent(name: str, shape: torch.Size, source: Source) -> tuple[Tensor | None, str]:
    """Returns zeros and a note for a gate's bias if the checkpoint has only its weight; otherwise None and ""."""
    weight = source.tensors.get(name.removesuffix("bias") + "weight")
    if name.endswith(".bias") and role_of(name) in GATE_ROLES and weight is not None:
        return torch.zeros(shape, dtype=weight.dtype), "zeros for the bias of a gate without bias"
    return None, ""


def _reshaped(
    name: str, tensor: Tensor, shape: torch.Size, heads: int, initializer_range: float, permissions: Permissions
) -> tuple[Tensor | None, str]:
    """Returns the tensor in the shape of the model and a note of the change; or None and advice for the error."""
    if tensor.shape == shape:
        return tensor, ""
    if name == WORDS and tensor.shape[1:] == shape[1:]:
        if not permissions.resize_vocabulary:
            return None, f". Set {asking_for('resize_vocabulary')} to drop or add rows."
        if tensor.shape[0] > shape[0]:
            return tensor[: shape[0]], f"{tensor.shape[0]} rows cut to {shape[0]}"
        new = torch.empty(shape[0] - tensor.shape[0], shape[1]).normal_(std=initializer_range)
        return torch.cat([tensor, new.to(tensor)]), f"{tensor.shape[0]} rows and {len(new)} new ones"
    for table, rows, granted in (
        (POSITIONS, "positions", permissions.truncate_positions),
        (CONTEXTS, "contexts", permissions.truncate_contexts),
    ):
        if name == table and tensor.shape[1:] == shape[1:]:
            if tensor.shape[0] < shape[0]:
                return None, f". The checkpoint has no trained values for more {rows}."
            if not granted:
                return None, f". Set {asking_for(f'truncate_{rows}')} to drop rows."
            return tensor[: shape[0]], f"{tensor.shape[0]} rows cut to {shape[0]}"
    role = role_of(name)
    if role in CONTEXT_ROLES:
        return _projection(tensor, shape, heads)
    if role in GATE_ROLES:
        return _gate(tensor, shape)
    return None, ""


def _projection(tensor: Tensor, shape: torch.Size, heads: int) -> tuple[Tensor | None, str]:
    """Converts a context projection between (D, D), shared by the heads of size D, and (hidden, hidden).

    Returns:
        The tensor and a note of the change; or None and advice for the error ("" without advice).
    """
    if tensor.dim() != len(shape):
        return None, ""
    if all(had * heads == size for size, had in zip(shape, tensor.shape)):
        return _repeated(tensor, heads), "the projection of one head repeated for every head, the same computation"
    if all(size * heads == had for size, had in zip(shape, tensor.shape)):
        block = tensor[tuple(slice(size) for size in shape)]
        if torch.equal(_repeated(block, heads), tensor):
            return block.clone(), "reduced to one projection, because those of all heads are equal"
        return None, ". The heads have different projections, which one shared projection cannot replace."
    return None, ""


def _repeated(projection: Tensor, heads: int) -> Tensor:
    """Repeats a weight (D, D) as a block-diagonal matrix, or a bias (D), for every head."""
    return torch.block_diag(*[projection] * heads) if projection.dim() == 2 else projection.repeat(heads)


def _gate(tensor: Tensor, shape: torch.Size) -> tuple[Tensor | None, str]:
    """Converts a weight or bias of the gate between two forms: one row that all heads share, and one row per head.

    Returns:
        The tensor and a note of the change; or None and advice for the error ("" without advice).
    """
    if tensor.dim() != len(shape):
        return None, ""
    had, heads = tensor.shape[0], shape[0]
    if 1 not in (had, heads) and had != heads:
        advice = f". The gate has {had} heads, the model {heads}. Use a configuration with num_attention_heads={had}."
        return None, advice
    if tensor.shape[1:] != shape[1:]:
        return None, ""
    if had == 1:
        return tensor.expand(shape).clone(), "one gate repeated for every head, the same computation"
    if heads == 1 and bool((tensor == tensor[:1]).all()):
        return tensor[:1].clone(), "reduced to one gate, because those of all heads are equal"
    return None, ". The heads have different gates, which one shared gate cannot replace."


def _is_zero_bias(name: str, tensor: Tensor) -> bool:
    return name.endswith(".bias") and role_of(name) in GATE_ROLES and not bool(tensor.any())


def _check_missing(source: Source, report: Report, permissions: Permissions) -> None:
    if permissions.initialize_missing:
        return
    by_part: dict[str, list[str]] = {}
    for name in report.missing:
        by_part.setdefault(part_of(name), []).append(name)
    loaded_parts = {part_of(name) for name in report.loaded}
    for part, names in by_part.items():
        if part == "backbone" or part in loaded_parts:
            total = len(names) + sum(part_of(name) == part for name in report.loaded)
            raise CheckpointError(
                f"{source.path}: expected {total} {part} tensors of {report.model}, got {total - len(names)}, without "
                f"{some(names)}. Set {asking_for('initialize_missing')} to initialise them at random."
            )


def _check_unused(source: Source, left_over: list[str]) -> None:
    names = [name for name in left_over if part_of(name) == "backbone"]
    if names:
        raise CheckpointError(
            f"{source.path}: expected only backbone tensors that the model has, got "
            f"{some([source.called(name) for name in names])}. Use the model class and the sizes of the checkpoint."
        )
    biased = [n for n in left_over if role_of(n) in GATE_ROLES and not _is_zero_bias(n, source.tensors[n])]
    contexts = any(part_of(name) == "context" for name in left_over if name not in biased)
    if biased and not contexts:
        raise CheckpointError(
            f"{source.path}: expected gates without biases, got {some([source.called(name) for name in biased])}. Set "
            "lambda_bias=True."
        )
