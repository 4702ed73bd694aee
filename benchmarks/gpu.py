"""The GPU benchmark: `make bench-gpu OUT=dir`, or `python -m benchmarks.gpu --out DIR`.

Goes through the plan of `gpu_plan.py` as `session.py` does, within a budget of time, most wanted first. Then the marks,
what `benchmarks.static` had predicted for Triton beside what was measured, and a plot of the rows. A backend whose
results are wrong is left out, and the command fails in the end.
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
from benchmarks.static import predictions
from benchmarks.targets import gpu_marks
from qacg_kernels import dispatch
from qacg_kernels.backends.triton.tile_tables import architecture_of

SECONDS = 420
BACKENDS = ("triton", "cuda", "hopper", "gluon")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The benchmark on a GPU.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for rows, plot and verdicts")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="when to stop starting new cases")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench-gpu: torch sees no NVIDIA GPU on this machine; run it on one", file=sys.stderr)
        return 2
    torch.cuda.set_device(0)
    backends = available_on(torch.device("cuda", 0))
    if not backends:
        print(f"bench-gpu: none of {', '.join(BACKENDS)} is available (python -m qacg_kernels.info)", file=sys.stderr)
        return 2
    budget, source, device_name = Budget(options.seconds), rows.origin(), torch.cuda.get_device_name()
    architecture = architecture_of(torch.device("cuda", 0))
    print(f"{device_name}; {rows.heading(source)}\n{flops.CONVENTION}", flush=True)
    writer = rows.Writer(options.out, "gpu", source)
    run = Session(writer, source, timing.ON_DEVICE, budget)
    try:
        sound = tuple(name for name in backends if is_sound(name))
        failures = [f"{name}: parity fails" for name in backends if name not in sound]
        if not sound:
            print("no backend is right here, so there are no figures", file=sys.stderr)
            return 1
        run.take_ceilings([gpu_plan.DTYPE], "cuda")
        for item in gpu_plan.items(sound):
            run.measure(item)
            torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except RuntimeError as error:  # after an illegal access, say, nothing runs on the GPU any more
        failures.append(f"the rest of the plan: {error}")
    run.missing += failures
    report(run, sound, device_name, writer, architecture)
    return int(bool(run.wrong or failures))


def available_on(device: torch.device) -> tuple[str, ...]:
    """The backends that are there and take calls on the device."""
    there = [name for name in BACKENDS if name in qk.available_backends()]
    return tuple(name for name in there if not dispatch.backend_of(name).not_for(device))


def is_sound(backend: str, device: str = "cuda") -> bool:
    """Whether a backend gives right results, which is printed. A backend that does not has no figures."""
    try:
        print(f"parity of {backend}: {verify.require_parity(device, [backend])} checks passed", flush=True)
    except Exception as error:  # a wrong row, or whatever the compiler of its kernels raises
        print(f"parity of {backend} fails, so it has no figures:\n{type(error).__name__}: {error}", file=sys.stderr)
        return False
    return True


def report(
    run: Session,
    backends: tuple[str, ...],
    device_name: str,
    writer: rows.Writer,
    architecture: str,
    device: str = "cuda",
) -> None:
    """Prints the marks, predictions and what is missing, beside the rows as text too, and draws the plot."""
    lines = []
    for backend in backends:
        verdicts = gpu_marks.named(gpu_marks.judge(backend, run.rows, device), device_name)
        lines += [str(v) for v in verdicts]
        lines.append(f"{backend}: {sum(v.met for v in verdicts)} of {len(verdicts)} marks met on {device_name}")
    lines += predictions.beside(run.rows, architecture)
    lines += ["not measured:", *run.missing] if run.missing else ["everything of the plan was measured"]
    print("\n".join(lines), flush=True)
    writer.path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    try:
        rate_plot.draw(run.rows, str(writer.path.with_suffix(".svg")))
    except (ImportError, ValueError) as error:
        print(f"no plot: {error}; later: python -m benchmarks.gpu_plot {writer.path}")


if __name__ == "__main__":
    sys.exit(main())
