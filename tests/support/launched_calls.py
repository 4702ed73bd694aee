"""Checks that the builds of `triton_builds` compile the same kernels as the calls of a model.

`python tests/support/launched_calls.py` prints one JSON object: by build, the functions that a model's call launched,
and the differences between their Descriptions and the build's. It replaces Triton's driver, so it requires a separate
process without the interpreter.
"""

import json

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


# Variants of the builds that are left out, and those with other dtypes or head sizes than bfloat16 and 64.
LEFT_OUT = ("TF32, all at once",)  # consists of "TF32" and "column gate, all at once"
OTHERS = {
    "row gate, lengths, causal": [*((torch.bfloat16, d) for d in (64, 128, 256, 40, 1)), (torch.float32, 64)],
    "column gate, all at once": [(torch.bfloat16, 64), (torch.bfloat16, 72)],
    "TF32": [(torch.float32, 64)],
}


def model_call(build: Build, length: int, heads: int, gradient: bool) -> None:
    """Makes a model's call of the build's variant: projections, the attention, and the backward."""
    form, dtype, head_dim = VARIANTS[build.variant], build.dtype, build.head_dim
    lengths = [length, length // 3, length - 7]
    packed, queries = form.get("packed"), form.get("queries", length)

    def projected(rows: int) -> torch.Tensor:
        lead = (sum(lengths),) if packed else (BATCH, rows)
        x = torch.zeros(*lead, heads * head_dim, dtype=dtype, requires_grad=gradient)
        heads_of_x = x.view(*lead, heads, head_dim)
        return heads_of_x if packed else heads_of_x.transpose(1, 2)

    query, context_query = projected(queries), projected(queries)
    key, value, context_key = (projected(length) for _ in range(3))
    if "gate" not in form:
        x = torch.zeros(BATCH, queries, heads, dtype=dtype, requires_grad=gradient)
        gate = x.transpose(1, 2)
    else:
        head = (heads,) if form["gate"] == "per_head" else ()
        vectors = [torch.zeros(*head, head_dim, dtype=dtype, requires_grad=True) for _ in range(4)]
        biases = [torch.zeros(head, dtype=dtype, requires_grad=True) if "bias" in form else None for _ in range(2)]
        gate = qk.GateParameters(*vectors, *biases, form=form.get("form", "row"))
    returns_lambda = form.get("lambda_gradient", False)
    options = {name: form[name] for name in ("is_causal", "dropout_p") if name in form}
    options |= dict(return_lambda=returns_lambda, backend="triton")
    inputs = (query, key, value, context_query, context_key, gate)
    if packed:
        offsets = torch.tensor([0, *lengths]).cumsum(0).int()
        out = qk.quasi_attention_varlen(*inputs, cu_seqlens=offsets, max_seqlen=length, **options)
    else:
        if form.get("key_lengths"):
            options["key_lengths"] = torch.tensor(lengths)
        masks = {
            "boolean": lambda: torch.ones(BATCH, 1, queries, length, dtype=torch.bool),
            "additive": lambda: torch.zeros(1, heads, queries, length, dtype=dtype),
            "boolean_keys": lambda: torch.ones(BATCH, 1, 1, length, dtype=torch.bool),
            "additive_keys": lambda: torch.zeros(BATCH, 1, 1, length, dtype=dtype),
        }
        if "mask" in form:
            options["attn_mask"] = masks[form["mask"]]()
        if "quasi_bias" in form:
            options["quasi_bias"] = torch.zeros(BATCH, heads, queries)
        out = qk.quasi_attention(*inputs, **options)
    if not gradient:
        return
    out, lam = out if returns_lambda else (out, None)
    merged = (out if packed else out.transpose(1, 2)).flatten(-2)
    loss = (merged @ torch.zeros(merged.shape[-1], dtype=dtype)).sum()
    if lam is not None:
        loss = loss + (lam * torch.ones_like(lam)).sum()
    loss.backward()


def builds() -> list[Build]:
    """The builds that represent the launches of a model's calls."""
    found = []
    for variant, form in VARIANTS.items():
        trains = form.get("saves", True)
        roles = ("whole_row_forward", "whole_row_backward", "key_gradients") if trains else ("tiled_forward",)
        for dtype, head_dim in OTHERS.get(variant, [(torch.bfloat16, 64)]):
            found += [Build("sm_90", role, dtype, head_dim, variant) for role in roles if variant not in LEFT_OUT]
    return found


def launched(build: Build, heads: int | None = None) -> dict[str, list[Description]]:
    """Returns the Descriptions of a model's launches, in a call of the lengths and gradients that the build is for."""
    table, form = table_of(build), VARIANTS[build.variant]
    whole = build.kernel.startswith("whole_row")
    length = (length_of(build, table) if whole else TILED_LENGTH) - form.get("shortened_by", 0)
    gradient = form.get("saves", True) and build.kernel != "whole_row_forward"
    triton.runtime.driver.set_active(AbsentGPU("sm_90"))
    tf32 = products_in_tf32(form.get("tf32", False))
    with describing() as found, tile_tables.trial(table), tf32, torch.set_grad_enabled(gradient):
        model_call(build, length, heads or form.get("heads", HEADS), gradient)
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
    for build in builds():
        real = launched(build)
        found[str(build)] = {"functions": sorted(real), "differences": differences(real, describe_build(build))}
    # Two calls that must differ: strides and a size are 1 in only one of them.
    packed = next(build for build in builds() if build.variant == "packed, dropout")
    print(json.dumps({"calls": found, "packed beside one head": differences(launched(packed), launched(packed, 1))}))


if __name__ == "__main__":
    main()
