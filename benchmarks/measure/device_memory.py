"""Peak memory of one forward and backward on a GPU, from the counters of torch's allocator."""

from functools import partial

import torch

from benchmarks import rows
from benchmarks.cases.case import Case
from benchmarks.cases.inputs import draw
from benchmarks.measure.memory_account import Account, NotMeasurableError, row, saved_bytes, storages
from benchmarks.providers.registry import Call

METHOD = (
    "torch's allocator: peak of allocated bytes minus those allocated before the forward, minus output and saved "
    "tensors, and in the backward minus gradients; the larger of forward and backward"
)
_CONTROL_BYTES = 64 * 10**6


def _peak_of(base: int, action, *arguments: object):
    """What the action returns, and the peak of allocated bytes during it above `base`."""
    torch.cuda.reset_peak_memory_stats()
    result = action(*arguments)
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - base


def measure(case: Case, name: str, call: Call, source: rows.Origin) -> rows.MemoryRow:
    """The row of a provider for a case with a backward, on the current CUDA device.

    Raises:
        NotMeasurableError: a known allocation is not found.
    """
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))

    def backward(out):
        return torch.autograd.grad(out, inputs.operands, inputs.grad_out)

    backward(call(*inputs.operands))  # compiles, and makes workspaces that stay
    base = torch.cuda.memory_allocated()
    _, control = _peak_of(base, partial(torch.empty, _CONTROL_BYTES, dtype=torch.uint8, device=case.device))
    if abs(control - _CONTROL_BYTES) > _CONTROL_BYTES // 16:
        raise NotMeasurableError(f"a known allocation of {_CONTROL_BYTES} bytes was measured as {control}")
    out, forward_peak = _peak_of(base, call, *inputs.operands)
    grads, backward_peak = _peak_of(base, backward, out)
    sizes = [sum(storages(tensors).values()) for tensors in (inputs, [out], grads)]
    del out, grads
    saved = saved_bytes(call, inputs)
    account = Account(sizes[0], sizes[1], saved, sizes[2], forward_peak, backward_peak, control)
    return row(case, name, source, account, METHOD)
