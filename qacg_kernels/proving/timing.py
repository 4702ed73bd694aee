"""Timing the backends that hold: one call as a user makes it, the host's part included, backends in turn."""

import gc
import statistics
import time

import torch

from qacg_kernels.certificates.lengths import PACKED_SENTENCES, TRAINING, Timed
from qacg_kernels.functional import quasi_attention, quasi_attention_varlen
from qacg_kernels.gate import GateParameters

# (batch, heads) at each length: work enough for a GPU, and maps that the reference can store.
_SHAPES = {"packed": (64, 12), "128": (64, 12), "512": (16, 12), "2048": (4, 8), "8192": (1, 2)}
_SENTENCE = 30  # tokens of the packed sentences, on average; the longest has 128
_FEWEST, _MOST, _SECONDS = 5, 30, 0.25


def seconds_of(timed: Timed, backends: tuple[str, ...], device: torch.device) -> dict[str, float]:
    """Median seconds of a call by backend. One that has not the memory for it is left out."""
    steps = {}
    for name in backends:
        step = _step(timed, name, device)
        try:
            step()
            step()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        steps[name] = step
    taken: dict[str, list[float]] = {name: [] for name in steps}
    gc.disable()
    try:
        end = time.perf_counter() + _SECONDS * len(steps)
        for turn in range(_MOST):
            if turn >= _FEWEST and time.perf_counter() > end:
                break
            for name, step in steps.items():
                taken[name].append(step())
    finally:
        gc.enable()
    return {name: statistics.median(times) for name, times in taken.items()}


def _step(timed: Timed, backend: str, device: torch.device):
    """A function that makes one call, waits for the device and returns the seconds."""
    dtype = getattr(torch, timed.dtype)
    batch, heads = _SHAPES[timed.length]
    training = timed.mode == TRAINING

    def drawn(*shape: int, size: float = 1.0) -> torch.Tensor:
        return (size * torch.randn(shape, device=device)).to(dtype).requires_grad_(training)

    if timed.length == PACKED_SENTENCES:
        lengths = torch.randint(2, 2 * _SENTENCE, (batch,)).tolist()
        lengths[0] = 128
        offsets = torch.tensor([0, *lengths]).cumsum(0).to(device, torch.int32)
        tensors = [drawn(sum(lengths), heads, timed.head_dim) for _ in range(5)]
        options = dict(cu_seqlens=offsets, max_seqlen=128)
        call = quasi_attention_varlen
    else:
        tensors = [drawn(batch, int(timed.length), heads, timed.head_dim).transpose(1, 2) for _ in range(5)]
        options, call = {}, quasi_attention
    gate = GateParameters(*(drawn(timed.head_dim, size=timed.head_dim**-0.5) for _ in range(4)))
    upstream = torch.randn(tensors[0].shape, device=device).to(dtype)

    def step() -> float:
        _wait(device)
        start = time.perf_counter()
        with torch.set_grad_enabled(training):
            out = call(*tensors, gate, **options, backend=backend)
            if training:
                torch.autograd.grad(out, tensors, upstream)
        _wait(device)
        return time.perf_counter() - start

    return step


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
