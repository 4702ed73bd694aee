"""The sources of the CUDA backend, host code and kernels, in the CPU emulator meet the error rule."""

from dataclasses import replace
from itertools import product

import pytest
import test_edges
import test_hidden_keys
import test_raw_operators
import torch
from cases import LARGE_SCORES, LAYOUT_CASES, SMALL, STRIPS, TILED
from judging import assert_same_bits, check, compare, judges_of

from qacg_kernels.backends import cuda
from qacg_kernels.functional import problem_of
from qacg_kernels.operators import self_check
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

pytestmark = pytest.mark.full
DTYPES = cuda.DTYPES


def rounded(cases):
    """Cases with the next supported head size."""
    steps = (-(-case.head_dim // cuda.HEAD_DIM_STEP) * cuda.HEAD_DIM_STEP for case in cases)
    return tuple(replace(case, head_dim=min(head_dim, cuda.MAX_HEAD_DIM)) for case, head_dim in zip(cases, steps))


LONG = rounded(TILED + LARGE_SCORES)
# Strips that see all keys of a tile take a path of their own, in the tiled forward and in both passes of the backward.
WHOLE_TILES = tuple(
    Case(f"bias, whole tiles, {dims} dims", batch=1, heads=2, queries=80, keys=192, head_dim=dims, quasi_bias=bias)
    for dims, bias in ((32, "per_query"), (64, "per_query"), (128, "per_head"))
)


@pytest.fixture(autouse=True)
def library(emulate_gpu):
    return emulate_gpu()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", rounded(SMALL + LAYOUT_CASES), ids=lambda case: case.name)
def test_small_case_meets_the_error_rule(case, dtype):
    check(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", LONG, ids=lambda case: case.name)
def test_tiled_case_meets_the_error_rule(case, dtype):
    check(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", STRIPS + WHOLE_TILES, ids=lambda case: case.name)
def test_strips_meet_the_error_rule(case, dtype):
    check(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize(("n", "case"), [pytest.param(n, case, id=case.name) for n, case in enumerate(STRIPS)])
def test_tensor_core_rounding_meets_the_error_rule(n, case, monkeypatch):
    """Sums are truncated instead of rounded, as in tests/cuda_emulator/tensor_core_emulator.h."""
    dtype = DTYPES[n % 2]
    inputs = make_inputs(case, dtype)
    nearest = evaluate(inputs, through_backend("cuda"))
    monkeypatch.setenv("QACG_EMULATOR_ROUNDING", "truncate")
    truncated = evaluate(inputs, through_backend("cuda"))
    assert any(not torch.equal(t, truncated[name]) for name, t in nearest.items()), "the rounding changed nothing"
    check(case, "cuda", dtype, "cpu")


def test_self_check_of_first_calls_passes(monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "strict")
    switch = cuda._about.qacg_cuda_check_first_calls
    if hasattr(torch.ops.qacg, "cuda_attention_first_call"):  # defined for the library of this machine, with CUDA torch
        self_check.restarts["cuda"] = lambda: switch(self_check._OPERATORS)
        self_check.forget()
    else:
        cuda.check_first_calls()
    try:
        for case, dtype in product(rounded(SMALL[1::6]), DTYPES):
            for _ in range(2):  # the second time without a check
                results = evaluate(make_inputs(case, dtype), through_backend("cuda"))
            compare(results, judges_of(make_inputs(case, dtype)), case.name)
        summary = self_check.summary(torch.device("cpu"))
        assert summary.endswith("0 failed")
        assert int(summary.split()[0]) > 20
    finally:
        self_check.forget()
        del self_check.restarts["cuda"]
        switch(None)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", test_edges.EMPTY, ids=lambda case: case.name)
def test_empty_call_gives_zeros(case, dtype):
    test_edges.test_empty_call_gives_zeros(case, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate", [dict(), dict(gate="per_head", bias="per_head")], ids=["lambda", "vectors"])
def test_nan_stays_in_its_packed_sequence(gate, dtype):
    test_edges.test_nan_in_one_sequence_reaches_no_other(dict(sequences=(14, 25, 9)), gate, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keys", [17, 140])
@pytest.mark.parametrize("name", ["query", "key", "context_query", "context_key", "value", "lambda"])
def test_visible_nan_reaches_the_output(name, keys, dtype):
    test_edges.test_visible_nan_reaches_the_output(name, keys, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padding_of_a_column_gate_is_not_read(dtype):
    gate = dict(gate="shared", form="column", bias="shared")
    unread = ("key", "value", "context_key")
    test_edges.test_keys_beyond_the_length_are_not_read(gate, unread, 140, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keys", [17, 140])
def test_additive_mask_hides_keys_by_its_bound(keys, dtype):
    test_hidden_keys.test_hiding_value_equals_a_boolean_mask(keys, "cuda", dtype, "cpu")
    test_hidden_keys.test_hidden_nan_score_does_not_reach_the_output(keys, "cuda", dtype, "cpu")
    test_hidden_keys.test_value_above_the_bound_is_added_to_the_scores(keys, "cuda", dtype, "cpu")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keys", [17, 140])
def test_infinite_bias_shows_no_hidden_key(keys, dtype):
    test_hidden_keys.check_bias_without_numbers(keys, "cuda", dtype)


@pytest.mark.parametrize(("keys", "tile", "head_dim"), [(110, 32, 32), (230, 64, 64), (230, 64, 128)])
@pytest.mark.parametrize(("kind", "lead"), test_hidden_keys.KEY_MASKS)
def test_key_mask_meets_the_error_rule(kind, lead, keys, tile, head_dim):
    dtype = DTYPES[kind == "boolean"]
    test_hidden_keys.check_key_mask(kind, lead, keys, tile, head_dim, "cuda", dtype)


@pytest.mark.parametrize(("kind", "changes", "message"), test_raw_operators.BAD_FORWARD, ids=str)
def test_raw_forward_rejects_bad_tensors(kind, changes, message):
    test_raw_operators.check_error(test_raw_operators.forward, "cuda", kind, changes, message)


@pytest.mark.parametrize(("kind", "changes", "message"), test_raw_operators.BAD_BACKWARD, ids=str)
def test_raw_backward_rejects_bad_tensors(kind, changes, message):
    test_raw_operators.check_error(test_raw_operators.backward, "cuda", kind, changes, message)


@pytest.mark.parametrize("kind", test_raw_operators.GOOD)
def test_raw_operators_accept_good_calls(kind):
    test_raw_operators.test_raw_operators_accept_good_calls(kind, "cuda")
    test_raw_operators.test_saved_outputs_may_have_any_strides("cuda")
    test_raw_operators.test_saving_the_quasi_branch_raises("cuda")


ORDERED = (
    *STRIPS[1:6],
    Case("order: no key at all", batch=2, queries=64, keys=130, head_dim=64, key_lengths=(0, 0)),
    Case("order: column gate", queries=40, keys=70, head_dim=24, gate="shared", form="column", dropout_p=0.1),
)


@pytest.mark.parametrize("case", ORDERED, ids=lambda case: case.name)
def test_order_of_warps_and_copies_changes_no_bit(case, monkeypatch):
    """A missing barrier or wait for copies would change bits."""
    inputs = make_inputs(case, torch.bfloat16)
    expected = evaluate(inputs, through_backend("cuda"))
    for seed in range(1, 6):
        monkeypatch.setenv("QACG_EMULATOR_SEED", str(seed))
        assert_same_bits(evaluate(inputs, through_backend("cuda")), expected)


@pytest.mark.parametrize(
    ("head_dim", "dtype", "message"),
    [
        (20, torch.bfloat16, "query: expected a head size that is a multiple of 8 up to 128 .*, got 20"),
        (136, torch.bfloat16, "query: expected a head size that is a multiple of 8 up to 128 .*, got 136"),
        (16, torch.float32, "query: expected dtype float16 or bfloat16"),
    ],
)
def test_raw_operator_rejects_calls_outside_its_limits(head_dim, dtype, message):
    inputs = make_inputs(Case("limits", queries=5, head_dim=head_dim), dtype)
    problem = problem_of(*inputs.arguments(), **inputs.options)
    with pytest.raises(RuntimeError, match=message):
        torch.ops.qacg.cuda_attention(*problem.tensors, *problem.options)


def of_a_sum(t):
    """A tensor with strides of zero, as the gradient of `out.sum()` has."""
    return torch.ones((), dtype=t.dtype).expand(t.shape)


def off_16_bytes(t):
    return t.new_empty(t.numel() + 1)[1:].view(t.shape).copy_(t)


def every_other(t):
    return t.repeat_interleave(2, -1)[..., ::2]


@pytest.mark.parametrize("place", [of_a_sum, off_16_bytes, every_other])
@pytest.mark.parametrize("name", ["grad_out", "query", "key", "value", "context_query", "context_key"])
def test_rows_that_kernels_cannot_read_are_copied(name, place):
    inputs = make_inputs(STRIPS[1], torch.bfloat16)
    tensors = inputs.tensors | {"grad_out": inputs.grad_out}
    placed = tensors | {name: place(tensors[name])}
    results = [
        evaluate(replace(inputs, grad_out=some.pop("grad_out"), tensors=some), through_backend("cuda"))
        for some in (placed, {n: t.contiguous() for n, t in placed.items()})
    ]
    assert_same_bits(*results)


@pytest.mark.parametrize(
    "misplaced", ["query", "value", "gate_key_bias", "attn_mask", "key_lengths", "dropout_seed", "quasi_bias"]
)
def test_tensor_on_other_device_is_named(misplaced):
    """Bypasses the dispatcher, which calls this backend for tensors of a GPU and the CPU."""
    sizes = dict(queries=5, head_dim=8, key_lengths=(3, 5))
    case = Case("devices", **sizes, gate="shared", bias="shared", mask="boolean", dropout_p=0.1, quasi_bias="one")
    with pytest.raises(RuntimeError, match=f"{misplaced}: expected a tensor on"):
        run_raw("cuda_attention", raw_arguments(case, misplaced), save_softmax_out=False, save_quasi_out=False)


def raw_arguments(case, misplaced=""):
    """The tensors of the operator's schema by name, one of them on another device."""
    inputs = make_inputs(case, torch.bfloat16)
    problem = problem_of(*inputs.arguments(), **inputs.options)
    return {n: t.to("meta") if n == misplaced else t for n, t in problem.tensors._asdict().items()}


def run_raw(name, arguments, **options):
    options |= dict(max_seqlen=0, is_causal=False, dropout_p=0.0, scale=0.25, quasi_scale=1.0, beta=1.0, gamma=1.0)
    operator = getattr(torch.ops.qacg, name).default
    cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    return operator.redispatch(cpu, *arguments.values(), **options, gate_form=0)


def test_int64_lengths_and_offsets_do_not_wrap():
    """The low halves of the lengths are 9; on a GPU nothing has checked the values."""
    inputs = make_inputs(Case("lengths", batch=2, queries=40, key_lengths=(40, 0)), torch.bfloat16)
    problem = problem_of(*inputs.arguments(), **inputs.options)
    expected = torch.ops.qacg.cuda_attention(*problem.tensors, *problem.options)[0]
    problem = problem.replaced(key_lengths=torch.tensor([2**32 + 9, 9 - 2**32]))
    assert torch.equal(torch.ops.qacg.cuda_attention(*problem.tensors, *problem.options)[0], expected)
    inputs = make_inputs(Case("offsets", sequences=(30, 10)), torch.bfloat16)
    problem = problem_of(*inputs.arguments(), **inputs.options)
    expected = torch.ops.qacg.cuda_attention(*problem.tensors, *problem.options)[0]
    problem = problem.replaced(cu_seqlens=torch.tensor([9 - 2**32, 30, 2**32 + 9]))
    assert torch.equal(torch.ops.qacg.cuda_attention(*problem.tensors, *problem.options)[0], expected)
