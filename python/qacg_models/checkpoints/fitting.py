"""Assigns the tensors of a checkpoint to a model: converts shapes, and finds missing and unexpected tensors.

Every tensor that does not fit raises CheckpointError, unless `Permissions` allow it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES
from qacg_models.checkpoints.files import Report, Source, some
from qacg_models.checkpoints.names import CONTEXTS, part_of, role_of
from qacg_models.errors import CheckpointError


@dataclass(frozen=True)
class Permissions:
    """What loading may do to a checkpoint that does not fit; nothing by default.

    Attributes:
        initialize_missing: initialise at random the missing tensors of the encoder, and of parts that the checkpoint
            contains incompletely. (Parts that it does not contain at all need no permission.)
        truncate_contexts: drop the last context embeddings.
        ignore_mismatched_sizes: initialise the head at random if the checkpoint's head has another size.
    """

    initialize_missing: bool = False
    truncate_contexts: bool = False
    ignore_mismatched_sizes: bool = False


NOTHING = Permissions()


def asking_for(permission: str) -> str:
    """Returns a permission with its flag: `truncate_contexts (qacg convert --allow truncate-contexts)`."""
    return f"{permission} (qacg convert --allow {permission.replace('_', '-')})"


def fit(
    source: Source,
    expected: Mapping[str, torch.Size],
    *,
    model: str,
    permissions: Permissions,
    part: Callable[[str], str] = part_of,
    required: str = "backbone",
    not_needed: str | None = None,
    buffers: Collection[str] = (),
) -> tuple[dict[str, Tensor], Report]:
    """Returns the tensors of a checkpoint that a model loads, and the report about every tensor.

    Args:
        source: the checkpoint.
        expected: shapes of the tensors of the model by their names in this package.
        model: name of the model, for the report.
        permissions: what the user permits.
        part: returns the part of the model for the name of a tensor. One of the parts is "head".
        required: the part that the checkpoint must contain.
        not_needed: regular expression for the names of tensors that the model does not use.
        buffers: names of tensors that the model computes, which the checkpoint may lack.

    Raises:
        CheckpointError: the checkpoint does not fit the model. Tensors are missing: at least one of the required part,
            or some but not all of another part. Tensors of the required part are left over. Or a tensor has another
            shape, is not of a floating-point dtype, or contains NaN or infinity.
    """
    report = Report(str(source.path), source.layout.describe(), model, unused=list(source.unused))
    state: dict[str, Tensor] = {}
    for name, shape in expected.items():
        tensor, place = source.tensors.get(name), f"{source.path}: {source.called(name)}"
        in_head = part(name) == "head"
        if tensor is None or (tensor.shape != shape and in_head and permissions.ignore_mismatched_sizes):
            report.missing.append(name)
            continue
        if not tensor.is_floating_point() and name not in buffers:
            raise CheckpointError(f"{place}: expected a floating-point dtype, got {tensor.dtype}")
        if tensor.shape != shape:
            hint = f". Set {asking_for('ignore_mismatched_sizes')} to initialise it at random." if in_head else ""
            raise CheckpointError(f"{place}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}{hint}")
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{place}: expected finite values, got NaN or infinity")
        state[name] = tensor
        report.loaded.append(name)
    left_over = [name for name in source.tensors if name not in expected]
    for name in left_over:
        unused = part(name) == "pooler gate" or (not_needed is not None and re.search(not_needed, name))
        (report.unused if unused else report.unexpected).append(source.called(name))
    _check_left_over(source, report, [name for name in left_over if part(name) == required])
    if not permissions.initialize_missing:
        _check_missing(source, report, permissions, part, required, buffers)
    return state, report


def _check_left_over(source: Source, report: Report, names: list[str]) -> None:
    if names := [called for name in names if (called := source.called(name)) in report.unexpected]:
        raise CheckpointError(
            f"{source.path}: expected only encoder tensors that the model has, got {some(names)}. Use the model class "
            "and the sizes of the checkpoint."
        )


def _check_missing(
    source: Source,
    report: Report,
    permissions: Permissions,
    part: Callable[[str], str],
    required: str,
    buffers: Collection[str],
) -> None:
    loaded = [part(name) for name in report.loaded]
    missing: dict[str, list[str]] = {}
    for name in report.missing:
        if name not in buffers:
            missing.setdefault(part(name), []).append(name)
    for kind, names in missing.items():
        new_head = kind == "head" and permissions.ignore_mismatched_sizes
        if kind == required or (kind in loaded and not new_head):
            had = loaded.count(kind)
            raise CheckpointError(
                f"{source.path}: expected {had + len(names)} {kind} tensors of {report.model}, got {had}, without "
                f"{some(names)}. Set {asking_for('initialize_missing')} to initialise them at random."
            )


def fit_encoder(
    source: Source,
    expected: Mapping[str, torch.Size],
    *,
    model: str,
    heads: int,
    permissions: Permissions,
    not_needed: str | None = None,
) -> tuple[dict[str, Tensor], Report]:
    """Fits the checkpoint of a BERT, as `fit` does, and converts between the variants of the context layers.

    The contexts can be cut to the first ones. A context projection and a gate can be shared by all heads, or have one
    row per head. The bias of a gate can be absent, which is the same as zeros. `heads` is the model's number of
    attention heads.
    """
    tensors, notes = dict(source.tensors), {}
    for name, shape in expected.items():
        tensor, role = tensors.get(name), role_of(name)
        if tensor is None:
            weight = tensors.get(name.removesuffix("bias") + "weight")
            if role in GATE_ROLES and name.endswith(".bias") and weight is not None:
                tensors[name] = torch.zeros(shape, dtype=weight.dtype)
                notes[name] = "zeros for the bias of a gate without bias"
            continue
        if tensor.shape == shape or tensor.dim() != len(shape):
            continue
        converted, how = None, ""
        if name == CONTEXTS:
            converted, how = _first_contexts(tensor, shape, permissions)
        elif role in CONTEXT_ROLES:
            converted, how = _projection(tensor, shape, heads)
        elif role in GATE_ROLES:
            converted, how = _gate(tensor, shape)
        if converted is not None:
            tensors[name], notes[name] = converted, how
        elif how:
            raise CheckpointError(
                f"{source.path}: {source.called(name)}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}. {how}"
            )
    if any(role_of(name) in GATE_ROLES for name in expected):
        for name in [name for name in tensors if role_of(name) in GATE_ROLES and name not in expected]:
            if bool(tensors.pop(name).any()):
                raise CheckpointError(
                    f"{source.path}: expected gates without biases, got {source.called(name)}. Set lambda_bias=True."
                )
            notes[name] = "dropped: a bias of zeros"
    fitted = replace(source, tensors=tensors)
    state, report = fit(fitted, expected, model=model, permissions=permissions, not_needed=not_needed)
    report.reshaped = notes
    return state, report


def _first_contexts(tensor: Tensor, shape: torch.Size, permissions: Permissions) -> tuple[Tensor | None, str]:
    """Returns the first rows and a note; or None and advice for the error."""
    if tensor.shape[1:] != shape[1:]:
        return None, ""
    if tensor.shape[0] < shape[0]:
        return None, "The checkpoint has no trained values for more contexts."
    if not permissions.truncate_contexts:
        return None, f"Set contexts to {tensor.shape[0]} names, or fewer with {asking_for('truncate_contexts')}."
    return tensor[: shape[0]], f"{tensor.shape[0]} rows cut to {shape[0]}"


def _projection(tensor: Tensor, shape: torch.Size, heads: int) -> tuple[Tensor | None, str]:
    """Converts a context projection between (D, D), shared by the heads of size D, and (hidden, hidden)."""
    if all(had * heads == size for size, had in zip(shape, tensor.shape)):
        return _repeated(tensor, heads), "the projection of one head repeated for every head, the same computation"
    if all(size * heads == had for size, had in zip(shape, tensor.shape)):
        block = tensor[tuple(slice(size) for size in shape)]
        if torch.equal(_repeated(block, heads), tensor):
            return block.clone(), "reduced to one projection, because those of all heads are equal"
        return None, "The heads have different projections, which one shared projection cannot replace."
    return None, ""


def _repeated(projection: Tensor, heads: int) -> Tensor:
    """Repeats a weight (D, D) as a block-diagonal matrix, or a bias (D), for every head."""
    return torch.block_diag(*[projection] * heads) if projection.dim() == 2 else projection.repeat(heads)


def _gate(tensor: Tensor, shape: torch.Size) -> tuple[Tensor | None, str]:
    """Converts a weight or bias of the gate between two forms: one row that all heads share, and one row per head."""
    had, heads = tensor.shape[0], shape[0]
    if 1 not in (had, heads) and had != heads:
        return None, f"The gate has {had} heads, the model {heads}. Use a configuration with num_attention_heads={had}."
    if tensor.shape[1:] != shape[1:]:
        return None, ""
    if had == 1:
        return tensor.expand(shape).clone(), "one gate repeated for every head, the same computation"
    if heads == 1 and bool((tensor == tensor[:1]).all()):
        return tensor[:1].clone(), "reduced to one gate, because those of all heads are equal"
    return None, "The heads have different gates, which one shared gate cannot replace."
