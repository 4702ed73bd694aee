"""Times implementations interleaved in one process, with a different set of inputs in every call."""

import gc
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import records
from benchmarks.cases import BACKWARD, FORWARD, FORWARD_BACKWARD, TRAINING_FORWARD, Case, Inputs
from benchmarks.implementations.registry import Call
from qacg_kernels.backends import cpu

Step = Callable[[int], float]


@dataclass(frozen=True)
class Effort:
    """How long to measure one case: a time limit, and bounds on the number of rounds, which take precedence."""

    seconds: float
    fewest_rounds: int
    most_rounds: int
    warmup_rounds: int = 2


ON_DEVICE = Effort(seconds=1.0, fewest_rounds=5, most_rounds=40)
THOROUGH = Effort(seconds=8, fewest_rounds=5, most_rounds=60)
QUICK = Effort(seconds=1, fewest_rounds=3, most_rounds=10, warmup_rounds=1)


class CpuContention:
    """Measures the share of the CPU that other processes use, from the creation of the object on.

    With as many threads as cores, one busy process delays every barrier, and times grow up to tenfold.
    """

    _STAT = Path("/proc/stat")

    def __init__(self) -> None:
        self._start = self._read()

    def share(self) -> float | None:
        """The share (0 to 1) of the CPU time that other processes have used since the creation of the object.

        None if it is unknown, as on systems without /proc/stat.
        """
        now = self._read()
        if self._start is None or now is None:
            return None
        total, busy, own = (later - earlier for later, earlier in zip(now, self._start))
        return round(min(1.0, max(0.0, (busy - own) / total)), 3) if total > 0 else 0.0

    @classmethod
    def _read(cls) -> tuple[float, float, float] | None:
        """CPU seconds since boot: in total, not idle, and of this process; None if unknown."""
        if not cls._STAT.exists():
            return None
        # user, nice, system, idle, iowait, irq, softirq, steal; the guest fields after them are part of user.
        ticks = [int(value) for value in cls._STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
        per_second = os.sysconf("SC_CLK_TCK")
        own = os.times()
        return sum(ticks) / per_second, (sum(ticks) - ticks[3] - ticks[4]) / per_second, own.user + own.system


class _WallClock:
    """Measures wall time, for work on the CPU."""

    def start(self) -> None:
        self._started = time.perf_counter()

    def stop(self) -> float:
        return time.perf_counter() - self._started


class _DeviceClock:
    """Measures the time between two events in the device's stream.

    `start` first clears a buffer that is larger than any L2 cache. This evicts the inputs. It also keeps the device
    busy while the host queues the call, so that the time of a short kernel does not include host overhead.
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


def clock(device: str) -> _WallClock | _DeviceClock:
    """Returns the clock for work on a device."""
    return _WallClock() if device == "cpu" else _DeviceClock(device)


def make_step(call: Call, case: Case, sets: list[Inputs]) -> Step:
    """Returns a function of n that runs a call on `sets[n % len(sets)]` and returns the seconds.

    Results are freed after the clock has stopped.
    """
    watch = clock(case.device)

    def gradients(out, inputs: Inputs):
        # Softmax attention alone does not use the context and the gate.
        return torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)

    def forward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        with torch.set_grad_enabled(case.mode == TRAINING_FORWARD):
            watch.start()
            out = call(*inputs.operands)
            seconds = watch.stop()
        del out
        return seconds

    def forward_backward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        watch.start()
        out = call(*inputs.operands)
        grads = gradients(out, inputs)
        seconds = watch.stop()
        del out, grads
        return seconds

    def backward(turn: int) -> float:
        inputs = sets[turn % len(sets)]
        out = call(*inputs.operands)
        watch.start()
        grads = gradients(out, inputs)
        seconds = watch.stop()
        del out, grads
        return seconds

    steps = {FORWARD: forward, TRAINING_FORWARD: forward, FORWARD_BACKWARD: forward_backward, BACKWARD: backward}
    return steps[case.mode]


def interleave(steps: dict[str, Step], effort: Effort) -> dict[str, list[float]]:
    """Runs the steps in the order A B C A B C until `effort` is reached; returns the seconds of each round by name.

    The calls of all steps are numbered consecutively, and the number selects the set of inputs (`make_step`). So
    consecutive calls use different sets, and no step reads inputs that the step before it left in the cache. Warm-up
    rounds come first and are not counted.
    """
    turns = itertools.count()
    for _ in range(effort.warmup_rounds):
        for step in steps.values():
            step(next(turns))
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    gc.collect()
    gc.disable()
    try:
        deadline = time.perf_counter() + effort.seconds
        for round_index in range(effort.most_rounds):
            if round_index >= effort.fewest_rounds and time.perf_counter() > deadline:
                break
            for name, step in steps.items():
                seconds[name].append(step(next(turns)))
    finally:
        gc.enable()
    return seconds


def interleave_in_one_state(
    steps: dict[str, Step], effort: Effort
) -> tuple[dict[str, list[float]], dict[str, float] | None]:
    """`interleave` on the CPU; also returns the rates of products in these rounds (`cpu.product_rates`), None without.

    The rates are medians. Rounds in which the AMX tiles ran in another state than in the median round are left out.
    """
    rates: list[dict[str, float]] = []

    def measure(_turn: int) -> float:
        rates.append(cpu.product_rates())
        return 0.0

    seconds = interleave({**steps, "products": measure}, effort)
    del seconds["products"], rates[: effort.warmup_rounds]
    if "amx" in rates[0]:
        middle = sorted(rates, key=lambda one: one["amx"] / one["fma"])[len(rates) // 2]
        same = [records.of_one_state((one, middle)) for one in rates]
        seconds = {name: list(itertools.compress(own, same)) for name, own in seconds.items()}
        rates = list(itertools.compress(rates, same))
    medians = {name: records.rounded(statistics.median(one[name] for one in rates)) for name in rates[0]}
    return seconds, medians or None
