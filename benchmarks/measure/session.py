"""Measures a list of cases within a time limit and stores each record at once.

Cases beyond the time limit, and cases that an implementation does not support, are reported as missing. Cases that have
records from an interrupted run, which `records.Writer` keeps, are not measured again.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import records
from benchmarks.cases import FORWARD, FORWARD_BACKWARD, Case, Inputs, draw, draw_sets
from benchmarks.implementations.registry import EAGER, IMPLEMENTATIONS, Call
from benchmarks.measure import agreement, ceiling, timing
from benchmarks.measure.memory import measure_in_process, measure_on_gpu
from qacg_kernels.operators.self_check import SelfCheckError

TIME, OVERHEAD, MEMORY = "time", "overhead", "memory"  # kinds of records
_OVERHEAD_CALLS, _OVERHEAD_WARM_UP = 200, 20
_CALLS_IN_FLIGHT = 10  # calls between two waits for the device: few, so that a full queue does not block the host


@dataclass(frozen=True)
class Item:
    """A case, the implementations to measure in it, and the kind of record: TIME, OVERHEAD or MEMORY."""

    case: Case
    implementations: tuple[str, ...]
    kind: str = TIME


def time_records(
    case: Case,
    seconds: dict[str, list[float]],
    cpu_contention: float | None,
    source: records.Origin,
    matrix_peak_gflops: float | None = None,
    product_gflops: dict[str, float] | None = None,
) -> list[records.TimeRecord]:
    """Makes the records of one case from the seconds and rates of `timing.interleave_in_one_state`."""
    found = []
    for name, own in seconds.items():
        quartiles = records.Quartiles.of([1e3 * s for s in own])
        ratio = paired = None
        if EAGER in seconds:
            ratio = 1e3 * records.Quartiles.of(seconds[EAGER]).median / quartiles.median
            paired = records.Quartiles.of([eager / s for eager, s in zip(seconds[EAGER], own)])
        flops_per_entry = IMPLEMENTATIONS[name].flops_per_entry(case)
        found.append(
            records.TimeRecord(
                origin=source,
                **records.case_fields(case),
                implementation=name,
                **quartiles.in_ms(),
                repeats=len(own),
                cpu_contention=cpu_contention,
                flops_per_entry=flops_per_entry,
                gflops=records.rounded(flops_per_entry * case.products / quartiles.median / 1e6),
                ratio_to_eager=ratio and records.rounded(ratio),
                ratio_q1=paired and records.rounded(paired.q1),
                ratio_q3=paired and records.rounded(paired.q3),
                matrix_peak_gflops=matrix_peak_gflops and records.rounded(matrix_peak_gflops),
                product_gflops=product_gflops,
            )
        )
    return found


def measure_overhead(
    case: Case, name: str, call: Call, source: records.Origin, repeats: int = _OVERHEAD_CALLS
) -> records.OverheadRecord:
    """Measures the time until a call returns; with FORWARD_BACKWARD, until its backward returns."""
    inputs = draw(case, torch.Generator(case.device).manual_seed(0))
    microseconds = []
    with torch.set_grad_enabled(case.mode != FORWARD):
        for turn in range(_OVERHEAD_WARM_UP + repeats):
            if turn % _CALLS_IN_FLIGHT == 0 and case.device != "cpu":
                torch.accelerator.synchronize(case.device)
            start = time.perf_counter()
            out = call(*inputs.operands)
            if case.mode == FORWARD_BACKWARD:
                torch.autograd.grad(out, inputs.operands, inputs.grad_out, allow_unused=True)
            microseconds.append(1e6 * (time.perf_counter() - start))
    quartiles = records.Quartiles.of(microseconds[_OVERHEAD_WARM_UP:])
    return records.OverheadRecord(
        origin=source,
        **records.case_fields(case),
        implementation=name,
        median_us=records.rounded(quartiles.median),
        q1_us=records.rounded(quartiles.q1),
        q3_us=records.rounded(quartiles.q3),
        repeats=repeats,
    )


class Session:
    """Measures items in order, and collects their records and the reasons for missing records.

    Attributes:
        records: all records, those that the writer kept from an earlier run first.
        missing: a line for each case or implementation without a record, with the reason.
        wrong: a line for each implementation that `agreement.disagreements` finds or that fails the strict self-check.
    """

    def __init__(self, writer: records.Writer, source: records.Origin, effort: timing.Effort, end: float) -> None:
        """Measures nothing from the time `end` of `time.monotonic` on."""
        self._writer, self._source, self._effort, self._end = writer, source, effort, end
        self._products: dict[str, ceiling.Product] = {}
        self.records: list[records.Record] = list(writer.kept)
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def add(self, new: list[records.Record]) -> None:
        self._writer.add(new)
        self.records += new

    def measure_ceilings(self, dtypes: Iterable[str], device: str) -> None:
        """Finds the fastest product of each dtype, which then runs interleaved with the implementations."""
        for dtype in dict.fromkeys(dtypes):
            self._products[dtype], tried = ceiling.measure(dtype, self._source, device)
            self.add(tried)

    def measure(self, item: Item) -> None:
        """Measures an item, unless its records exist or the time limit is reached.

        An implementation that fails is left out, and the other implementations are measured.
        """
        case = item.case
        reasons = {name: IMPLEMENTATIONS[name].unsupported(case) for name in item.implementations}
        supported = [name for name in item.implementations if not reasons[name]]
        pending = [name for name in supported if not self._has(item, name)]
        if time.monotonic() >= self._end:
            if pending:
                self.missing.append(f"{case}, {item.kind}: the time limit is reached")
            return
        for name, why in reasons.items():
            if why:
                self._leave_out(case, name, "; ".join(why))
        if not pending:
            return
        if item.kind == MEMORY and case.device == "cpu":
            threads = torch.get_num_threads()
            new = self._each(case, {name: partial(measure_in_process, case, name, threads) for name in pending})
        else:
            # All supported implementations, since times are comparable within a run only.
            new = self._in_this_process(item, supported)
        if new:
            self.add(new)
            print(f"{case}: " + ", ".join(record.summary for record in new), flush=True)

    def _in_this_process(self, item: Item, names: list[str]) -> list[records.Record]:
        """Measures the implementations that run and are correct, and returns their records."""
        torch._dynamo.reset()  # else compilations of earlier items would count towards the recompilation limit
        case, sets = item.case, draw_sets(item.case)
        running = {name: call for name in names if (call := self._running(case, name, sets)) is not None}
        calls = self._correct(running, case, sets[0])
        if not calls:
            return []
        if item.kind == TIME:
            return self._times(case, calls, sets)
        measure = measure_overhead if item.kind == OVERHEAD else measure_on_gpu
        return self._each(
            case, {name: partial(measure, case, name, call, self._source) for name, call in calls.items()}
        )

    def _times(self, case: Case, calls: dict[str, Call], sets: list[Inputs]) -> list[records.Record]:
        """Times calls that have been checked, interleaved with the matrix product."""
        steps = {name: timing.make_step(call, case, sets) for name, call in calls.items()}
        product, peak, rates = self._products.get(case.dtype), None, None
        if product is not None:
            steps[product.name] = product.step
        contention = timing.CpuContention()
        if case.device == "cpu":
            seconds, rates = timing.interleave_in_one_state(steps, self._effort)
        else:
            seconds = timing.interleave(steps, self._effort)
        if product is not None:
            peak = product.gflops(records.Quartiles.of(seconds.pop(product.name)).median)
        return time_records(case, seconds, contention.share(), self._source, peak, rates)

    def _each(self, case: Case, measurements: dict[str, Callable[[], records.Record]]) -> list[records.Record]:
        """Runs the measurements one after another and returns the records of the successful ones."""
        found = []
        for name, measure in measurements.items():
            try:
                found.append(measure())
            except Exception as error:
                self._leave_out(case, name, str(error))
        return found

    def _has(self, item: Item, name: str) -> bool:
        return any(
            record.kind == item.kind and record.implementation == name and record.case == item.case
            for record in self.records
            if isinstance(record, records.CaseRecord)
        )

    def _running(self, case: Case, name: str, sets: list[Inputs]) -> Call | None:
        """Builds an implementation's call and runs it once; returns None if that fails."""
        try:
            call = IMPLEMENTATIONS[name].build(case)
            timing.make_step(call, case, sets)(0)
        except SelfCheckError as error:
            self.wrong.append(str(error))
            self._leave_out(case, name, str(error))
            return None
        except Exception as error:  # compilers of kernels raise their own exceptions
            first_line = next(iter(str(error).splitlines()), "")
            self._leave_out(case, name, f"{type(error).__name__}: {first_line[:200]}")
            return None
        return call

    def _correct(self, calls: dict[str, Call], case: Case, inputs: Inputs) -> dict[str, Call]:
        """The calls whose results are within the error rule."""
        quasi = {name: call for name, call in calls.items() if IMPLEMENTATIONS[name].computes_quasi}
        wrong = agreement.disagreements(quasi, case, inputs)
        for name, why in wrong.items():
            self.wrong.append(why)
            self._leave_out(case, name, why)
        return {name: call for name, call in calls.items() if name not in wrong}

    def _leave_out(self, case: Case, name: str, why: str) -> None:
        self.missing.append(f"{case}, {name}: {why}")
        print(self.missing[-1], flush=True)
