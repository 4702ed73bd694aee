"""The compiled CPU kernels, marked as unchecked and with a fault, which the self-check must find."""

import contextlib
from collections.abc import Callable, Iterator

import torch

from qacg_kernels import self_check
from qacg_kernels.operators import schema

# Receives the results of a launch, by name, and the call's tensors and options; changes the results in place.
Fault = Callable[[dict[str, torch.Tensor], dict[str, object]], None]

INPUTS = (
    *("query", "key", "value", "context_query", "context_key", "gate_lambda", "gate_query", "gate_context_query"),
    *("gate_key", "gate_context_key", "gate_query_bias", "gate_key_bias", "attn_mask", "key_lengths", "cu_seqlens"),
    "dropout_seed",
)
UPSTREAM = ("grad_out", "grad_query_gate", "grad_key_gate")
GRADIENTS = tuple(f"grad {name}" for name in INPUTS[:12])


@contextlib.contextmanager
def unchecked_cpu(fault: Fault | None = None, backward: bool = False) -> Iterator[list[str]]:
    """Context in which the "cpu" operators check themselves.

    Args:
        fault: happens after every launch of one direction.
        backward: which direction that is.

    Yields:
        The directions that were launched, in order.
    """
    launched: list[str] = []

    def compiled(operator):
        run, is_backward = before(operator), operator.name().endswith("backward")

        def with_fault(*tensors, **options):
            launched.append("backward" if is_backward else "forward")
            results = run(*tensors, **options)
            if fault is not None and is_backward == backward:
                names = (*UPSTREAM, *INPUTS, *schema.ForwardOutputs._fields[1:]) if is_backward else INPUTS
                call = dict(zip(names, tensors)) | options
                fault(dict(zip(GRADIENTS if is_backward else schema.ForwardOutputs._fields, results)), call)
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
        schema.in_python.pop("cpu", None)
        library._destroy()
        self_check.forget()
