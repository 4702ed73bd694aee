"""Checks of prepared launches on the stub of libcuda, in the environment of `benchmarks.absent_gpu.stub_environment`.

The stub launches nothing, so results are not initialised. Prints the name of each check that holds.
"""

import os
import resource
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from silent_gpu import STUB, call, inputs, vectors
from torch.utils.checkpoint import checkpoint
from triton import knobs

import qacg_kernels as qk
from benchmarks.absent_gpu import Launch, StubGPU, captured_launches, replace_driver
from qacg_kernels.backends.triton import first_calls, prepared, tile_tables
from qacg_kernels.functional import problem_of
from qacg_kernels.operators import self_check
from qacg_kernels.operators.schema import forward_op

OFFSETS = torch.tensor([0, 20, 40], dtype=torch.int32)


def launches_and_files(action: Callable[[], object]) -> tuple[list[Launch], set[str]]:
    """Returns the launches of an action, and the names of the files with Python code that it runs."""
    files: set[str] = set()
    with captured_launches(STUB) as launches:
        sys.setprofile(lambda frame, _event, _argument: files.add(frame.f_code.co_filename.rpartition("/")[2]))
        action()
        sys.setprofile(None)
    return launches, files


def launches_without_python(action: Callable[[], object]) -> list[Launch]:
    """Returns the launches of an action; fails if Python code prepares or makes one of them."""
    launches, files = launches_and_files(action)
    assert not files & {"first_calls.py", "launch.py"}, f"expected no launch by Python, got {files}"
    assert launches
    return launches


def of_packed(tokens: int, backward: bool = False) -> None:
    tensors = [t.requires_grad_(backward) for t in inputs(batch=1, length=tokens, packed=True)]
    offsets = torch.tensor([0, tokens // 2, tokens], dtype=torch.int32)
    call(tensors, vectors(), backward, cu_seqlens=offsets, max_seqlen=64)


def new_numbers_of_tokens_are_prepared() -> None:
    for tokens in (65, 80):  # of an odd and of an even number of tokens
        of_packed(tokens, backward=True)
    for tokens in (67, 99, 96, 128):
        launches = launches_without_python(lambda: of_packed(tokens, backward=True))  # noqa: B023
        assert launches[0].kernel == "forward_kernel"


def new_lengths_are_prepared() -> None:
    call(inputs(length=300, grad=True), backward=True)
    grids = [
        launches_without_python(lambda: call(inputs(length=length, grad=True), backward=True))[0].grid[0]  # noqa: B023
        for length in (260, 500)
    ]
    assert grids[1] > grids[0], "programs follow from the length"


def thread_without_context_launches() -> None:
    call(inputs())
    found: list[object] = []

    def run() -> None:
        try:
            call(inputs())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not found, found


def negative_bit_is_resolved() -> None:
    query, *others = inputs()
    call([query, *others])
    with captured_launches(STUB) as launches:
        call([torch._neg_view(query), *others])
    address = query.data_ptr().to_bytes(8, "little")
    assert launches and all(address not in one.parameters for one in launches), "the memory has the other sign"


def wrong_calls_raise_the_errors_of_the_validation() -> None:
    query, key, *others = inputs()
    call([query, key, *others])
    bias = torch.zeros(2, 3, 20)
    call(inputs(), quasi_bias=bias)
    for message, tensors, options in (
        ("key: expected shape", [query, key[..., :32], *others], {}),
        ("value: expected dtype", [query, key, others[0].float(), *others[1:]], {}),
        ("query: expected a dense tensor", [query.to_sparse(), key, *others], {}),
        ("is_causal: expected True or False", inputs(), dict(is_causal=1)),
        ("scale: expected a number", inputs(), dict(scale="2")),
        ("dropout_p: expected a probability", inputs(), dict(dropout_p=2.0)),
        ("dropout_seed: expected an int64 scalar", inputs(), dict(dropout_seed=torch.zeros(2))),
        ("quasi_bias: expected a tensor without", inputs(), dict(quasi_bias=bias.clone().requires_grad_())),
    ):
        try:
            call(tensors, **options)
        except (TypeError, ValueError) as error:
            assert str(error).startswith(message), error
        else:
            raise AssertionError(message)


def large_heads_do_not_share_launches() -> None:
    options = dict(cu_seqlens=OFFSETS, max_seqlen=64)
    call(inputs(batch=1, length=100, packed=True), **options)
    wide = [torch.zeros(40 * 192 + 65536 + 64, dtype=torch.bfloat16).as_strided((40, 3, 65600), (192, 64, 1))] * 5
    try:
        call([*wide, inputs(batch=1, length=40, packed=True)[5]], **options)
    except RuntimeError as error:
        assert "head size" in str(error), error
    else:
        raise AssertionError("expected an error, as kernels support at most 256 features")


def calls_without_memory_keep_no_tensor() -> None:
    """Calls of an operator, whose arguments C++ has to free."""
    tensors = inputs(batch=8, heads=16, length=4096)  # the output is too large for freed memory to be used again
    arguments = (*problem_of(*tensors).tensors, *problem_of(*tensors).options, False, False)
    for _ in range(2):
        forward_op("triton")(*arguments)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 2**20, before[1]))
    try:
        forward_op("triton")(*arguments)
    except RuntimeError as error:
        assert "expected memory" in str(error), error
    else:
        raise AssertionError("expected an error")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert all(t._use_count() == 1 for t in tensors), "the operator keeps its arguments"


