"""Every Triton kernel in every variant of a call, on tiles that are small enough for calls with few tokens.

Each case runs with single-tile rows, two blocks of queries per head, and again with tiles of 16 x 16. On a CPU,
test_triton_interpreted.py runs this file in Triton's interpreter; on a GPU the kernels are compiled.
"""

import contextlib
from dataclasses import replace

import pytest
import torch
from judging import check

import qacg_kernels as qk
from qacg_kernels.testing.inputs import Case

_MASKED = dict(mask="boolean", float32_gate=True)
VARIANTS = {
    "lambda": dict(queries=39),
    "row gate": dict(queries=35, head_dim=20, gate="shared", bias="shared", lambda_gradient=True),
    "row gate, one row": dict(head_dim=20, gate="one_row", bias="one_row", context_bias="per_head", float32_gate=True),
    "row gate, per head": dict(head_dim=8, gate="per_head", bias="per_head", beta=0.7, gamma=1.3, is_causal=True),
    "column gate": dict(head_dim=33, gate="per_head", bias="per_head", context_bias="shared", form="column", **_MASKED),
    "column gate, dropout": dict(gate="shared", form="column", dropout_p=0.3, key_lengths=(21,)),
    "boolean mask, empty rows": dict(head_dim=24, gate="shared", mask="boolean_empty_rows", dropout_p=0.2),
    "boolean mask, strides of zero": dict(mask="boolean_expanded", layout="heads_inside"),
    "boolean mask, two dims": dict(mask="boolean_two_dims", gate="shared", layout="shared_heads"),
    "additive mask, by head": dict(mask="additive", gate="shared"),
    "additive mask, by query": dict(mask="additive_queries", layout="fused_projection"),
    "additive mask, one dim": dict(mask="additive_row", is_causal=True, layout="strided", head_dim=12),
    "additive mask, by key": dict(mask="minus_10000", batch=2, gate="shared", bias="shared", head_dim=20),
    "additive mask, by key, large": dict(mask="plus_300", batch=2, is_causal=True, key_lengths=(19, 27)),
    "boolean mask, by key": dict(mask="boolean_keys", batch=2, gate="per_head", dropout_p=0.2, layout="heads_inside"),
    "boolean mask, within": dict(mask="boolean_keys_within", batch=2, keys=40, is_causal=True, dropout_p=0.2),
    "additive mask, single keys": dict(mask="additive_keys", batch=2, keys=70, gate="shared", form="column"),
    "boolean mask, no key": dict(mask="none_visible", gate="shared", form="column"),
    "minus infinity": dict(mask="minus_infinity", gate="shared", bias="per_head"),
    "lowest number": dict(mask="lowest", gate="shared"),
    "lengths": dict(batch=3, key_lengths=(0, 1, 17), gate="shared", bias="shared", layout="rows_first"),
    "lengths, causal": dict(batch=2, key_lengths=(19, 27), is_causal=True),
    "one key": dict(queries=18, keys=1),
    "cross, more keys": dict(queries=18, keys=30),
    "cross, more queries": dict(queries=33, keys=20, is_causal=True, dropout_p=0.1),
    # Minus infinity of a hidden entry times a scale of zero would be NaN, so such a scale is not folded.
    "scale of zero, lengths": dict(batch=2, key_lengths=(5, 27), scale=0.0, is_causal=True),
    "own scale and alpha": dict(scale=-0.2, quasi_scale=-1.5, gate="shared", head_dim=64),
    "packed, row gate": dict(sequences=(19, 0, 1), gate="shared", bias="shared", head_dim=20, dropout_p=0.25),
    "packed, lambda": dict(sequences=(2, 27), is_causal=True, layout="fused_projection"),
    "packed, column gate": dict(sequences=(1, 21), gate="per_head", context_bias="shared", form="column"),
    "bias, lambda": dict(quasi_bias="per_query", head_dim=20, scale=-0.2),
    "bias, row gate": dict(batch=2, quasi_bias="per_sequence", gate="shared", bias="shared", dropout_p=0.2),
    "bias, column gate": dict(quasi_bias="per_query", gate="shared", form="column", mask="boolean_empty_rows"),
    "bias, additive mask": dict(quasi_bias="per_head", mask="additive_queries", is_causal=True),
    "bias, mask by key": dict(batch=2, quasi_bias="per_query", mask="minus_10000", layout="heads_inside"),
    "bias, scale of zero": dict(batch=2, quasi_bias="one", key_lengths=(5, 27), scale=0.0),
    "bias, packed": dict(sequences=(19, 0, 1), quasi_bias="per_query", is_causal=True, layout="fused_projection"),
}
CASES = [Case(name, **dict(batch=1, queries=27) | options) for name, options in VARIANTS.items()]


