"""Checks that the builds of `triton_builds` compile the same kernels as the calls of a model.

`python tests/support/launched_calls.py` prints one JSON object: by build, the functions that a model's call launched,
and the differences between their Descriptions and the build's. It replaces Triton's driver, so it requires a separate
process without the interpreter.
"""

import json
from dataclasses import dataclass, replace

import torch
import triton
from triton_builds import VARIANTS, Build, describe_build, length_of, products_in_tf32, table_of
from triton_resources import Description, describing

import qacg_kernels as qk
from benchmarks.absent_gpu import AbsentGPU
from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton import tile_tables

# Other sizes than those of the builds, because a Description must be the same for calls of other sizes.
BATCH, HEADS, TILED_LENGTH = 3, 20, 384


@dataclass(frozen=True)
class Kind:
    """A kind of call by a model's attention, and the variant of the builds that represents it."""

    variant: str
    gate: str = "lambda"  # or "row", "column"
    per_head: bool = False
    bias: bool = False
    packed: bool = False
    causal: bool = False
    lengths: bool = False
    mask: str | None = None  # or "boolean", "additive", "boolean keys", "additive keys"
    dropout_p: float = 0.0
    heads: int = HEADS
    queries: int | None = None
    shortened_by: int = 0
    lambda_gradient: bool = False
    quasi_bias: bool = False
    gradient: bool = True
    dtype: torch.dtype = torch.bfloat16
    head_dims: tuple[int, ...] = (64,)


_HEAVY = dict(per_head=True, bias=True, causal=True, lengths=True, mask="additive", dropout_p=0.1)
_ROW = dict(gate="row", bias=True, causal=True, lengths=True)
KINDS = (
    Kind("lambda"),
    Kind("row gate, lengths, causal", **_ROW, head_dims=(64, 128, 256, 40, 1)),
    Kind("row gate, lengths, causal", **_ROW, dtype=torch.float32),
    Kind("packed", gate="row", per_head=True, packed=True, causal=True),
    Kind("boolean mask", mask="boolean"),
    Kind("key mask", gate="row", bias=True, causal=True, mask="additive keys"),
    Kind("boolean keys", mask="boolean keys"),
    Kind("boolean mask, dropout", mask="boolean", dropout_p=0.1),
    Kind("boolean keys, dropout", mask="boolean keys", dropout_p=0.1),
    Kind("row gate, all at once", gate="row", **_HEAVY, lambda_gradient=True),
    Kind("column gate, all at once", gate="column", **_HEAVY, head_dims=(64, 72)),
    Kind("packed, dropout", gate="row", bias=True, packed=True, dropout_p=0.1),
    Kind("one head, packed", gate="row", per_head=True, bias=True, packed=True, heads=1),
    Kind("one query", gate="column", per_head=True, bias=True, queries=1),
    Kind("odd sizes", gate="row", shortened_by=5),
    Kind("no gradient", gradient=False),
    Kind("quasi bias", **_ROW, quasi_bias=True),
    Kind("quasi bias, key mask", gate="row", bias=True, mask="additive keys", dropout_p=0.1, quasi_bias=True),
    Kind("quasi bias, column gate", gate="column", **_HEAVY, quasi_bias=True),
    Kind("TF32", **_ROW, dtype=torch.float32),
)


