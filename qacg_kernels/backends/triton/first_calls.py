"""The operators' kernels in Python: they check first calls, and prepare the launches of later calls for C++.

A prepared launch is a text with everything that csrc/launch needs to launch the kernels of calls like this one: which
compiled kernels, and by which path ("call.query.batch") each of their arguments is found in a call. Imports Triton.
"""

import re
from collections.abc import Iterator

import torch
from triton import knobs

from qacg_kernels.backends.triton import NAME, launch, prepared, residuals
from qacg_kernels.backends.triton.launch import Grid, Operation, launch_backward, launch_forward
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Problem, Residuals, Saved
from qacg_kernels.operators import self_check

# The types of PTX for those of Triton; the two pointers at the end are to scratch memory.
_PTX_TYPES = {"i32": "u32", "i64": "u64", "fp32": "f32"}
_SCRATCH = ["u64", "u64"]


def forward(problem: Problem, residuals: Residuals) -> ForwardOutputs:
    """Implements qacg::triton_attention where no library does."""
    return CHECK.first_call(problem, residuals, _nothing)


def backward(problem: Problem, saved: Saved) -> Gradients:
    """Implements qacg::triton_attention_backward where no library does."""
    return CHECK.first_call(problem, saved, _nothing)


def _nothing() -> None:
    """Calls from Python have no mark that they are checked: `first_call` looks up their kernel variant each time."""


def _run_unchecked(problem: Problem, others: Residuals | Saved) -> ForwardOutputs | Gradients:
    if prepared.in_use(problem.query.device) and not prepared.is_hooked() and _prepare(problem, others):
        return prepared.launch(problem, others, launch.multiplies_in_tf32(problem.query))
    return run_in_python(problem, others)


def run_in_python(
    problem: Problem, others: Residuals | Saved, through: launch.Launch = launch.run
) -> ForwardOutputs | Gradients:
    """Runs a call from Python, without a check; `through` is called for each kernel."""
    if isinstance(others, Residuals):
        return launch_forward(Operation(problem, through), others)
    return launch_backward(Operation(problem, through), problem, others)


prepared.use_hooks_of(knobs.runtime)
CHECK = self_check.Kernel(NAME, _run_unchecked)


def _prepare(problem: Problem, others: Residuals | Saved) -> bool:
    """Prepares the launches of calls like this one, unless they are; returns False if such calls run in Python."""
    call = prepared.Call.of(problem, others, launch.multiplies_in_tf32(problem.query))
    if call is None or call.is_prepared():
        return call is not None
    try:
        text = _text(problem, others)
    except (AttributeError, KeyError):  # a version of Triton whose compiled kernels have other members
        text = None
    chosen = isinstance(others, Residuals) and others == residuals(problem)
    return text is not None and call.prepare(text, chosen)


def _text(problem: Problem, others: Residuals | Saved) -> str | None:
    """Returns the prepared launch of a call; None if a compiled kernel is not as C++ would launch it."""
    lines: list[str] = []

    def write(kernel, grid: Grid, arguments, constants, options, device: torch.device) -> None:
        with launch.on(device):
            compiled = kernel.warmup(*arguments, grid=(grid.programs,), **constants, **options)
            if compiled is None:  # Triton's `jit_cache_hook` handled the compilation
                lines.append("")
                return
            compiled[grid.programs, 1, 1]  # loads the machine code
        m = compiled.metadata
        parameters = [
            leaf
            for name, argument in zip(kernel.arg_names, arguments)
            for leaf in _leaves(compiled.src.signature[name], argument, name)
        ]
        expected = ["u64" if kind.startswith("*") else _PTX_TYPES.get(kind, kind) for kind, _ in parameters]
        plain = m.num_ctas == 1 and not m.global_scratch_size and not m.profile_scratch_size
        if not plain or m.launch_pdl or m.launch_cooperative_grid or _ptx_types(compiled) != expected + _SCRATCH:
            lines.append("")
            return
        lines.append(f"kernel {compiled.function} {32 * m.num_warps} {m.shared} {grid.over} {grid.per}")
        lines.extend(f"{kind} {path}" for kind, path in parameters)

    saves = others.save_softmax_out + 2 * others.save_quasi_out if isinstance(others, Residuals) else 0
    run_in_python(problem, others, write)
    if "" in lines:
        return None
    return "\n".join([f"saves {saves}", f"sums {launch.SUM_ROWS} {launch.sum_columns(problem.head_dim)}", *lines])


def _leaves(kind: object, argument: object, path: str) -> Iterator[tuple[str, str]]:
    """Yields type and path of every argument of the machine code; compile-time constants are none."""
    if isinstance(kind, tuple):
        for name, inner, member in zip(argument._fields, kind, argument):
            yield from _leaves(inner, member, f"{path}.{name}")
    elif kind != "constexpr":
        yield str(kind), path


def _ptx_types(compiled) -> list[str]:
    """Returns the types of the machine code's parameters."""
    entry = re.search(r"\.entry\s+\w+\(([^)]*)\)", compiled.asm["ptx"])
    return re.findall(r"\.param\s+\.(\w+)", entry[1]) if entry else []