@contextlib.contextmanager
def tiles(device, whole_keys, **changes):
    """Changes a device's tile table: single-tile rows have up to `whole_keys` keys; `changes` apply to all entries."""
    from qacg_kernels.backends.triton import tile_tables

    def changed(entry):
        whole = dict(block_n=whole_keys) if entry.kernel.startswith("whole_row") else {}
        return replace(entry, num_warps=4, num_stages=1, **changes | whole)

    table = tile_tables.table_for(torch.device(device))
    with tile_tables.trial(replace(table, entries=tuple(map(changed, table.entries)))):
        yield


@pytest.fixture(autouse=True)
def triton_only(kernel):
    if kernel != "triton":
        pytest.skip("this backend has no tile tables")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("form", ["whole", "tiled"])
def test_variants_meet_the_error_rule(form, case, kernel, dtype, device):
    heads = 2 if form == "whole" or case.gate == "per_head" else 1  # tiles are slow in the interpreter
    with tiles(device, 64 if form == "whole" else 16, block_m=16, block_n=16):
        check(replace(case, name=f"{form}: {case.name}", heads=heads), kernel, dtype, device)


# The width of a tile determines which words of a counter its entries use.
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_dropout_meets_the_error_rule_at_any_tile_width(width, kernel, dtype, device):
    case = Case(f"tiles of {width}", batch=1, heads=1, queries=16, keys=150, dropout_p=0.4)
    with tiles(device, 16, block_m=16, block_n=width):
        check(case, kernel, dtype, device)


@pytest.mark.parametrize("width", [64, 128])
def test_short_sequences_use_a_part_of_the_tile(width, kernel, dtype, device):
    """The sequences use a quarter of the tile, a half, and the whole tile, in forward and backward."""
    lengths = (width // 4, width // 2, width // 2 + 9)
    options = dict(batch=3, heads=1, head_dim=16, dropout_p=0.2, gate="shared")
    cases = (
        Case(f"parts of {width}", queries=16, keys=lengths[-1], key_lengths=lengths, **options | dict(gate="lambda")),
        Case(f"packed parts of {width}", sequences=lengths, **options),
        Case(f"key mask in {width}", queries=lengths[-1], mask="additive_keys", **options),
    )
    with tiles(device, width, block_m=64, block_n=16):
        for case in cases:
            check(case, kernel, dtype, device)


@pytest.mark.parametrize("form", ["whole", "tiled"])
def test_large_summand_of_all_scores_keeps_float32_weights(form, kernel, device):
    """The softmax weights of a row sum to 1 in the backward too: the gradient of all values is that of all outputs."""
    query, key, value, context_query, context_key = torch.ones(5, 1, 1, 40, 16, device=device).unbind()
    value.requires_grad_()
    mask = torch.full((40, 40), 1e5, device=device)
    with tiles(device, 64 if form == "whole" else 16, block_m=16, block_n=16):
        out = qk.quasi_attention(
            query, key, value, context_query, context_key, value.new_zeros(1, 1, 40), attn_mask=mask, backend=kernel
        )
        out.sum().backward()
    torch.testing.assert_close(value.grad.sum(2), torch.full((1, 1, 16), 40.0, device=device), rtol=1e-5, atol=0)