def model_call(kind: Kind, head_dim: int, length: int) -> None:
    """Makes a model's call: projections, the attention, and the backward."""
    lengths = [length, length // 3, length - 7]
    keys = length
    queries = kind.queries or length
    tokens = sum(lengths)

    def projected(rows: int) -> torch.Tensor:
        lead = (tokens,) if kind.packed else (BATCH, rows)
        x = torch.zeros(*lead, kind.heads * head_dim, dtype=kind.dtype, requires_grad=kind.gradient)
        heads = x.view(*lead, kind.heads, head_dim)
        return heads if kind.packed else heads.transpose(1, 2)

    query, context_query = projected(queries), projected(queries)
    key, value, context_key = (projected(keys) for _ in range(3))
    if kind.gate == "lambda":
        x = torch.zeros(BATCH, queries, kind.heads, dtype=kind.dtype, requires_grad=kind.gradient)
        gate = x.transpose(1, 2)
    else:
        head = (kind.heads,) if kind.per_head else ()
        vectors = [torch.zeros(*head, head_dim, dtype=kind.dtype, requires_grad=True) for _ in range(4)]
        biases = [torch.zeros(head, dtype=kind.dtype, requires_grad=True) if kind.bias else None for _ in range(2)]
        gate = qk.GateParameters(*vectors, *biases, form=kind.gate)
    options = dict(
        is_causal=kind.causal, dropout_p=kind.dropout_p, return_lambda=kind.lambda_gradient, backend="triton"
    )
    inputs = (query, key, value, context_query, context_key, gate)
    if kind.packed:
        offsets = torch.tensor([0, *lengths]).cumsum(0).int()
        out = qk.quasi_attention_varlen(*inputs, cu_seqlens=offsets, max_seqlen=length, **options)
    else:
        if kind.lengths:
            options["key_lengths"] = torch.tensor(lengths)
        if kind.mask == "boolean":
            options["attn_mask"] = torch.ones(BATCH, 1, queries, keys, dtype=torch.bool)
        elif kind.mask == "additive":
            options["attn_mask"] = torch.zeros(1, kind.heads, queries, keys, dtype=kind.dtype)
        elif kind.mask == "boolean keys":
            options["attn_mask"] = torch.ones(BATCH, 1, 1, keys, dtype=torch.bool)
        elif kind.mask == "additive keys":
            options["attn_mask"] = torch.zeros(BATCH, 1, 1, keys, dtype=kind.dtype)
        if kind.quasi_bias:
            options["quasi_bias"] = torch.zeros(BATCH, kind.heads, queries)
        out = qk.quasi_attention(*inputs, **options)
    if not kind.gradient:
        return
    out, gate_out = out if kind.lambda_gradient else (out, None)
    merged = (out if kind.packed else out.transpose(1, 2)).flatten(-2)
    loss = (merged @ torch.zeros(merged.shape[-1], dtype=kind.dtype)).sum()
    if gate_out is not None:
        loss = loss + (gate_out * torch.ones_like(gate_out)).sum()
    loss.backward()


def builds_of(kind: Kind, head_dim: int) -> list[Build]:
    """The builds that represent the launches of a model's call."""
    roles = ("whole_row_forward", "whole_row_backward", "key_gradients") if kind.gradient else ("tiled_forward",)
    return [Build("sm_90", role, kind.dtype, head_dim, kind.variant) for role in roles]


def launched(kind: Kind, build: Build) -> dict[str, list[Description]]:
    """Returns the Descriptions of a model's launches, in a call of the lengths and gradients that the build is for."""
    table = table_of(build)
    whole = build.kernel.startswith("whole_row")
    length = (length_of(build, table) if whole else TILED_LENGTH) - kind.shortened_by
    triton.runtime.driver.set_active(AbsentGPU("sm_90"))
    differentiable = kind.gradient and build.kernel != "whole_row_forward"
    tf32 = VARIANTS[kind.variant].get("tf32", False)
    with describing() as found, tile_tables.trial(table), products_in_tf32(tf32):
        if differentiable:
            model_call(kind, build.head_dim, length)
        else:
            with torch.no_grad():
                model_call(replace(kind, gradient=False), build.head_dim, length)
    return found


def differences(real: dict[str, list[Description]], built: dict[str, list[Description]]) -> list[str]:
    """Lists the differences between the Descriptions of two calls, as text."""
    if {name: len(calls) for name, calls in real.items()} != {name: len(calls) for name, calls in built.items()}:
        return [f"launched {sorted(real)}, built {sorted(built)}"]
    found = []
    for name, calls in real.items():
        for one, other in zip(calls, built[name]):
            for part in Description._fields:
                mine, its = flat(getattr(one, part)), flat(getattr(other, part))
                found += [
                    f"{name}: {part} of {path}: launched {mine.get(path)!r}, built {its.get(path)!r}"
                    for path in sorted(mine.keys() | its.keys())
                    if mine.get(path) != its.get(path)
                ]
    return found


def flat(value: object, path: str = "") -> dict[str, object]:
    """Returns the leaves of nested dicts and tuples, by path."""
    if isinstance(value, dict):
        members = value.items()
    elif hasattr(value, "_asdict"):
        members = value._asdict().items()
    else:
        return {path: value}
    return {k: v for name, member in members for k, v in flat(member, f"{path} {name}").items()}


def main() -> None:
    backend.missing, backend.not_for, backend.DEVICE = list, lambda device: [], "cpu"
    found = {}
    for kind in KINDS:
        for head_dim in kind.head_dims:
            for build in builds_of(kind, head_dim):
                real, built = launched(kind, build), describe_build(build)
                found[str(build)] = {"functions": sorted(real), "differences": differences(real, built)}
    print(json.dumps({"calls": found, "packed beside one head": _differences_of_unlike_calls()}))


def _differences_of_unlike_calls() -> list[str]:
    """Returns the differences of two calls that must differ: strides and a size are 1 in only one of them."""
    packed = next(kind for kind in KINDS if kind.variant == "packed, dropout")
    build = builds_of(packed, 64)[0]
    return differences(launched(packed, build), launched(replace(packed, heads=1), build))


if __name__ == "__main__":
    main()
