"""Raw operators bypass the validation of the public functions: their own checks name a wrong tensor."""

import pytest
import torch

from qacg_kernels.backends import cpu, cuda
from qacg_kernels.call.problem import Saved
from qacg_kernels.functional import problem_of
from qacg_kernels.operators import schema
from qacg_kernels.testing.inputs import Case, make_inputs
from qacg_kernels.utils.native_libraries import library

B, H, L, S, D, T = 3, 2, 6, 6, 8, 9
UPSTREAM, SAVED = Saved._fields[:3], Saved._fields[3:]
GOOD = {
    "lambda": Case("raw lambda", batch=B, heads=H, queries=L, head_dim=D, mask="additive", dropout_p=0.1),
    "gate": Case(
        "raw gate", batch=B, heads=H, queries=L, head_dim=D, gate="per_head", bias="per_head", key_lengths=(6, 0, 2)
    ),
    "packed": Case("raw packed", heads=H, sequences=(5, 0, 4), head_dim=D, gate="shared", bias="shared"),
}


def call_of(kind, backend):
    """Tensors and options of a good forward call, by the names of the schema."""
    inputs = make_inputs(GOOD[kind], dtype_of(backend))
    problem = problem_of(*inputs.arguments(), **inputs.options)
    return problem.tensors._asdict(), problem.options._asdict()


def dtype_of(backend):
    return torch.bfloat16 if backend == "cuda" else torch.float32


def change(named, options, changes, backend):
    """Replaces some tensors and options, with float32 tensors in the dtype of the backend's calls."""
    for name, value in changes.items():
        is_float = isinstance(value, torch.Tensor) and value.dtype == torch.float32
        (options if name in options else named)[name] = value.to(dtype_of(backend)) if is_float else value


def forward(backend, kind, **changes):
    tensors, options = call_of(kind, backend)
    change(tensors, options, changes, backend)
    return schema.forward_op(backend)(*tensors.values(), **options)


def backward(backend, kind, **changes):
    tensors, options = call_of(kind, backend)
    # Triton's backward only raises errors here, so its inputs may come from the reference.
    out, *saved = schema.forward_op("reference" if backend == "triton" else backend)(*tensors.values(), **options)
    named = dict(zip(UPSTREAM, (out, *(t if t.numel() else None for t in saved[4:])))) | tensors
    named |= dict(zip(SAVED, saved))
    change(named, options, changes, backend)
    return schema.backward_op(backend)(*named.values(), **options)


def of(*shape, dtype=torch.float32):
    return torch.zeros(shape, dtype=dtype)


def whole(*values, dtype=torch.int32):
    return torch.tensor(values, dtype=dtype)


