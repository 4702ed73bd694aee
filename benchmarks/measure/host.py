"""What a call costs the host: the time until it returns, whatever the device still has to do."""

import time

import torch

from benchmarks import rows
from benchmarks.cases.case import FORWARD, Case
from benchmarks.cases.inputs import draw
from benchmarks.providers.registry import Call

_REPEATS = 200
_WARM_UP = 20
# Calls in flight before the device is waited for: few, so that its queue never makes the host wait.
_IN_FLIGHT = 10


def measure(case: Case, name: str, call: Call, source: rows.Origin, repeats: int = _REPEATS) -> rows.HostRow:
    """The row of a provider; in the modes with a backward the call is the one that saves for it."""
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))
    taken = []
    with torch.set_grad_enabled(case.mode != FORWARD):
        for turn in range(_WARM_UP + repeats):
            if turn % _IN_FLIGHT == 0 and case.device != "cpu":
                torch.accelerator.synchronize(case.device)
            start = time.perf_counter()
            call(*inputs.operands)
            taken.append(1e6 * (time.perf_counter() - start))
    spread = rows.Spread.of(taken[_WARM_UP:])
    return rows.HostRow(
        origin=source,
        **rows.case_fields(case),
        provider=name,
        median_us=rows.figure(spread.median),
        q1_us=rows.figure(spread.q1),
        q3_us=rows.figure(spread.q3),
        repeats=repeats,
    )
