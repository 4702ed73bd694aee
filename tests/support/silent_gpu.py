"""Calls of the Triton backend without a GPU: real launchers run on a stub of libcuda.

Prints a line for each call whose launches differ from those of Triton's own launcher, and the number of calls. The
script replaces Triton's driver, so it requires a separate process, without the interpreter and with the environment of
`benchmarks.absent_gpu.stub_environment`.
"""

import sys
from contextlib import nullcontext

import torch
from torch.utils._pytree import tree_leaves

import qacg_kernels as qk
from benchmarks.absent_gpu import Launch, StubGPU, captured_launches, loaded_stub, replace_driver
from qacg_kernels.backends.triton import prepared, tile_tables
from qacg_kernels.functional import problem_of
from qacg_kernels.operators.schema import forward_op

_LEAST_ADDRESS = 1 << 40  # sizes, strides and seeds are smaller
STUB = loaded_stub()


def described(launches: list[Launch], tensors: list[torch.Tensor]) -> list[Launch]:
    """Replaces each address among the parameters by its tensor: a known one, or a temporary by order of first use."""
    names = {t.data_ptr(): index for index, t in reversed([*enumerate(tensors)])}

    def parameter(value: bytes) -> object:
        number = int.from_bytes(value, "little", signed=True)
        if number < _LEAST_ADDRESS:
            return value
        return names.setdefault(number, f"temporary {len(names)}"), number % 16

    return [one._replace(parameters=tuple(map(parameter, one.parameters))) for one in launches]


def inputs(batch=2, heads=3, length=20, head_dim=64, dtype=torch.bfloat16, grad=False, offset=0, packed=False):
    def rows(*shape):
        flat = torch.zeros(offset + torch.Size(shape).numel(), dtype=dtype)
        return flat[offset:].view(shape).requires_grad_(grad)

    lead = (batch * length, heads) if packed else (batch, heads, length)
    return [*(rows(*lead, head_dim) for _ in range(5)), rows(*lead)]


def vectors(head_dim=64, dtype=torch.bfloat16, **form):
    return qk.GateParameters(*(torch.zeros(head_dim, dtype=dtype, requires_grad=True) for _ in range(4)), **form)


def call(tensors, gate=None, backward=False, **options) -> list[torch.Tensor]:
    """Makes a call, with its backward if `backward` is true; returns all inputs and results."""
    *wide, gate_lambda = tensors
    gate = gate_lambda if gate is None else gate
    given = [t for t in tree_leaves((wide, gate, options)) if isinstance(t, torch.Tensor)]
    attend = qk.quasi_attention_varlen if "cu_seqlens" in options else qk.quasi_attention
    with nullcontext() if backward else torch.no_grad():
        out = attend(*wide, gate, backend="triton", **options)
    if not backward:
        return [*given, out]
    upstream, leaves = torch.ones_like(out), [t for t in given if t.requires_grad]
    # The graph is retained, so that no address of the forward is used again in the backward.
    return [*given, out, upstream, *torch.autograd.grad(out, leaves, upstream, retain_graph=True)]


def without_queries_or_keys(gate=None, *, queries, keys):
    of_queries, of_keys = inputs(length=queries, grad=True), inputs(length=keys, grad=True)
    wide = [of_queries[0], of_keys[1], of_keys[2], of_queries[3], of_keys[4]]
    return call([*wide, of_queries[5]], gate, backward=True)


def with_gaps(*shape) -> torch.Tensor:
    return torch.zeros(*shape, 2, dtype=torch.bfloat16)[..., 0]


def gate_with_gaps():
    """Vectors and biases with a stride of their own between heads, which a contiguous copy would not have."""
    wide = [torch.zeros(3, 65, dtype=torch.bfloat16)[:, :64] for _ in range(2)]
    return qk.GateParameters(*wide, with_gaps(3, 64), with_gaps(64), with_gaps(3), with_gaps(1))


def training_through_the_operator() -> list[torch.Tensor]:
    """A forward that does not save O2, so the backward runs another forward."""
    tensors = inputs(length=300, grad=True)
    problem = problem_of(*tensors)
    results = forward_op("triton")(*problem.tensors, *problem.options)
    upstream = torch.ones_like(results[0])
    return [*tensors, *results, upstream, *torch.autograd.grad(results[0], tensors, upstream, retain_graph=True)]


