"""The GPU benchmark: `make bench-gpu OUT=dir`, or `python -m benchmarks.gpu --out DIR`.

Goes through the plan of `gpu_plan.py` as `session.py` does, within a budget of time, most wanted first. Then the marks,
and a plot of the rows.
"""

import argparse
import sys

import torch

import qacg_kernels as qk
from benchmarks import rows
from benchmarks.analysis import rate_plot
from benchmarks.cases import flops
from benchmarks.cli.options import INTERRUPTED
from benchmarks.measure import timing, verify
from benchmarks.plans import gpu_plan
from benchmarks.plans.session import Budget, Session
from benchmarks.targets import gpu_marks

SECONDS = 420
BACKENDS = ("triton", "cuda")


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
    print(f"{torch.cuda.get_device_name()}; {rows.heading(source)}\n{flops.CONVENTION}", flush=True)
    writer = rows.Writer(options.out, "gpu", source)
    run = Session(writer, source, timing.ON_DEVICE, budget)
    try:
        print(f"parity: {verify.require_parity('cuda')} checks passed", flush=True)
        run.take_ceilings([gpu_plan.DTYPE], "cuda")
        for item in gpu_plan.items(backends):
            run.measure(item)
            torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    report(run, backends, torch.cuda.get_device_name(), writer)
    return int(bool(run.wrong))


def report(
    run: Session, backends: tuple[str, ...], device_name: str, writer: rows.Writer, device: str = "cuda"
) -> None:
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
        rate_plot.draw(run.rows, str(writer.path.with_suffix(".svg")))
    except (ImportError, ValueError) as error:
        print(f"no plot: {error}; later: python -m benchmarks.gpu_plot {writer.path}")


if __name__ == "__main__":
    sys.exit(main())
