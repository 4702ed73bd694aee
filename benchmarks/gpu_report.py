"""Makes one archive with everything to report about a new GPU: `make gpu-report OUT=dir`, within ten minutes.

Runs `qacg_kernels.info`, the selftest, training steps of a model in the size of MiniLM, the GPU benchmark, and
compute-sanitizer if it is installed. Every step is recorded in `manifest.json`. If a step fails or exceeds its time
limit, the next steps still run.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import records
from benchmarks.model_steps import BERT, EAGER, FUSED, PACKED, TRAINING

FORMAT = 1
SECONDS = 600
MANIFEST = "manifest.json"
_SANITIZER = Path(__file__).resolve().parents[1] / "tests" / "sanitize.py"
_MARGIN = 30  # seconds for the end of a step and the archive


@dataclass(frozen=True)
class Step:
    """One command of the report, with a time limit."""

    name: str  # its output goes to NAME.txt
    command: list[str]
    seconds: float
    creates: str  # a glob pattern of files that the step writes if it succeeds


def sanitizer() -> str | None:
    """Path of compute-sanitizer, from PATH or CUDA_HOME/bin (default: /usr/local/cuda/bin); None if it is missing."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(Path(home) / "bin"))


def steps(out: Path) -> Iterator[Step]:
    """Yields the steps in order; compute-sanitizer only if it is installed."""
    python = [sys.executable, "-m"]
    yield Step("info", [*python, "qacg_kernels.info"], 60, "info.txt")
    selftest = [*python, "qacg_kernels.selftest", "--json", str(out / "selftest.json"), "--minutes", "2"]
    yield Step("selftest", selftest, 150, "selftest.json")
    model_step = [*python, "benchmarks.end_to_end", "--device", "cuda", "--sizes", "minilm", "--modes", TRAINING]
    model_step += ["--implementations", EAGER, FUSED, PACKED, BERT, "--batches", "2", "--out", str(out / "model-step")]
    yield Step("model-step", model_step, 90, "model-step/*.jsonl")
    benchmark = [*python, "benchmarks.gpu", "--out", str(out / "benchmark"), "--seconds", "200"]
    yield Step("benchmark", benchmark, 270, "benchmark/*-gpu.jsonl")
    if sanitizer():
        yield Step(
            "sanitizer",
            [sys.executable, str(_SANITIZER), str(out / "sanitizer"), "--seconds", "25"],
            120,
            "sanitizer.txt",
        )


def run_step(step: Step, out: Path, seconds: float) -> dict[str, object]:
    """Runs a step for at most min(`seconds`, `step.seconds`); returns its entry of the manifest.

    The output of the step is written to NAME.txt in `out`.
    """
    start, limit = time.monotonic(), min(step.seconds, seconds)
    with (out / f"{step.name}.txt").open("w", encoding="utf-8") as log:
        try:
            status = subprocess.run(step.command, stdout=log, stderr=subprocess.STDOUT, timeout=limit, check=False)
            ended = f"exit status {status.returncode}"
        except subprocess.TimeoutExpired:
            ended = f"stopped after {limit:.0f} seconds"
        except OSError as error:
            ended = str(error)
    created = any(out.glob(step.creates))
    seconds = round(time.monotonic() - start, 1)
    return {"step": step.name, "ended": ended, "seconds": seconds, "created": created}


def collect(out: Path, device_name: str) -> Path:
    """Runs all steps, writes the manifest and an archive in the parent folder of `out`; returns the archive's path."""
    if out.exists() and any(out.iterdir()):
        raise ValueError(f"--out: expected an empty or new folder, got {out}")
    out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + SECONDS - _MARGIN
    entries = []
    for step in steps(out):
        print(f"{step.name} ...", flush=True)
        entries.append(run_step(step, out, max(1.0, deadline - time.monotonic())))
        print(f"{step.name}: {entries[-1]['ended']}, {entries[-1]['seconds']} s", flush=True)
    manifest = {"format": FORMAT, "device": device_name, "origin": asdict(records.origin()), "steps": entries}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    name = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    archive = out.parent / f"gpu-report-{name}.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(out, arcname=f"gpu-report-{name}")
    return archive


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report", description="Makes an archive with everything to report about a GPU."
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="new folder; the archive is written to its parent"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu-report: expected an NVIDIA or AMD GPU, got none. Run it on a machine with one.", file=sys.stderr)
        return 2
    try:
        archive = collect(options.out, torch.cuda.get_device_name())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{archive}\ndocs/gpu-report.md describes how to send it.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