# The kind of call, its changes, and a part of the message.
BAD_FORWARD = [
    ("lambda", dict(query=of(B, H, L)), "query"),
    ("lambda", dict(key=of(H, S, D)), "key"),
    ("lambda", dict(key=of(B - 1, H, S, D)), r"key: expected shape \(3, 2, 6, 8\).*, got (shape )?\(2, 2, 6, 8\)"),
    ("lambda", dict(value=of(1, H, S, D)), r"value: expected shape \(3, 2, 6, 8\).*, got (shape )?\(1, 2, 6, 8\)"),
    ("lambda", dict(value=of(B, H, S - 1, D)), "value"),
    ("lambda", dict(value=of(B, H, S, D, dtype=torch.float64)), "value"),
    ("lambda", dict(context_query=of(B, H, L - 1, D)), "context_query"),
    ("lambda", dict(context_key=of(B, H, S - 2, D)), "context_key"),
    ("lambda", dict(gate_lambda=of(1, H, L)), r"gate.*: expected shape \(3, 2, 6\).* got .*\(1, 2, 6\)"),
    ("lambda", dict(gate_lambda=of(B, H, L, dtype=torch.float64)), "gate"),
    ("lambda", dict(gate_lambda=None), "gate.query"),
    ("lambda", dict(gate_form=1), "gate_form"),
    ("lambda", dict(gate_form=5), "gate_form"),
    ("lambda", dict(attn_mask=of(1, 1, 1, S - 1)), r"attn_mask: expected .*\(3, 2, 6, 6\).*, got shape \(1, 1, 1, 5\)"),
    ("lambda", dict(attn_mask=of(L, S)), "attn_mask"),
    ("lambda", dict(attn_mask=of(1, 1, 1, S, dtype=torch.int64)), "attn_mask"),
    ("lambda", dict(quasi_bias=of(1, H, L - 1)), r"quasi_bias: expected .*\(3, 2, 6\).*, got shape \(1, 2, 5\)"),
    ("lambda", dict(quasi_bias=of(1, 1, L, dtype=torch.float64)), "quasi_bias: expected .*float32"),
    ("lambda", dict(dropout_seed=None), "dropout_seed: expected an int64 scalar"),
    ("lambda", dict(dropout_seed=of()), "dropout_seed: expected an int64 scalar"),
    ("lambda", dict(dropout_p=1.0), "dropout_p: expected a probability"),
    ("gate", dict(key_lengths=whole(6, 6)), r"key_lengths: expected shape \(3,?\).*, got (shape )?\(2\)"),
    ("gate", dict(key_lengths=of(B)), "key_lengths: expected"),
    ("gate", dict(gate_query=of(D - 1)), r"gate.query: expected shape \(8\) or \(1, 8\) or \(2, 8\).*, got .*\(7\)"),
    ("gate", dict(gate_key=of(H + 1, D)), "gate.key"),
    ("gate", dict(gate_context_key=None), "gate.context_key"),
    ("gate", dict(gate_key_bias=of(H + 1)), r"gate.key_bias: expected shape \(\) or \(1\) or \(2\).*, got .*\(3\)"),
    ("gate", dict(gate_context_key_bias=of(H + 1)), "gate.context_key_bias"),
    ("gate", dict(gate_key=of(H, D, dtype=torch.float16)), "gate.key: expected .*dtype"),
    ("gate", dict(gate_context_query_bias=of(H, dtype=torch.float64)), "gate.context_query_bias: expected .*dtype"),
    ("gate", dict(gate_form=2), "gate.form"),
    ("gate", {n: of(B, H, S - 1, D) for n in ("key", "value", "context_key")}, "gate: expected"),
    ("packed", dict(value=of(T - 1, H, D)), "value"),
    ("packed", dict(key=of(T + 1, H, D), value=of(T + 1, H, D), context_key=of(T + 1, H, D)), "key"),
    ("packed", dict(cu_seqlens=whole()), "cu_seqlens: expected offsets"),
    ("packed", dict(cu_seqlens=whole(0, T)[None]), "cu_seqlens: expected one dimension"),
    ("packed", dict(quasi_bias=of(T, H + 1)), r"quasi_bias: expected .*\(9, 2\).*, got shape \(9, 3\)"),
    ("packed", dict(attn_mask=of(1, 1, 1, T)), "attn_mask, key_lengths: expected None"),
    ("packed", dict(key_lengths=whole(1, 1, 1)), "attn_mask, key_lengths: expected None"),
]
# CPU backends check the values of offsets; the CUDA kernels clamp them.
BAD_OFFSETS = [whole(0, 5, 5, T + 100), whole(1, 5, 5, T), whole(0, 7, 5, T), whole(-4, 5, 5, T), whole(0, 50, 50, T)]
BAD_BACKWARD = [
    ("lambda", dict(grad_out=of(B, H, L - 1, D)), r"grad_out: expected shape \(3, 2, 6, 8\).* got .*\(3, 2, 5, 8\)"),
    ("lambda", dict(grad_out=of(1, H, L, D)), "grad_out"),
    ("lambda", dict(grad_out=of(B, H, L, D, dtype=torch.float64)), "grad_out"),
    ("lambda", dict(softmax_out=of(B, H, 1, D)), "softmax_out"),
    ("lambda", dict(row_max=of(B, H, L - 1)), "row_max"),
    ("lambda", dict(row_max=of(B, H, L, dtype=torch.float64)), "row_max"),
    ("lambda", dict(row_sum=of(L)), "row_sum"),
    ("lambda", dict(gate_lambda=of(B, 1, L)), "gate"),
    ("lambda", dict(value=of(B, H, S + 1, D)), "value"),
    ("gate", dict(query_gate=of(0)), "query_gate"),
    ("gate", dict(key_gate=of(B, H, L - 1)), "key_gate"),
    ("gate", dict(grad_query_gate=of(B, L)), "grad_query_gate"),
    ("gate", dict(grad_key_gate=of(B, H, 1)), "grad_key_gate"),
    ("packed", dict(grad_out=of(T - 2, H, D)), "grad_out"),
    ("packed", dict(row_sum=of(T, 1)), "row_sum"),
]


