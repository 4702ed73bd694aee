"""How time is taken: providers in turn, in one process, on rotating inputs."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, TRAINING_FORWARD, Case
from benchmarks.cases.inputs import Inputs
from benchmarks.providers.registry import Call

Step = Callable[[int], float]


@dataclass(frozen=True)
class Effort:
    """How long to measure one case."""

    seconds: float
    fewest_rounds: int
    most_rounds: int
    warmup_rounds: int = 2


ON_DEVICE = Effort(seconds=1.0, fewest_rounds=5, most_rounds=40)
STEADY = Effort(seconds=3, fewest_rounds=5, most_rounds=40)
THOROUGH = Effort(seconds=8, fewest_rounds=5, most_rounds=60)
QUICK = Effort(seconds=1, fewest_rounds=3, most_rounds=10, warmup_rounds=1)


class _HostClock:
    """Wall time of this process."""

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter() - self._started


class _DeviceClock:
    """Time between two events in the device's stream.

    Clearing a buffer larger than any L2 cache comes first: the inputs are not in it, and the host has queued the
    call before the device comes to it, so a short kernel is not timed with the host's work.
    """

    _BYTES = 256 << 20

    def __init__(self, device: str) -> None:
        self._cleared = torch.empty(self._BYTES, dtype=torch.uint8, device=device)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def start(self) -> None:
        torch.cuda.synchronize()
        self._cleared.zero_()
        self._events[0].record()

    def stop(self) -> float:
        self._events[1].record()
        self._events[1].synchronize()
        return 1e-3 * self._events[0].elapsed_time(self._events[1])


def clock(device: str) -> _HostClock | _DeviceClock:
    """What takes the time of work on a device."""
    return _HostClock() if device == "cpu" else _DeviceClock(device)


def make_step(call: Call, case: Case, sets: list[Inputs]) -> Step:
    """A function that runs a provider once on the n-th set of inputs and returns the seconds taken.

    The results are freed after the clock has stopped.
    """
    watch = clock(case.device)

    def gradients(out, inputs: Inputs):
        # The floor has no use for the context and lambda.
        return torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)

    def forward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        with torch.set_grad_enabled(case.mode == TRAINING_FORWARD):
            watch.start()
            out = call(*inputs.operands)
            taken = watch.stop()
        del out
        return taken

    def forward_backward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        watch.start()
        out = call(*inputs.operands)
        grads = gradients(out, inputs)
        taken = watch.stop()
        del out, grads
        return taken

    def backward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        out = call(*inputs.operands)
        watch.start()
        grads = gradients(out, inputs)
        taken = watch.stop()
        del out, grads
        return taken

    steps = {FORWARD: forward, TRAINING_FORWARD: forward, FORWARD_BACKWARD: forward_backward, BACKWARD: backward}
    return steps[case.mode]


def interleave(steps: dict[str, Step], effort: Effort) -> dict[str, list[float]]:
    """Runs the steps in turn, A B C A B C, until the effort is spent; seconds by name and round.

    In one round each step gets another set of inputs, so that none finds them in cache from the one before.
    """
    turns = list(enumerate(steps.items()))
    for round_index in range(effort.warmup_rounds):
        for place, (_, step) in turns:
            step(round_index + place)
    taken: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        deadline = time.perf_counter() + effort.seconds
        for round_index in range(effort.most_rounds):
            if round_index >= effort.fewest_rounds and time.perf_counter() > deadline:
                break
            for place, (name, step) in turns:
                taken[name].append(step(round_index + place))
    finally:
        gc.enable()
    return taken
