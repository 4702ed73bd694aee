"""Every invalid argument raises an error with its name, the expected and the actual value."""

import re
from dataclasses import replace

import pytest
import torch
from errors import error_cases, raises

import qacg_kernels as qk

B, H, L, S, D = 2, 3, 4, 4, 5
T = 9
NESTED = torch.nested.nested_tensor([torch.zeros(2, 3), torch.zeros(1, 3)])


def normal(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def of_dtype(dtype):
    return qk.GateParameters(*(normal(D).to(dtype) for _ in range(4)))


def vectors(**changes):
    gate = qk.GateParameters(*(normal(D) for _ in range(4)), query_bias=normal(), key_bias=normal(H))
    return replace(gate, **changes)


def dense_arguments():
    rows = {name: normal(B, H, L, D) for name in ("query", "key", "value", "context_query", "context_key")}
    return rows | {"gate": normal(B, H, L)}


def packed_arguments():
    rows = {name: normal(T, H, D) for name in ("query", "key", "value", "context_query", "context_key")}
    return rows | {"gate": normal(T, H), "cu_seqlens": torch.tensor([0, 4, 9]), "max_seqlen": 5}


# Changes of a valid call, the error, and parts of its message.
BAD_IN_BOTH = [
    ({"query": None}, TypeError, ["query", "got NoneType", "expected a torch.Tensor"]),
    ({"query": torch.ones(B, H, L, D, dtype=torch.int64)}, TypeError, ["query", "torch.int64", "expected", "float32"]),
    ({"key": normal(B, H, S, D).double()}, TypeError, ["key", "torch.float64", "expected dtype torch.float32"]),
    ({"value": torch.empty(B, H, S, D, device="meta")}, ValueError, ["value", "meta", "expected device cpu"]),
    ({"query": normal(D)}, ValueError, ["query", "(5)", "expected", "dimensions"]),
    ({"gate": 0.5}, TypeError, ["gate", "float", "expected a lambda tensor or GateParameters"]),
    ({"gate": normal(B, H, L).bfloat16()}, TypeError, ["gate", "bfloat16", "expected dtype torch.float32"]),
    ({"gate": normal(B, H, L + 1)}, ValueError, ["gate", "(2, 3, 5)", "expected"]),
    ({"gate": vectors(query=None)}, TypeError, ["gate.query", "NoneType", "expected"]),
    ({"gate": vectors(query=normal(D + 1))}, ValueError, ["gate.query", "(6)", "expected shape (5) or (1, 5) or (3,"]),
    ({"gate": vectors(context_query=normal(D).double())}, TypeError, ["gate.context_query", "float64", "expected"]),
    ({"gate": vectors(query_bias=0.5)}, TypeError, ["gate.query_bias", "float", "expected"]),
    ({"gate": vectors(key_bias=normal(H + 1))}, ValueError, ["gate.key_bias", "(4)", "shape () or (1) or (3)"]),
    ({"gate": vectors(context_key_bias=normal(1, H))}, ValueError, ["gate.context_key_bias", "(1, 3)", "expected"]),
    ({"gate": vectors(key=normal(D).half())}, TypeError, ["gate.key", "float16", "expected dtype torch.float32"]),
    ({"gate": of_dtype(torch.bfloat16)}, TypeError, ["gate.query", "bfloat16", "expected dtype torch.float32"]),
    ({"gate": vectors(form="diagonal")}, ValueError, ["gate.form", "'diagonal'", "expected", "'row'", "'column'"]),
    ({"key": torch.zeros(2, 3, 7, 4).to_sparse()}, TypeError, ["key", "sparse", "expected a dense tensor"]),
    ({"query": NESTED}, TypeError, ["query", "a nested one", "expected a dense tensor", "quasi_attention_varlen"]),
    ({"dropout_p": "0.1"}, TypeError, ["dropout_p", "str", "expected a number"]),
    ({"scale": torch.ones(())}, TypeError, ["scale", "a tensor", "expected a number", "scale.item()"]),
    ({"gate": vectors(gamma=torch.ones((), requires_grad=True))}, TypeError, ["gate.gamma", "a tensor", "gradient"]),
    ({"scale": 1e39}, ValueError, ["scale", "expected a number that float32 can store, got 1e+39"]),
    ({"scale": 10**400}, ValueError, ["scale", "expected a number that a float can store"]),
    ({"is_causal": "no"}, TypeError, ["is_causal", "'no'", "expected True or False"]),
    ({"is_causal": torch.tensor([True, False]), "quasi_bias": "-log(keys)"}, TypeError, ["is_causal", "True or False"]),
    ({"dropout_seed": torch.tensor(3).to_sparse()}, TypeError, ["dropout_seed", "sparse", "expected an int64 scalar"]),
    ({"dropout_p": 1.0}, ValueError, ["dropout_p", "1.0", "expected", "[0, 1)"]),
    ({"dropout_p": float("nan")}, ValueError, ["dropout_p", "nan", "expected", "[0, 1)"]),
    ({"dropout_seed": torch.tensor(3.0)}, TypeError, ["dropout_seed", "expected an int64 scalar"]),
    ({"backend": "gpu"}, ValueError, ["backend", "expected", "'reference'", "'gpu'"]),
    ({"backend": []}, TypeError, ["backend", "expected a str", "got []"]),
    ({"return_lambda": "no"}, TypeError, ["return_lambda", "expected True or False", "'no'"]),
    ({"backend": "triton"}, RuntimeError, ["backend: expected a backend that supports this call", "triton"]),
    (
        {"gate": vectors(form="column"), "return_lambda": True},
        ValueError,
        ["return_lambda", "column gate", "attention_maps"],
    ),
]

BAD_IN_DENSE = [
    ({"query": normal(H, L, D)}, ValueError, ["query", "(3, 4, 5)", "expected four dimensions"]),
    ({"key": normal(H, S, D)}, ValueError, ["key", "(3, 4, 5)", "expected four dimensions"]),
    ({"query": normal(B, H, L, 0)}, ValueError, ["query", "(2, 3, 4, 0)", "expected a head size"]),
    ({"key": normal(B, H, S, D + 1)}, ValueError, ["key", "(2, 3, 4, 6)", "expected shape (2, 3, 4, 5)"]),
    ({"value": normal(B, H, S + 1, D)}, ValueError, ["value", "(2, 3, 5, 5)", "shape (2, 3, 4, 5)", "like key"]),
    ({"context_query": normal(B, H, L + 1, D)}, ValueError, ["context_query", "(2, 3, 5, 5)", "like query"]),
    ({"context_key": normal(B, 1, S, D)}, ValueError, ["context_key", "(2, 1, 4, 5)", "expected", "like key"]),
    (
        {"attn_mask": torch.zeros(L, S).double()},
        TypeError,
        ["attn_mask", "float64", "expected dtype torch.bool or torch.float32"],
    ),
    ({"attn_mask": torch.ones(L, S + 1, dtype=torch.bool)}, ValueError, ["attn_mask", "(4, 5)", "(2, 3, 4, 4)"]),
    ({"attn_mask": torch.zeros(L, S, requires_grad=True)}, ValueError, ["attn_mask", "requires grad", "detach"]),
    ({"attn_mask": torch.zeros(L, S, device="meta")}, ValueError, ["attn_mask", "meta", "expected device cpu"]),
    ({"key_lengths": torch.tensor([3.0, 4.0])}, TypeError, ["key_lengths", "float32", "expected dtype torch.int32"]),
    ({"key_lengths": torch.tensor([3, 4, 4])}, ValueError, ["key_lengths", "(3)", "expected shape (2)"]),
    ({"key_lengths": torch.tensor([[3, 4]])}, ValueError, ["key_lengths", "(1, 2)", "expected one dimension"]),
    ({"key_lengths": torch.tensor([3, S + 1])}, ValueError, ["key_lengths", "3 to 5", "expected 0 to S = 4"]),
    (
        {"key_lengths": torch.tensor([3, 2**32 + 3])},
        ValueError,
        ["key_lengths", "3 to 4294967299", "expected 0 to S = 4"],
    ),
    ({"key_lengths": torch.tensor([-1, 2])}, ValueError, ["key_lengths", "-1 to 2", "expected 0 to S = 4"]),
    (
        {"gate": vectors(), **{n: normal(B, H, S + 2, D) for n in ("key", "value", "context_key")}},
        ValueError,
        ["gate", "L equal to S", "lambda tensor", "column"],
    ),
]

BAD_IN_PACKED = [
    ({"query": normal(1, T, H, D)}, ValueError, ["query", "(1, 9, 3, 5)", "expected three dimensions"]),
    ({"query": normal(T, H, 0)}, ValueError, ["query", "(9, 3, 0)", "expected a head size"]),
    ({"value": normal(T + 1, H, D)}, ValueError, ["value", "(10, 3, 5)", "expected shape (9, 3, 5)", "like query"]),
    ({"cu_seqlens": torch.tensor([0.0, 9.0])}, TypeError, ["cu_seqlens", "float32", "expected dtype torch.int32"]),
    ({"cu_seqlens": torch.tensor([[0, 9]])}, ValueError, ["cu_seqlens", "(1, 2)", "expected one dimension"]),
    ({"cu_seqlens": torch.tensor([]).long()}, ValueError, ["cu_seqlens", "expected offsets", "got an empty tensor"]),
    ({"cu_seqlens": torch.tensor([0, 6, 4, 9])}, ValueError, ["cu_seqlens", "[0, 6, 4, 9]", "never decrease", "T = 9"]),
    ({"cu_seqlens": torch.tensor([0, 2**32 + 9])}, ValueError, ["cu_seqlens", "[0, 4294967305]", "from 0 to T = 9"]),
    ({"max_seqlen": 4}, ValueError, ["max_seqlen", "got 4", "at least 5"]),
    ({"max_seqlen": -1}, ValueError, ["max_seqlen", "got -1", "expected"]),
    ({"max_seqlen": 5.0}, TypeError, ["max_seqlen", "float", "expected an int"]),
]


def label(row):
    changes, _, parts = row
    return ", ".join(changes) + ": " + parts[1]


def check_error(call, arguments, error, parts):
    with pytest.raises(error) as raised:
        call(**arguments)
    message = str(raised.value)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize("row", BAD_IN_BOTH + BAD_IN_DENSE, ids=label)
def test_dense_call_with_invalid_argument_raises(row):
    changes, error, parts = row
    check_error(qk.quasi_attention, dense_arguments() | changes, error, parts)


@pytest.mark.parametrize("row", BAD_IN_PACKED, ids=label)
def test_packed_call_with_invalid_argument_raises(row):
    changes, error, parts = row
    check_error(qk.quasi_attention_varlen, packed_arguments() | changes, error, parts)


@pytest.fixture(params=["causal_upper_left", "causal_lower_right"])
def causal_bias(request):
    """A function of (L, S) that makes a mask of torch whose memory torch never fills."""
    from torch.nn.attention import bias  # here, because it imports the compiler

    return getattr(bias, request.param)


@pytest.mark.parametrize("keys", [L, L + 3])
def test_masks_that_replace_a_causal_bias_give_its_values(keys, causal_bias):
    """The error of a CausalBias names these masks."""
    query, key, value = normal(B, H, L, D), normal(B, H, keys, D), normal(B, H, keys, D + 1)[..., 1:]
    offset = keys - L if causal_bias.__name__ == "causal_lower_right" else 0
    mask = torch.ones(L, keys, dtype=torch.bool).tril(offset)
    out = qk.quasi_attention(query, key, value, query, key, torch.zeros(B, H, L), attn_mask=mask)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=causal_bias(L, keys))
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("row", [BAD_IN_BOTH[0], BAD_IN_DENSE[3]], ids=label)
@pytest.mark.parametrize("call", [qk.explain, qk.attention_maps])
def test_explain_and_attention_maps_validate_arguments(call, row):
    changes, error, parts = row
    with pytest.raises(error, match=re.escape(parts[0])):
        call(*(dense_arguments() | changes).values())


