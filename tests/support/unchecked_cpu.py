"""Makes the compiled CPU kernels check themselves, with a fault that `self_check` has to detect."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from qacg_kernels import self_check
from qacg_kernels.call.problem import ForwardOutputs, Gradients
from qacg_kernels.operators import schema

# Changes the results of a launch, by name, in place; receives the call's tensors and options too.
Fault = Callable[[dict[str, torch.Tensor], dict[str, object]], None]

GRADIENTS = tuple(f"grad {name}" for name in Gradients._fields)


@contextlib.contextmanager
def unchecked_cpu(fault: Fault | None = None, backward: bool = False) -> Iterator[list[str]]:
    """The "cpu" operators check themselves within this context.

    Args:
        fault: called after every launch of one direction.
        backward: whether this direction is the backward.

    Yields:
        The directions that were launched, in order.
    """
    launched: list[str] = []

    def compiled(backend, is_backward):
        run = before(backend, is_backward)

        def with_fault(problem, others):
            launched.append("backward" if is_backward else "forward")
            results = run(problem, others)
            if fault is not None and is_backward == backward:
                call = vars(problem) | others._asdict() | {"column_gate": problem.column_gate}
                fault(dict(zip(GRADIENTS if is_backward else ForwardOutputs._fields, results)), call)
            return results

        return with_fault

    before, self_check._compiled = self_check._compiled, compiled
    library = torch.library.Library(schema.NAMESPACE, "IMPL")
    self_check.forget()
    try:
        self_check.guard_compiled("cpu", row_max_of_empty=float("-inf"), library=library)
        yield launched
    finally:
        self_check._compiled = before
        schema.python_kernels.pop("cpu", None)
        library._destroy()
        self_check.forget()
