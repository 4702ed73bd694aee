"""Runs the operator tests of the fast backends in parallel, within a time limit.

`make test-gpu` and `make check-interpreted` run it. Each test runs in one of several processes, since compiling takes
most of the time. The outcome of each test is a row of `outcomes.jsonl`. Tests that did not start in time are rows too,
and then the suite fails. Compiled Triton kernels are cached for the next run.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import outcomes
import torch

TESTS = Path(__file__).resolve().parent
# Files with few tests of many kinds come first, since compiling takes most of the time: Triton's tests take an hour of
# processor time on a GPU machine.
FILES = (
    "test_gpu.py",
    "test_operators.py",
    "test_dropout.py",
    "test_hidden_keys.py",
    "test_edges.py",
    "test_transforms.py",
    "test_compile.py",
    "test_random_calls.py",
    "test_dispatch.py",
    "test_self_check.py",
    "test_triton_kernels.py",
    "test_backends_within_budget.py",
)
SECONDS = 420
RANDOM_CALLS = 12
_GRACE = 60  # for running tests at the time limit; the suite ends within eight minutes
_MOST_JOBS = 14
_MOST_SHOWN = 20


def default_jobs(cores: int) -> int:
    """The number of processes: two less than cores, but at least two if there are two cores, at most _MOST_JOBS."""
    return min(_MOST_JOBS, max(cores - 2, min(cores, 2)))


def triton_cache() -> Path:
    """Triton's cache: TRITON_CACHE_DIR, or a folder in build/."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or TESTS.parent / "build/triton-cache").resolve()


def _command(options: argparse.Namespace, folder: Path, shard: int) -> list[str]:
    rows = folder / f"outcomes-{shard}.jsonl"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--device", options.device]
    command += [part for name in options.backends for part in ("--backend", name)]
    command += ["--shard", f"{shard}/{options.jobs}", "--seconds", str(options.seconds), "--outcomes", str(rows)]
    command += ["--random-calls", str(RANDOM_CALLS), "-m", ""]
    command += ["-k", options.select] if options.select else []
    return command + [str(TESTS / "kernels" / name) for name in options.files]


def _wait(processes: list[subprocess.Popen], folder: Path, seconds: float) -> None:
    end, printed = time.monotonic() + seconds + _GRACE, time.monotonic()
    while any(p.poll() is None for p in processes):
        if time.monotonic() > end:
            for p in processes:
                p.kill()
        if time.monotonic() > printed + 15:
            printed = time.monotonic()
            print(dict(_counts(_read(folder))), flush=True)
        time.sleep(0.2)


def _read(folder: Path) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob("outcomes-*.jsonl")) for row in outcomes.read(path)]


def _counts(rows: list[dict[str, object]]) -> Counter:
    return Counter(row["outcome"] for row in rows if row["kind"] == "test")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Runs the operator tests on one device in several processes.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backends", nargs="+", default=["triton", "cuda"])
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for the rows and the logs")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="start no test after this time")
    parser.add_argument("--jobs", type=int, default=default_jobs(len(os.sched_getaffinity(0))))
    parser.add_argument("--select", help="an expression for pytest -k")
    parser.add_argument("--files", nargs="+", default=list(FILES), metavar="NAME", help="files of tests/kernels")
    options = parser.parse_args(arguments)
    if options.device != "cpu" and not torch.cuda.is_available():
        print("test-gpu: expected an NVIDIA or AMD GPU, got none. Run it on a machine with one.", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TRITON_CACHE_DIR": str(triton_cache())}
    if options.device != "cpu":
        print(f"{options.jobs} processes; compiled Triton kernels are cached in {triton_cache()}", flush=True)
    if options.device == "cpu" and "triton" in options.backends:
        environment["TRITON_INTERPRET"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        processes = []
        for shard in range(options.jobs):
            with (options.out / f"log-{shard}.txt").open("w") as log:
                command = _command(options, folder, shard)
                streams = dict(stdout=log, stderr=subprocess.STDOUT)
                processes.append(subprocess.Popen(command, **streams, env=environment, cwd=TESTS.parent))
        try:
            _wait(processes, folder, options.seconds)
        finally:
            for p in processes:
                p.kill()
        rows = _read(folder)
    return report(rows, [p.returncode for p in processes], options.out)


def report(rows: list[dict[str, object]], statuses: list[int], out: Path) -> int:
    """Writes the rows into one file, prints failures and counts, and returns the exit status."""
    rows = [*rows, *outcomes.not_reached(rows)]
    origin = next((row for row in rows if row["kind"] == "origin"), None)
    tests = sorted((row for row in rows if row["kind"] == "test"), key=lambda row: row["test"])
    lines = [json.dumps(row) for row in ([origin] if origin else []) + tests]
    (out / "outcomes.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    counts = _counts(rows)
    for outcome in ("failed", "left out"):
        names = [row["test"] for row in tests if row["outcome"] == outcome]
        for name in names[:_MOST_SHOWN]:
            print(f"{outcome}: {name}")
        if len(names) > _MOST_SHOWN:
            print(f"{outcome}: {len(names) - _MOST_SHOWN} more in {out / 'outcomes.jsonl'}")
    # Exit statuses of pytest: 0 passed, 1 failed (printed above), 5 no tests in the shard.
    broken = [f"{shard} ({status})" for shard, status in enumerate(statuses) if status not in (0, 1, 5)]
    if broken:
        print(f"processes with errors, see their logs: {', '.join(broken)}")
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no test ran")
    whole = counts["passed"] and not counts["failed"] and not counts["left out"] and not broken
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