MOST_FILES = 7
_SEED = torch.zeros((), dtype=torch.int64)
_OFFSETS = torch.tensor([0, 20, 40], dtype=torch.int32)
_SEQUENCES = dict(cu_seqlens=_OFFSETS, max_seqlen=20)
# Each call differs from an earlier one in one property on which the machine code or the launch depends.
CALLS = {
    "plain": lambda: call(inputs()),
    "other values of the same sizes": lambda: call([t + 1 for t in inputs()]),
    "addresses that are not multiples of 16": lambda: call(inputs(offset=1)),
    "another length": lambda: call(inputs(length=21)),
    "one head": lambda: call(inputs(heads=1)),
    "heads inside": lambda: call([t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs()]),
    "heads inside, features with gaps": lambda: call(
        [*(with_gaps(2, 20, 3, 8).transpose(1, 2) for _ in range(5)), inputs()[5]]
    ),
    "float32": lambda: call(inputs(dtype=torch.float32)),
    "scale": lambda: call(inputs(), scale=0.3),
    "causal": lambda: call(inputs(), is_causal=True),
    "lengths": lambda: call(inputs(), key_lengths=torch.tensor([20, 7])),
    "boolean mask": lambda: call(inputs(), attn_mask=torch.ones(20, 20, dtype=torch.bool)),
    "additive mask": lambda: call(inputs(), attn_mask=torch.zeros(20, 20, dtype=torch.bfloat16)),
    "dropout": lambda: call(inputs(), dropout_p=0.1, dropout_seed=_SEED),
    "more dropout": lambda: call(inputs(), dropout_p=0.5, dropout_seed=_SEED),
    "bias of a query": lambda: call(inputs(), quasi_bias=torch.zeros(2, 3, 20)),
    "one bias": lambda: call(inputs(), quasi_bias=-2.0),
    "bias of a head": lambda: call(inputs(), quasi_bias=torch.zeros(3, 1)),
    "bias of a token": lambda: call(inputs(packed=True), quasi_bias=torch.zeros(40, 1), **_SEQUENCES),
    "packed": lambda: call(inputs(packed=True), **_SEQUENCES),
    "packed, longer": lambda: call(inputs(packed=True), **(_SEQUENCES | {"max_seqlen": 33})),
    "gate vectors": lambda: call(inputs(), vectors()),
    "gate vectors, beta": lambda: call(inputs(), vectors(beta=0.5)),
    "gate vectors and biases with gaps": lambda: call(inputs(), gate_with_gaps()),
    "column gate": lambda: call(inputs(), vectors(form="column")),
    "training": lambda: call(inputs(grad=True), backward=True),
    "training, gate vectors": lambda: call(inputs(grad=True), vectors(), backward=True),
    "training, bias": lambda: call(inputs(grad=True), quasi_bias=torch.zeros(2, 3, 20), backward=True),
    "training, long": lambda: call(inputs(length=300, grad=True), vectors(), backward=True),
    "training, column gate": lambda: call(inputs(grad=True), vectors(form="column"), backward=True),
    "training, packed": lambda: call(inputs(grad=True, packed=True), vectors(), backward=True, **_SEQUENCES),
    "training, biases, key mask, dropout": lambda: call(
        inputs(length=128, grad=True),
        vectors(query_bias=torch.zeros(3, dtype=torch.bfloat16), key_bias=torch.zeros((), dtype=torch.bfloat16)),
        backward=True,
        attn_mask=torch.ones(2, 1, 1, 128, dtype=torch.bool),
        dropout_p=0.1,
        dropout_seed=_SEED,
    ),
    "training without queries": lambda: without_queries_or_keys(queries=0, keys=20),
    "training without keys, column gate": lambda: without_queries_or_keys(vectors(form="column"), queries=20, keys=0),
    "training through the operator": training_through_the_operator,
    "long": lambda: call(inputs(length=300)),
}


def recorded(action) -> list[Launch]:
    with captured_launches(STUB) as launches:
        tensors = action()
    return described(launches, tensors)


def differences() -> list[str]:
    """Lists the calls whose launches from C++, first or repeated, differ from Triton's own launches."""
    expected = {name: recorded(action) for name, action in CALLS.items()}
    prepared.register("CPU")
    return [
        f"{name}, {when}"
        for when in ("first", "second")
        for name, action in CALLS.items()
        if recorded(action) != expected[name]
    ]


def files_of(action) -> list[str]:
    """Returns the files of qacg_kernels that an action passes, in order."""
    files: dict[str, None] = {}

    def note(frame, event, argument):
        if "/qacg_kernels/" in frame.f_code.co_filename:
            files[frame.f_code.co_filename.rpartition("qacg_kernels/")[2]] = None

    sys.setprofile(note)
    action()
    sys.setprofile(None)
    return list(files)


def main() -> None:
    replace_driver(StubGPU("sm_90"))
    with tile_tables.trial(tile_tables.shipped("sm_90")):
        print(*differences(), f"{len(CALLS)} calls", sep="\n")
        forward, tensors = recorded(CALLS["plain"]), inputs()
        files = files_of(lambda: call(tensors))
    assert [one.kernel for one in forward] == ["forward_kernel"], "a forward is one launch"
    assert files[0] == "functional.py" and len(files) <= MOST_FILES, f"from the public function to the launch: {files}"


if __name__ == "__main__":
    main()