BAD_IN_MAPS = {
    "ValueError: rows: expected 0 <= position < 4, got 0 to 4": {"rows": [0, L]},
    "ValueError: rows: expected 0 <= position < 4, got -1 to -1": {"rows": [-1]},
    "ValueError: rows: expected one dimension, got shape (1, 1)": {"rows": torch.zeros(1, 1)},
    "TypeError: rows: expected integers, got dtype torch.float32": {"rows": torch.tensor([0.5])},
    "TypeError: rows: expected a dense tensor": {"rows": NESTED},
    "TypeError: rows: expected integers, got dtype torch.bool": {"rows": [True]},
    "TypeError: dropout_p: expected a number": {"dropout_p": "0.1"},
    "ValueError: dropout_seed: expected a seed since dropout_p > 0, got None": {"dropout_p": 0.1},
}


@error_cases(BAD_IN_MAPS)
def test_attention_maps_validate_rows_and_seed(error, given):
    with raises(error):
        qk.attention_maps(**dense_arguments() | given)


@pytest.mark.parametrize("gate", [normal(B, H, L), vectors(), vectors(form="column")], ids=["lambda", "row", "column"])
@pytest.mark.parametrize("rows", [None, [0, 3]])
def test_attention_maps_on_meta_have_shapes(gate, rows):
    arguments = dense_arguments() | {"gate": gate}
    here = qk.attention_maps(**arguments, rows=rows)
    there = qk.attention_maps(**on_meta(arguments), rows=rows)
    assert [t.shape for t in there] == [t.shape for t in here]
    assert all(t.is_meta for t in there)


