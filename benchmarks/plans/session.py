"""A run through a plan: items in their order, within a budget of time, each row kept at once.

What the budget did not reach and what a provider refused is told, not dropped. A run that was cut off goes on where it
was: an item whose rows are there is not measured again.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import rows
from benchmarks.cases.case import Case
from benchmarks.cases.inputs import Inputs, draw_sets
from benchmarks.measure import ceiling, device_memory, host, timing, verify
from benchmarks.measure.memory_process import measure_memory
from benchmarks.measure.side_by_side import time_calls
from benchmarks.providers.registry import PROVIDERS, Call

TIME, HOST, MEMORY = "time", "host", "memory"  # kinds of rows, as `rows` names them


@dataclass(frozen=True)
class Item:
    """One case with the providers that are measured side by side in it, and what is measured."""

    case: Case
    providers: tuple[str, ...]
    kind: str = TIME


class Budget:
    """Seconds that a run may take."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, now() + seconds

    def left(self) -> float:
        return self._end - self._now()

    def is_spent(self) -> bool:
        return self.left() <= 0


class Session:
    """Measures items in their order, keeps the rows, and what is missing with the reason.

    Attributes:
        rows: all of the writer's file, those kept from an earlier run first.
        missing: what has no row and why.
        wrong: of providers whose answers break the error rule.
    """

    def __init__(self, writer: rows.Writer, source: rows.Origin, effort: timing.Effort, budget: Budget) -> None:
        self._writer, self._source, self._effort, self._budget = writer, source, effort, budget
        self._products: dict[str, ceiling.Product] = {}
        self.rows: list[rows.Row] = list(writer.kept)
        self.missing: list[str] = []
        self.wrong: list[str] = []

    def keep(self, new: list[rows.Row]) -> None:
        self._writer.add(new)
        self.rows += new

    def take_ceilings(self, dtypes: Iterable[str], device: str) -> None:
        """Finds the fastest product of each type, which from then on takes turns with the providers."""
        self._products, tried = ceiling.measure_all(dtypes, self._source, device)
        self.keep(tried)

    def measure(self, item: Item, label: str = "") -> None:
        """Measures an item; a provider that refuses or fails is left out, and the others go on without it.

        Args:
            item: what to measure; nothing is done if its rows are there.
            label: printed before what was measured, to show how far the run is.
        """
        case = item.case
        refusals = {name: PROVIDERS[name].reasons_against(case) for name in item.providers}
        willing = [name for name in item.providers if not refusals[name]]
        wanted = [name for name in willing if not self._has(item, name)]
        if self._budget.is_spent():
            if wanted:
                self.missing.append(f"{case}, {item.kind}: the time is spent")
            return
        for name, why in refusals.items():
            if why:
                self._leave_out(case, name, "; ".join(why))
        if not wanted:
            return
        if item.kind == MEMORY and case.device == "cpu":  # in processes of their own
            threads = torch.get_num_threads()
            new = self._each(case, {name: partial(measure_memory, case, name, threads) for name in wanted})
        else:
            # Side by side: one that has a row already runs again beside those that have none.
            new = self._in_this_process(item, willing)
        if new:
            self.keep(new)
            print(f"{label}{case}: " + ", ".join(row.brief for row in new), flush=True)

    def _in_this_process(self, item: Item, names: list[str]) -> list[rows.Row]:
        """Rows of the providers that run and are right."""
        torch._dynamo.reset()  # items must not count towards one another's limit of recompilations
        case, sets = item.case, draw_sets(item.case)
        running = {name: call for name in names if (call := self._running(case, name, sets)) is not None}
        calls = self._right(running, case, sets[0])
        if not calls:
            return []
        if item.kind == TIME:
            return time_calls(case, calls, sets, self._effort, self._source, self._products.get(case.dtype))
        take = host.measure if item.kind == HOST else device_memory.measure
        return self._each(case, {name: partial(take, case, name, call, self._source) for name, call in calls.items()})

    def _each(self, case: Case, measurements: dict[str, Callable[[], rows.Row]]) -> list[rows.Row]:
        """The rows of providers that are measured one by one."""
        found = []
        for name, take in measurements.items():
            try:
                found.append(take())
            except Exception as error:
                self._leave_out(case, name, str(error))
        return found

    def _has(self, item: Item, name: str) -> bool:
        return any(
            row.kind == item.kind and row.provider == name and row.case == item.case
            for row in self.rows
            if isinstance(row, rows.Measured)
        )

    def _running(self, case: Case, name: str, sets: list[Inputs]) -> Call | None:
        """A provider's call, if it runs; else None, and why is kept."""
        try:
            call = PROVIDERS[name].build(case)
            timing.make_step(call, case, sets)(0)
        except Exception as error:  # compilers of kernels have errors of their own kinds
            first_line = next(iter(str(error).splitlines()), "")
            self._leave_out(case, name, f"{type(error).__name__}: {first_line[:200]}")
            return None
        return call

    def _right(self, calls: dict[str, Call], case: Case, inputs: Inputs) -> dict[str, Call]:
        """The calls whose results agree; what the others are off by is kept."""
        quasi = {name: call for name, call in calls.items() if PROVIDERS[name].computes_quasi}
        wrong = verify.disagreements(quasi, case, inputs)
        for name, why in wrong.items():
            self.wrong.append(why)
            self._leave_out(case, name, why)
        return {name: call for name, call in calls.items() if name not in wrong}

    def _leave_out(self, case: Case, name: str, why: str) -> None:
        self.missing.append(f"{case}, {name}: {why}")
        print(self.missing[-1], flush=True)
