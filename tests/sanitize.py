"""Runs the small operator tests of the CUDA backend under compute-sanitizer: `make sanitize-gpu OUT=dir`.

It runs memcheck (addresses), racecheck (shared memory), synccheck (barriers) and initcheck (unwritten memory), each
with a time limit. OUT has a report and the outcomes of the tests for each tool.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import torch

from benchmarks.gpu_report import sanitizer
from qacg_kernels.backends import cuda

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
SECONDS = 130  # per tool: the four end within nine minutes
_LAST_TEST = 40  # seconds reserved for the running test; of a short time half is reserved
TESTS = ("-k", "test_small_case", "tests/kernels/test_backends_within_budget.py")
FOUND = 86  # exit status of the tool for errors, different from those of pytest


def why_not() -> str | None:
    """The reason why the tools cannot run here, or None."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device on this machine"
    if cuda.missing():
        return f"backend 'cuda' is not available: {'; '.join(cuda.missing())}"
    if sanitizer() is None:
        return "compute-sanitizer was not found, on the path or under CUDA_HOME; it comes with the CUDA toolkit"
    return None


def command(tool: str, out: Path, seconds: float) -> list[str]:
    """The command that runs the tests under a tool."""
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--log-file", str(out / f"{tool}.txt")]
    # A child process without a GPU would be an error.
    options += ["--target-processes", "application-only"]
    tests = [sys.executable, "-m", "pytest", "-x", "--device", "cuda", "--backend", "cuda", "-m", "", *TESTS]
    starting = seconds - min(_LAST_TEST, seconds / 2)
    tests += ["--seconds", str(starting), "--junitxml", str(_tests_file(tool, out))]
    # Tests fill new memory with NaN. For initcheck this memory would count as written.
    tests += ["--unpoisoned"] if tool == "initcheck" else []
    return [sanitizer(), *options, *tests]


def _tests_file(tool: str, out: Path) -> Path:
    return out / f"{tool}-tests.xml"


def run(tool: str, out: Path, seconds: float) -> str:
    """Runs the tests under a tool; returns the outcome, which begins with "clean" if there were no errors."""
    _tests_file(tool, out).unlink(missing_ok=True)
    # torch's cache allocates parts of large blocks, which would hide reads beyond a part.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    process = subprocess.Popen(command(tool, out, seconds), cwd=ROOT, env=environment, start_new_session=True)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        with contextlib.suppress(ProcessLookupError):  # the tool and its child processes
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if code is None:
        return "stopped at the time limit"
    if code == FOUND:
        return "errors found"
    if code:
        return f"tests failed ({code})"
    tests = ElementTree.parse(_tests_file(tool, out)).find("testsuite").attrib
    skipped = int(tests["skipped"])
    if skipped == int(tests["tests"]):
        return "no test ran"
    return f"clean, {skipped} tests skipped" if skipped else "clean"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("out", type=Path, help="folder for the tools' reports")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time of each tool")
    options = parser.parse_args(arguments)
    reason = why_not()
    if reason:
        print(f"sanitize-gpu: not run: {reason}", file=sys.stderr)
        return 1
    out, outcomes = options.out.resolve(), []
    out.mkdir(parents=True, exist_ok=True)
    for tool in TOOLS:
        outcomes.append(run(tool, out, options.seconds))
        print(f"{tool}: {outcomes[-1]}", flush=True)
    print(f"reports are in {out}")
    return 0 if all(outcome.startswith("clean") for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
