"""The GPU benchmark: `make bench-gpu OUT=dir`, or `python -m benchmarks.gpu --out DIR`.

Measures the plan of `plans.py` within a time limit. Then it prints the performance targets and a table of the
measurements. Each case is checked before it is timed. The strict self-check of the kernels covers what this check does
not: gradients of gate vectors, and dropout. An implementation with wrong results in a case is not measured in it, and
the exit status is then 1.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import torch

import qacg_kernels as qk
from benchmarks import plans, records
from benchmarks.cases import FLOP_CONVENTION
from benchmarks.command import INTERRUPTED
from benchmarks.measure import timing
from benchmarks.measure.session import Session
from benchmarks.table import markdown
from benchmarks.targets.kinds import Result
from benchmarks.targets.performance import TARGETS
from qacg_kernels.backends import dispatch
from qacg_kernels.operators import self_check

SECONDS = 420
BACKENDS = ("triton", "cuda")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="The benchmark on a GPU.")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for records and results")
    parser.add_argument(
        "--seconds",
        type=float,
        default=SECONDS,
        help="no case is started after this many seconds (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench-gpu: expected an NVIDIA or AMD GPU, got none. Run it on a machine with one.", file=sys.stderr)
        return 2
    torch.cuda.set_device(0)
    device = torch.device("cuda", 0)
    backends = available_on(device)
    if not backends:
        print(
            f"bench-gpu: expected one of {', '.join(BACKENDS)}, got no available backend. "
            "python -m qacg_kernels.info prints the reasons.",
            file=sys.stderr,
        )
        return 2
    end, source, device_name = time.monotonic() + options.seconds, records.origin(), torch.cuda.get_device_name()
    print(f"{device_name}; {source}\n{FLOP_CONVENTION}", flush=True)
    writer = records.Writer(options.out, "gpu", source)
    session = Session(writer, source, timing.ON_DEVICE, end)
    os.environ[self_check.VARIABLE] = self_check.STRICT
    failures = []
    try:
        session.measure_ceilings([plans.GPU_DTYPE], "cuda")
        for item in plans.gpu_items(backends):
            session.measure(item)
            torch.cuda.empty_cache()
    except KeyboardInterrupt:
        print("interrupted; the records so far are stored")
        return INTERRUPTED
    except RuntimeError as error:  # after an illegal memory access, the GPU runs nothing else in this process
        failures.append(f"the rest of the plan: {error}")
    measured = {one.implementation for one in session.records if isinstance(one, records.TimeRecord)}
    failures += [f"{name}: no case could be measured" for name in backends if name not in measured]
    session.missing += failures
    report(session, backends, device_name, writer)
    return int(bool(session.wrong or failures))


def available_on(device: torch.device) -> tuple[str, ...]:
    """The names of the backends in BACKENDS that are available and support calls on the device."""
    available = [name for name in BACKENDS if name in qk.available_backends()]
    return tuple(name for name in available if not dispatch.backend_of(name).not_for(device))


def report(session: Session, backends: tuple[str, ...], device_name: str, writer: records.Writer) -> None:
    """Prints targets, measurements and cases that were not measured; stores the text beside the records."""
    lines = []
    for backend in backends:
        results = on_device([target.judge(backend, session.records) for target in TARGETS["gpu"]], device_name)
        lines += map(str, results)
        lines.append(f"{backend}: {sum(one.met for one in results)} of {len(results)} targets met on {device_name}")
    lines.append(markdown(session.records))
    lines += ["not measured:", *session.missing] if session.missing else ["every case of the plan was measured"]
    print("\n".join(lines), flush=True)
    writer.path.with_suffix(".txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def on_device(results: Sequence[Result], device_name: str) -> list[Result]:
    """Adds "(H200)" to the texts of the targets if another GPU was measured: the targets are for an H200."""
    if "H200" in device_name:
        return list(results)
    return [replace(one, target=f"{one.target} (H200)") for one in results]


if __name__ == "__main__":
    sys.exit(main())
