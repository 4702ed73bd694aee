"""Makes one archive with everything to report about a new GPU: `make gpu-report OUT=dir`, within ten minutes.

Runs `qacg_kernels.info`, the selftest, the GPU benchmark, and compute-sanitizer if it is installed. Every step is
recorded in `manifest.json`. If a step fails or exceeds its time limit, the next steps still run. `--check FOLDER`
checks the format of an unpacked report.
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
from qacg_models.utils.child_python import module_command

from benchmarks import records

FORMAT = 1
SECONDS = 600
MANIFEST = "manifest.json"
_SANITIZER = Path(__file__).resolve().parents[1] / "tests" / "sanitize.py"
_MARGIN = 30  # seconds for the end of a step and the archive


@dataclass(frozen=True)
class Step:
    """One command of the report.

    Attributes:
        name: name of the step; its output goes to NAME.txt.
        command: the program and its arguments.
        seconds: the time limit.
        creates: a glob pattern of files that the step writes if it succeeds.
    """

    name: str
    command: list[str]
    seconds: float
    creates: str


def sanitizer() -> str | None:
    """Path of compute-sanitizer, from PATH or CUDA_HOME/bin (default: /usr/local/cuda/bin); None if it is missing."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(Path(home) / "bin"))


def steps(out: Path) -> Iterator[Step]:
    """Yields the steps in order; compute-sanitizer only if it is installed."""
    yield Step("info", module_command("qacg_kernels.info"), 60, "info.txt")
    selftest = module_command("qacg_kernels.selftest", "--json", str(out / "selftest.json"), "--minutes", "2")
    yield Step("selftest", selftest, 150, "selftest.json")
    benchmark = module_command("benchmarks.gpu", "--out", str(out / "benchmark"), "--seconds", "240")
    yield Step("benchmark", benchmark, 330, "benchmark/*-gpu.jsonl")
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
    """Runs all steps, writes the manifest and an archive in the parent folder of `out`; returns the archive's path.

    Raises:
        ValueError: `out` has files.
    """
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


def problems(folder: Path) -> list[str]:
    """The errors in the format of an unpacked report, one line each; empty if the format is valid."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return [f"{MANIFEST}: expected a JSON object, got {error}"]
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        return [f"{MANIFEST}: expected a JSON object of format {FORMAT}, got another content"]
    found = [
        f"{MANIFEST}: expected the field {name!r}, got none"
        for name in ("device", "origin", "steps")
        if name not in manifest
    ]
    if found:
        return found
    steps = manifest["steps"] if isinstance(manifest["steps"], list) else [None]
    if not all(
        isinstance(entry, dict) and isinstance(entry.get("step"), str) and "created" in entry for entry in steps
    ):
        return [f"{MANIFEST}: field 'steps': expected a list of objects with step and created, got another value"]
    ran = {entry["step"]: entry for entry in steps}
    found += [
        f"{MANIFEST}: expected the step {name!r}, got none"
        for name in ("info", "selftest", "benchmark")
        if name not in ran
    ]
    for name, entry in ran.items():
        if not (folder / f"{name}.txt").is_file():
            found.append(f"{name}.txt: expected the output of the step {name!r}, got no file")
        if name == "benchmark" and entry["created"]:
            found += _record_problems(folder, manifest["device"])
    return found


def _record_problems(folder: Path, device_name: str) -> list[str]:
    files = sorted(folder.glob("benchmark/*-gpu.jsonl"))
    if not files:
        return ["benchmark: expected a file of records, got none"]
    try:
        measured = records.load(files)
    except ValueError as error:
        return [str(error)]
    devices = {gpu["name"] for one in measured for gpu in one.origin.machine.get("cuda_devices") or []}
    if devices and device_name not in devices:
        return [f"benchmark: expected records of {device_name}, got {', '.join(sorted(devices))}"]
    return []


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_report", description="Makes an archive with everything to report about a GPU."
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="new folder; the archive is written to its parent")
    action.add_argument("--check", type=Path, metavar="DIR", help="check the format of an unpacked report")
    options = parser.parse_args(arguments)
    if options.check:
        found = problems(options.check)
        print("\n".join(found) or f"{options.check}: the format is valid")
        return int(bool(found))
    if not torch.cuda.is_available():
        print("gpu-report: expected an NVIDIA or AMD GPU, got none. Run it on a machine with one.", file=sys.stderr)
        return 2
    try:
        archive = collect(options.out, torch.cuda.get_device_name())
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{archive}\ndocs/gpu-report.md describes how to send it.")
    return int(bool(problems(options.out)))


if __name__ == "__main__":
    sys.exit(main())