def check_error(run, backend, kind, changes, message):
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message):
        run(backend, kind, **changes)


@pytest.fixture
def compiled():
    """The CPU backend. test_cuda_emulated.py runs the same cases on the CUDA backend."""
    if cpu.missing():
        pytest.skip(cpu.missing()[0])
    return "cpu"


@pytest.fixture(params=["cpu", "triton", "reference"])
def checking(request):
    """The backends with checks, whether or not they can run a correct call here."""
    if request.param == "cpu" and cpu.missing():
        pytest.skip(cpu.missing()[0])
    return request.param


@pytest.mark.parametrize(("kind", "changes", "message"), BAD_FORWARD, ids=str)
def test_forward_rejects_bad_tensors(kind, changes, message, checking):
    check_error(forward, checking, kind, changes, message)


@pytest.mark.parametrize(("kind", "changes", "message"), BAD_BACKWARD, ids=str)
def test_backward_rejects_bad_tensors(kind, changes, message, checking):
    check_error(backward, checking, kind, changes, message)


@pytest.mark.parametrize("offsets", BAD_OFFSETS, ids=str)
@pytest.mark.parametrize("run", [forward, backward])
def test_offsets_out_of_range_are_rejected(run, offsets, checking):
    check_error(run, checking, "packed", dict(cu_seqlens=offsets), "cu_seqlens: ")


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("checking", ["cpu", "reference"])
def test_raw_operators_accept_good_calls(kind, checking):
    """The reference has the same checks as Triton."""
    if checking == "cpu" and cpu.missing():
        pytest.skip(cpu.missing()[0])
    assert forward(checking, kind)[0].isfinite().all()
    assert all(g.isfinite().all() for g in backward(checking, kind))


def test_lengths_out_of_range_are_clamped(compiled):
    wild = dict(key_lengths=whole(2**32 + 3, -5, 2, dtype=torch.int64))
    for run in (forward, backward):
        for got, expected in zip(run(compiled, "gate", **wild), run(compiled, "gate")):
            assert torch.equal(got, expected)


def test_saved_outputs_may_have_any_strides(compiled):
    tensors, options = call_of("lambda", compiled)
    softmax_out = schema.forward_op(compiled)(*tensors.values(), **options)[1]
    strided = softmax_out.new_full((*softmax_out.shape, 2), torch.nan)[..., 0].copy_(softmax_out)
    for got, expected in zip(backward(compiled, "lambda", softmax_out=strided), backward(compiled, "lambda")):
        assert torch.equal(got, expected)


def test_saving_the_quasi_branch_raises(compiled):
    tensors, options = call_of("lambda", compiled)
    with pytest.raises(RuntimeError, match="save_quasi_out: expected False"):
        schema.forward_op(compiled)(*tensors.values(), **options, save_quasi_out=True)


@pytest.mark.skipif(library("_cuda") is None, reason="the CUDA library was not built")
@pytest.mark.skipif(torch.version.cuda is None, reason="this torch was built without CUDA")
def test_cuda_library_loads_with_every_cuda_torch():
    """Loading finds every function of torch that the library calls, and requires neither a GPU nor a driver."""
    assert cuda._about is not None, cuda.missing()
    assert torch._C._dispatch_has_kernel_for_dispatch_key("qacg::cuda_attention", "CUDA")
