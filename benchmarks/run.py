"""Side-by-side times: `python -m benchmarks.run --shapes 64,12,128,64 --providers eager cpu --out DIR`."""

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import ceiling, rows, timing, verify
from benchmarks.ceiling import Product
from benchmarks.providers import PROVIDERS, Call, chosen, default_names
from benchmarks.shapes import (
    DTYPES,
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    LENGTHS,
    MAIN_SHAPES,
    MODES,
    QUICK_SHAPES,
    Case,
    Inputs,
    Shape,
    draw_sets,
    grid,
)
from benchmarks.table import markdown

INTERRUPTED = 130  # what a shell reports for a program ended by Ctrl-C
_ROOT = Path(__file__).resolve().parent.parent


def measure_case(
    case: Case, names: list[str], effort: timing.Effort, source: rows.Origin, product: Product | None = None
) -> list[rows.TimeRow]:
    """Checks that the providers agree on the case, times them in turn, and returns a row for each.

    With a product, whose rate is the ceiling, each figure's share of it is known.

    Raises:
        benchmarks.verify.ParityError: a provider computes something else.
        RuntimeError, ValueError: a provider does not take the case, or there is none of that name.
    """
    providers = chosen(names, case)
    calls = {name: provider.build(case) for name, provider in providers.items()}
    sets = draw_sets(case)
    quasi = {name: call for name, call in calls.items() if providers[name].computes_quasi}
    verify.require_agreement(quasi, case, sets[0])
    return time_calls(case, calls, sets, effort, source, product)


def time_calls(
    case: Case,
    calls: dict[str, Call],
    sets: list[Inputs],
    effort: timing.Effort,
    source: rows.Origin,
    product: Product | None = None,
) -> list[rows.TimeRow]:
    """Times calls that are known to be right, in turn, the product among them; a row for each call."""
    steps = {name: timing.make_step(call, case, sets) for name, call in calls.items()}
    if product is not None:
        steps[product.name] = product.step
    disturbance = timing.Disturbance()
    taken = timing.interleave(steps, effort)
    peak = None
    if product is not None:
        peak = product.gflops(timing.Spread.of(taken.pop(product.name)).median)
    providers = {name: PROVIDERS[name] for name in calls}
    return rows.time_rows(case, providers, taken, disturbance.share(), source, peak)


def measure_memory(case: Case, name: str, threads: int) -> rows.MemoryRow:
    """Peak memory, taken by `benchmarks.memory` in a process of its own.

    Raises:
        RuntimeError: it could not be measured; the message is that of the process.
    """
    arguments = {
        "shape": ",".join(map(str, case.shape)),
        "dtype": case.dtype,
        "mode": case.mode,
        "lengths": case.lengths,
        "dropout": case.dropout,
        "provider": name,
        "threads": threads,
    }
    command = [sys.executable, "-m", "benchmarks.memory"]
    command += [part for key, value in arguments.items() for part in (f"--{key}", str(value))]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip() or f"the process ended with status {done.returncode}")
    return rows.from_line(done.stdout)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Options that every command which measures has."""
    parser.add_argument("--out", metavar="DIR", help="folder for the rows; without it they are only printed")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that everything runs")


def heading(source: rows.Origin) -> str:
    """Machine and versions in one line."""
    machine, versions = source.machine, source.versions
    sets = machine["instruction_sets"] or {}
    kernels = ", ".join(f"{dtype} on {name}" for dtype, name in sets.items()) or "no compiled kernels"
    changed = " with local changes" if source.dirty else ""
    return (
        f"{machine['cpu']}, {machine['threads']} threads, torch {versions['torch']} "
        f"({machine['torch_instruction_set']}), {kernels}, commit {source.commit}{changed}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Times of attention, providers side by side."
    )
    add_common_options(parser)
    parser.add_argument("--shapes", type=Shape.parse, nargs="+", metavar="B,H,L,D")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["float32"])
    parser.add_argument("--modes", choices=MODES, nargs="+", default=[FORWARD, FORWARD_BACKWARD])
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.0])
    parser.add_argument("--lengths", choices=LENGTHS, nargs="+", default=[FULL])
    parser.add_argument("--providers", choices=PROVIDERS, nargs="+", help="all that take the case, if not given")
    options = parser.parse_args(arguments)

    torch.set_num_threads(options.threads)
    shapes = options.shapes or (QUICK_SHAPES if options.quick else MAIN_SHAPES)
    effort = timing.QUICK if options.quick else timing.THOROUGH
    source = rows.origin()
    print(heading(source), flush=True)
    measured: list[rows.TimeRow] = []
    try:
        print(f"parity: {verify.require_parity()} checks passed", flush=True)
        writer = rows.Writer(options.out, "run", source)
        products, tried = ceiling.measure_all(options.dtypes, source)
        writer.add(tried)
        for case in grid(shapes, options.dtypes, options.modes, options.dropouts, options.lengths):
            names = options.providers or default_names(case)
            new = measure_case(case, names, effort, source, products[case.dtype])
            writer.add(new)
            measured += new
            print(f"{case}: " + ", ".join(row.brief for row in new), flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept")
        return INTERRUPTED
    except verify.ParityError as error:
        print(f"parity fails, so there are no figures:\n{error}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    print("\n" + markdown(measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
