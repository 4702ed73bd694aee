"""Runs the small operator tests of the CUDA backend under compute-sanitizer: `python tests/sanitize.py OUT`.

Two passes, memcheck (addresses) and racecheck (shared memory), each with its report in OUT/<tool>.txt. Every kernel of
the tests, torch's own too, runs many times slower under them.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from qacg_kernels.backends import cuda

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("memcheck", "racecheck")
TESTS = ("-k", "test_small or test_strips", "tests/test_backends_within_budget.py")
FOUND = 86  # the exit code that says the tool found an error, unlike any of pytest's


def sanitizer() -> str | None:
    """Path of compute-sanitizer, or None."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path=str(Path(home) / "bin"))


def why_not() -> str | None:
    """Why nothing can be run here, or None."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device on this machine"
    if cuda.missing():
        return f"backend 'cuda' is not there: {'; '.join(cuda.missing())}"
    if sanitizer() is None:
        return "compute-sanitizer was not found, on the path or under CUDA_HOME; it comes with the CUDA toolkit"
    return None


def command(tool: str, out: Path) -> list[str]:
    """What runs the tests under one tool."""
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--log-file", str(out / f"{tool}.txt")]
    # A child of the tests that uses no GPU would end the run with an error of its own.
    options += ["--target-processes", "application-only"]
    tests = [sys.executable, "-m", "pytest", "-x", "--device", "cuda", "--backend", "cuda", *TESTS]
    return [sanitizer(), *options, *tests]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("out", type=Path, help="folder for the tools' reports")
    out = parser.parse_args(arguments).out.resolve()
    reason = why_not()
    if reason:
        print(f"sanitize-gpu: nothing was run: {reason}", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    # With its own cache torch hands out pieces of large blocks, and a read beyond a piece is inside the block.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    failed = []
    for tool in TOOLS:
        code = subprocess.run(command(tool, out), cwd=ROOT, env=environment, check=False).returncode
        print(f"{tool}: {'clean' if code == 0 else 'errors found' if code == FOUND else f'tests failed ({code})'}")
        if code:
            failed.append(tool)
    print(f"reports are in {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
