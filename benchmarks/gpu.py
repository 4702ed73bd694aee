"""The GPU benchmark: `make bench-gpu OUT=dir`, or `python -m benchmarks.gpu --out DIR`.

Goes through the plan of `gpu_plan.py` within a budget of time, most wanted first, and writes each row at once. What
the budget did not reach and what a provider refused is told, not dropped. Then the marks, and a plot of the rows.
"""

import argparse
import sys
import time
from collections.abc import Callable

import torch

import qacg_kernels as qk
from benchmarks import device_memory, gpu_marks, gpu_plan, host, rows, timing, verify
from benchmarks.gpu_plan import Item
from benchmarks.providers import PROVIDERS, Call
from benchmarks.run import INTERRUPTED, heading, time_calls
from benchmarks.shapes import FORWARD, FORWARD_BACKWARD, Case, Inputs, draw_sets

SECONDS = 420
BACKENDS = ("triton", "cuda")
_PEAK_SIZE = 8192


class Budget:
    """Seconds that a run may take."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._end = now, now() + seconds

    def is_spent(self) -> bool:
        return self._now() >= self._end


class Run:
    """Measures items in their order, keeps the rows, and what is missing with the reason."""

    def __init__(self, writer: rows.Writer, source: rows.Origin, effort: timing.Effort, budget: Budget) -> None:
        self._writer, self._source, self._effort, self._budget = writer, source, effort, budget
        self.peak_gflops: float | None = None
        self.rows: list[rows.Row] = []
        self.missing: list[str] = []
        self.wrong: list[str] = []  # of providers whose answers break the error rule

    def keep(self, new: list[rows.Row]) -> None:
        self._writer.add(new)
        self.rows += new

    def times(self, item: Item) -> None:
        """Times an item's providers side by side; one that fails is left out, and the others are timed without it."""
        if self._budget.is_spent():
            self.missing.append(f"{item.case}: the time is spent")
            return
        case, sets = item.case, draw_sets(item.case)
        willing = {}
        for name in item.providers:
            why = PROVIDERS[name].reasons_against(case)
            if why:
                self._leave_out(case, name, "; ".join(why))
            else:
                willing[name] = PROVIDERS[name].build(case)
        calls = {name: call for name, call in willing.items() if self._is_right(case, name, call, sets)}
        if not calls:
            return
        new = time_calls(case, calls, sets, self._effort, self._source, self.peak_gflops)
        self.keep(new)
        print(f"{case}: " + ", ".join(f"{row.provider} {row.median_ms:.4g} ms" for row in new), flush=True)

    def _is_right(self, case: Case, name: str, call: Call, sets: list[Inputs]) -> bool:
        """Whether a call runs and its results agree; why not is kept."""
        try:
            timing.make_step(call, case, sets)(0)
            if PROVIDERS[name].computes_quasi:
                verify.require_agreement({name: call}, case, sets[0])
        except verify.ParityError as error:
            self.wrong.append(str(error))
            self._leave_out(case, name, str(error))
            return False
        except (RuntimeError, NotImplementedError) as error:
            first_line = next(iter(str(error).splitlines()), "")
            self._leave_out(case, name, f"{type(error).__name__}: {first_line[:200]}")
            return False
        return True

    def _leave_out(self, case: Case, name: str, why: str) -> None:
        self.missing.append(f"{case}, {name}: {why}")
        print(self.missing[-1], flush=True)

    def extras(self, backend: str, device: str) -> None:
        """The host's part of a call, and peak memory."""
        for mode in (FORWARD, FORWARD_BACKWARD):
            case = Case(gpu_plan.HOST_SHAPE, gpu_plan.DTYPE, mode, 0.0, device)
            self._one(case, backend, host.measure)
        case = Case(gpu_plan.MEMORY_SHAPE, gpu_plan.DTYPE, FORWARD_BACKWARD, 0.0, device)
        self._one(case, backend, device_memory.measure)

    def _one(self, case: Case, name: str, measure) -> None:
        try:
            row = measure(case, name, PROVIDERS[name].build(case), self._source)
        except RuntimeError as error:
            self._leave_out(case, name, f"{measure.__module__}: {error}")
            return
        self.keep([row])
        print(f"{case}, {name}: {row.kind} row written", flush=True)


def matrix_peak(device: str, dtype: torch.dtype = torch.bfloat16, size: int = _PEAK_SIZE) -> float:
    """GFLOP/s of a large product: what share of it a kernel reaches is what can be compared between GPUs."""
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    case = Case(gpu_plan.HOST_SHAPE, gpu_plan.DTYPE, FORWARD, 0.0, device)
    step = timing.make_step(lambda: a @ b, case, [_NoInputs()])
    taken = timing.interleave({"product": step}, timing.Effort(1.0, 5, 50))["product"]
    return rows.figure(2 * size**3 / timing.Spread.of(taken).median / 1e9)


class _NoInputs:
    operands = ()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The benchmark on a GPU.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for rows, plot and verdicts")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when to stop starting new cases")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench-gpu: torch sees no NVIDIA GPU on this machine; run it on one", file=sys.stderr)
        return 2
    backends = tuple(name for name in BACKENDS if name in qk.available_backends())
    if not backends:
        print("bench-gpu: neither triton nor cuda is available (python -m qacg_kernels.info)", file=sys.stderr)
        return 2
    torch.cuda.set_device(0)
    budget, source = Budget(options.seconds), rows.origin()
    print(f"{torch.cuda.get_device_name()}; {heading(source)}\n{rows.FLOP_CONVENTION}", flush=True)
    writer = rows.Writer(options.out, "gpu", source)
    run = Run(writer, source, timing.ON_DEVICE, budget)
    try:
        print(f"parity: {verify.require_parity('cuda')} checks passed", flush=True)
        run.peak_gflops = matrix_peak("cuda")
        print(f"matrix peak, bfloat16 {_PEAK_SIZE}^3: {run.peak_gflops / 1e3:.4g} TFLOP/s", flush=True)
        for backend in backends:
            run.extras(backend, "cuda")
        for item in gpu_plan.items(backends):
            run.times(item)
            torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    report(run, backends, torch.cuda.get_device_name(), writer)
    return int(bool(run.wrong))


def report(run: Run, backends: tuple[str, ...], device_name: str, writer: rows.Writer, device: str = "cuda") -> None:
    """Prints the marks and what is missing, beside the rows as text too, and draws the plot."""
    lines = []
    for backend in backends:
        verdicts = gpu_marks.named(gpu_marks.judge(backend, run.rows, device), device_name)
        lines += [str(v) for v in verdicts]
        lines.append(f"{backend}: {sum(v.met for v in verdicts)} of {len(verdicts)} marks met on {device_name}")
    lines += ["not measured:", *run.missing] if run.missing else ["everything of the plan was measured"]
    print("\n".join(lines), flush=True)
    writer.path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        from benchmarks import gpu_plot

        gpu_plot.draw(run.rows, str(writer.path.with_suffix(".svg")))
    except (ImportError, ValueError) as error:
        print(f"no plot: {error}; later: python -m benchmarks.gpu_plot {writer.path}")


if __name__ == "__main__":
    sys.exit(main())
