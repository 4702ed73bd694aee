"""Turns on the self-check of the compiled CPU kernels, and adds a fault to their results that it has to detect."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from qacg_kernels.backends import cpu
from qacg_kernels.call.problem import ForwardOutputs, Gradients, Saved
from qacg_kernels.operators import self_check

# A function that changes the results of a launch in place. It gets them by name, and the call's tensors and options.
Fault = Callable[[dict[str, torch.Tensor], dict[str, object]], None]

GRADIENTS = tuple(f"grad {name}" for name in Gradients._fields)


@contextlib.contextmanager
def unchecked_cpu(fault: Fault | None = None, backward: bool = False) -> Iterator[list[str]]:
    """A context manager with the self-check of the "cpu" operators turned on.

    Args:
        fault: called after every launch of the forward, or of the backward.
        backward: whether `fault` is for the backward.

    Yields:
        A list to which each launch by the self-check appends "forward" or "backward". Later calls of a variant that has
        passed the self-check append nothing.
    """
    launched: list[str] = []

    def with_fault(backend, problem, others):
        is_backward = isinstance(others, Saved)
        launched.append("backward" if is_backward else "forward")
        results = before(backend, problem, others)
        if fault is not None and is_backward == backward:
            call = problem.tensors._asdict() | problem.options._asdict() | others._asdict()
            call |= {"column_gate": problem.column_gate}
            fault(dict(zip(GRADIENTS if is_backward else ForwardOutputs._fields, results)), call)
        return results

    before, self_check.launch_compiled = self_check.launch_compiled, with_fault
    if "cpu" not in self_check.restarts:
        cpu.check_first_calls()
    self_check.forget()
    try:
        yield launched
    finally:
        self_check.launch_compiled = before
        self_check.forget()
        if not cpu.NEEDS_SELF_CHECK:
            cpu._library.qacg_cpu_check_first_calls(None)