def test_attention_maps_rows_ignore_the_default_device():
    arguments = dense_arguments()
    expected = qk.attention_maps(**arguments, rows=[0, 3])
    with torch.device("meta"):
        rows = qk.attention_maps(**arguments, rows=[0, 3])
    assert all(map(torch.equal, rows, expected))


def on_meta(arguments):
    moved = {name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in arguments.items()}
    if isinstance(gate := arguments["gate"], qk.GateParameters):
        fields = {name: t.to("meta") if isinstance(t, torch.Tensor) else t for name, t in vars(gate).items()}
        moved["gate"] = qk.GateParameters(**fields)
    return moved


def test_valid_calls_run():
    """The calls that the tables above change are valid."""
    for gate in (normal(B, H, L), vectors(), vectors(form="column")):
        assert qk.quasi_attention(**dense_arguments() | {"gate": gate}).isfinite().all()
    for gate in (normal(T, H), vectors(), vectors(form="column")):
        assert qk.quasi_attention_varlen(**packed_arguments() | {"gate": gate}).isfinite().all()


def test_gate_parameters_compare_by_identity():
    gate, same = (qk.GateParameters(*(torch.ones(D) for _ in range(4))) for _ in range(2))
    assert gate in (same, gate)
    assert gate != same


@pytest.mark.parametrize("call", [qk.quasi_attention, qk.attention_maps, qk.explain])
@pytest.mark.parametrize("argument", ["attn_mask", "gate"])
def test_causal_bias_raises_in_every_dense_call(argument, call, causal_bias):
    mask = causal_bias(L, S)
    for derived in (mask, mask[:1].unsqueeze(1), mask[:1] + 0):
        arguments = dense_arguments() | {argument: derived}
        check_error(call, arguments, TypeError, [f"{argument}: expected", "got CausalBias"])


def test_subclass_of_causal_bias_raises():
    from torch.nn.attention.bias import CausalBias, CausalVariant  # here, because it imports the compiler

    mask = type("Window", (CausalBias,), {})(CausalVariant.UPPER_LEFT, L, S)
    check_error(qk.quasi_attention, dense_arguments() | {"attn_mask": mask}, TypeError, ["attn_mask: expected"])