def activation_checkpoint_of_a_first_call_works() -> None:
    tensors = inputs(length=48, grad=True)
    gate = vectors()
    for _ in range(2):
        out = checkpoint(
            lambda *wide: qk.quasi_attention(*wide, gate, backend="triton"), *tensors[:5], use_reentrant=False
        )
        out.backward(torch.ones_like(out))


def mask_of_inference_mode_can_be_trained_with() -> None:
    with torch.inference_mode():
        mask = torch.ones(2, 1, 1, 20, dtype=torch.bool)
    for _ in range(2):
        call(inputs(grad=True), backward=True, attn_mask=mask)


def second_derivative_is_refused() -> None:
    tensors = inputs(grad=True)
    for _ in range(2):
        out = qk.quasi_attention(*tensors, backend="triton")
        (grad,) = torch.autograd.grad(out, tensors[:1], torch.ones_like(out), create_graph=True)
        try:
            torch.autograd.grad(grad, tensors[:1], torch.ones_like(grad))
        except NotImplementedError:
            continue
        raise AssertionError("expected an error")


def compiled_graphs_run_no_python() -> None:
    tensors = inputs(grad=True)
    compiled = torch.compile(
        lambda *wide: qk.quasi_attention(*wide, backend="triton"), fullgraph=True, backend="aot_eager"
    )

    def step() -> None:
        out = compiled(*tensors)
        torch.autograd.grad(out, tensors, torch.ones_like(out))

    for _ in range(2):
        step()
    assert [one.kernel for one in launches_without_python(step)] == ["forward_kernel", "key_blocks_kernel"]


def operators_pass_opcheck() -> None:
    problem = problem_of(*inputs(grad=True))
    arguments = (*problem.tensors, *problem.options, False, False)
    tests = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(forward_op("triton").default, arguments, test_utils=tests)


def other_tile_tables_are_used_at_once() -> None:
    call(inputs(length=300))
    table = tile_tables.table_for(torch.device("cpu"))
    smaller = [replace(e, block_m=32, num_warps=2) if e.kernel == "tiled_forward" else e for e in table.entries]
    (before,) = launches_without_python(lambda: call(inputs(length=300)))
    with tile_tables.trial(replace(table, entries=tuple(smaller))):
        call(inputs(length=300))
        (within,) = launches_without_python(lambda: call(inputs(length=300)))
    assert within.grid[0] > before.grid[0]


def launch_hooks_are_called() -> None:
    names: list[str] = []

    def note(metadata) -> None:
        names.append(metadata.get()["name"])

    call(inputs())
    knobs.runtime.launch_enter_hook.add(note)
    call(inputs())
    knobs.runtime.launch_enter_hook.remove(note)
    assert names == ["forward_kernel"]
    launches_without_python(lambda: call(inputs()))


def other_versions_of_triton_launch_from_python() -> None:
    """Machine code with one parameter more, and a kernel without a member that prepared launches read."""
    types = first_calls._ptx_types
    for length, other in ((24, lambda compiled: [*types(compiled), "u64"]), (40, lambda compiled: compiled.asm["new"])):
        first_calls._ptx_types = other
        for _ in range(2):
            launches, files = launches_and_files(lambda: call(inputs(length=length)))  # noqa: B023
            assert [one.kernel for one in launches] == ["forward_kernel"]
            assert "launch.py" in files
    first_calls._ptx_types = types
    call(inputs(length=40))
    launches_without_python(lambda: call(inputs(length=40)))


def library_serves_a_torch_for_cuda() -> None:
    """Torch for the CPU has no streams; `make release-check` has torch for CUDA."""
    assert prepared.in_use(torch.device("cuda")) == (torch.version.cuda is not None), prepared.why_not()


def self_check_runs_prepared_launches() -> None:
    """Must be the last check: results that no kernel writes are wrong, so the backend is disabled."""
    os.environ["QACG_SELF_CHECK"] = "first"
    self_check.forget()
    tensors = [torch.randn_like(t) for t in inputs()]
    with captured_launches(STUB) as launches, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.no_grad():
            got = qk.quasi_attention(*tensors, backend="triton")
            again = qk.quasi_attention(*tensors, backend="triton")
    assert launches and "backend 'triton' fails" in str(caught[0].message), caught
    expected = qk.quasi_attention(*tensors, backend="reference")
    assert torch.equal(got, expected) and torch.equal(again, expected)


CHECKS = (
    new_numbers_of_tokens_are_prepared,
    new_lengths_are_prepared,
    thread_without_context_launches,
    negative_bit_is_resolved,
    wrong_calls_raise_the_errors_of_the_validation,
    large_heads_do_not_share_launches,
    calls_without_memory_keep_no_tensor,
    activation_checkpoint_of_a_first_call_works,
    mask_of_inference_mode_can_be_trained_with,
    second_derivative_is_refused,
    compiled_graphs_run_no_python,
    operators_pass_opcheck,
    other_tile_tables_are_used_at_once,
    launch_hooks_are_called,
    other_versions_of_triton_launch_from_python,
    library_serves_a_torch_for_cuda,
    self_check_runs_prepared_launches,
)


def main() -> None:
    replace_driver(StubGPU("sm_90"))
    prepared.register("CPU")
    with tile_tables.trial(tile_tables.shipped("sm_90")):
        for check in CHECKS:
            check()
            print(check.__name__, flush=True)


if __name__ == "__main__":
    main()
