"""Compares this machine's kernels with the reference: `python -m qacg_kernels.selftest [--device cuda] [--json FILE]`.

Run it first on a new GPU, and attach its output to bug reports. The calls run in a child process, which imports nothing
from the current folder; a call that crashes or hangs ends the process, and the next call starts another. With
TRITON_INTERPRET=1 the Triton kernels run on the CPU, on small sizes.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from qacg_kernels import dispatch, info, self_check
from qacg_kernels.backends import cpu, triton
from qacg_kernels.testing import evaluate, supported_dtypes, through_backend
from qacg_kernels.testing.inputs import Case, Inputs, make_inputs

_SECONDS_OF_A_CALL = 120.0
_FAR = "offsets above 2^31"
_SKIPPED = "skipped: out of memory"
_GATED = dict(gate="shared", bias="shared")
_SMALL = (
    Case("plain", queries=50, head_dim=64),
    Case("odd sizes", queries=37, keys=61, head_dim=33, layout="strided"),
    Case("row gate per head, fused projection", queries=64, head_dim=64, gate="per_head", layout="fused_projection"),
    Case("column gate, mask", queries=40, keys=70, head_dim=64, form="column", mask="boolean", **_GATED),
    Case("mask, dropout", queries=100, head_dim=64, mask="minus_10000", dropout_p=0.1, layout="heads_inside", **_GATED),
    Case("lengths, dropout", queries=128, head_dim=64, key_lengths=(128, 41), dropout_p=0.1, **_GATED),
    Case("causal, dropout", queries=90, head_dim=64, is_causal=True, dropout_p=0.1, **_GATED),
    Case("causal, lengths, mask", queries=90, head_dim=128, is_causal=True, key_lengths=(90, 7), mask="additive"),
    Case("lambda, lengths, negative scale", queries=60, head_dim=64, key_lengths=(60, 0), scale=-0.2),
    Case("gradient through lambda", queries=33, head_dim=64, lambda_gradient=True, **_GATED),
    Case("packed", sequences=(40, 0, 3, 128, 77), head_dim=64, **_GATED),
    Case("packed, causal, dropout", sequences=(170, 9), head_dim=64, is_causal=True, dropout_p=0.1, gate="per_head"),
    Case("large scores", queries=50, head_dim=64, score_size=20.0),
    Case("wide heads", queries=50, head_dim=200, **_GATED),
)
_LARGE = (
    Case("L = 1,100", batch=1, queries=1100, head_dim=64, dropout_p=0.1, layout="heads_inside", **_GATED),
    Case("9 queries x 4,200 keys", queries=9, keys=4200, head_dim=64, mask="boolean"),
    Case("B*H = 192", batch=16, heads=12, queries=128, head_dim=64, layout="heads_inside", **_GATED),
    Case(_FAR, batch=2, heads=1, queries=130, head_dim=64),
)
# Triton's interpreter takes seconds per head.
_INTERPRETED = (
    Case("plain", batch=1, heads=1, queries=30, head_dim=32),
    Case("odd sizes", batch=1, heads=1, queries=19, keys=31, head_dim=17, layout="strided"),
    Case("mask, dropout", batch=1, heads=1, queries=30, head_dim=16, mask="minus_10000", dropout_p=0.1, **_GATED),
    Case("packed", heads=1, sequences=(20, 0, 3), head_dim=16, **_GATED),
)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# An isolated Python with the import path of the command line, and this package by its folder.
_CHILD = """
import json, sys
path, name, folder, device, *calls = sys.argv[1:]
sys.path[:] = json.loads(path)
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location(name, folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules[name] = package = module_from_spec(spec)
spec.loader.exec_module(package)
from importlib import import_module
import_module(name + ".selftest").run(device, calls)
"""


def calls(device: torch.device) -> list[str]:
    """The calls to make on a device, each as backend|dtype|name of the case."""
    if device.type == "cpu":
        names = ["triton"] if triton.interpreted() else ["cpu"]
    else:
        names = ["triton", "cuda", "hopper", "gluon"]
    there = [
        name for name in names if not (module := dispatch.backend_of(name)).missing() and not module.not_for(device)
    ]
    cases = _INTERPRETED if triton.interpreted() else _SMALL + _LARGE if device.type == "cuda" else _SMALL
    return [
        f"{name}|{str(dtype).removeprefix('torch.')}|{case.name}"
        for name in there
        for dtype in _DTYPES
        if dtype in supported_dtypes(name, device)
        for case in cases
        if case.head_dim <= (128 if name in ("hopper", "gluon") else 256)
        and (case.name != _FAR or dtype != torch.float32)  # 8 GiB
    ]


def run(device: str, asked: list[str]) -> None:
    """Makes calls one after another, with a line of JSON before and after each; the child process runs it."""
    os.environ[self_check.VARIABLE] = self_check.STRICT
    if device == "cpu" and not cpu.NEEDS_SELF_CHECK and not triton.interpreted():
        cpu.check_first_calls()
    cases = _INTERPRETED if triton.interpreted() else _SMALL + _LARGE
    for call in asked:
        print(json.dumps({"begun": call}), flush=True)
        backend, dtype, name = call.split("|")
        case = next(case for case in cases if case.name == name)
        result = "right"
        try:
            evaluate(_inputs(case, getattr(torch, dtype), device), through_backend(backend))
        except torch.OutOfMemoryError:
            result = _SKIPPED
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps({"call": call, "result": result}), flush=True)


def _inputs(case: Case, dtype: torch.dtype, device: str) -> Inputs:
    inputs = make_inputs(case, dtype, device)
    if case.name == _FAR:
        # The second sequence lies 2^31 elements behind the first: 4 GiB of 16 bits.
        memory = torch.empty((1 << 31) + (1 << 20), dtype=dtype, device=device)
        for number, (name, t) in enumerate(inputs.tensors.items()):
            strides = (1 << 31, *t.stride()[1:])
            inputs.tensors[name] = memory.as_strided(t.shape, strides, number << 16).copy_(t)
    return inputs


def results_of(device: torch.device, minutes: float) -> Iterator[dict[str, object]]:
    """The calls with their results, in order: "right", what is wrong, or why it was not run."""
    left, end = calls(device), time.monotonic() + 60 * minutes
    while left:
        if time.monotonic() >= end:
            yield from ({"call": call, "result": "not run: the time is over"} for call in left)
            return
        begun = None
        for line in _lines(str(device), left, end):
            begun = line.get("begun")
            if begun is None:
                left.remove(line["call"])
                yield line
                if "CUDA error" in line["result"]:
                    break  # its context is unusable
        else:
            if left:  # it ended by itself
                left.remove(failed := begun or left[0])
                yield {"call": failed, "result": "crashed, or hung: the process that ran it ended"}


def _lines(device: str, asked: list[str], end: float) -> Iterator[dict[str, object]]:
    """The lines of a child process, until it ends, hangs or the time is over."""
    path = [entry for entry in map(os.path.abspath, sys.path) if entry != os.getcwd()]
    folder = str(Path(__file__).resolve().parent)
    command = [sys.executable, "-I", "-c", _CHILD, json.dumps(path), __package__, folder, device, *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        reader = threading.Thread(target=lambda: [lines.put(line) for line in (*process.stdout, "")], daemon=True)
        reader.start()
        try:
            while line := lines.get(timeout=max(min(_SECONDS_OF_A_CALL, end - time.monotonic()), 0.1)):
                if line.startswith("{"):
                    yield json.loads(line)
        except queue.Empty:
            return
        finally:
            process.kill()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.selftest", description="Compares the kernels of this machine with the reference."
    )
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=here, help="device of the tensors (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit (default: %(default)g)")
    options = parser.parse_args(arguments)
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("--device: expected a device of this machine, got 'cuda', and torch finds no GPU")
    facts = info.collect()
    print(info.render(facts), flush=True)
    results = []
    for result in results_of(device, options.minutes):
        results.append(result)
        print(f"{result['call'].replace('|', '  '):<60} {result['result']}", flush=True)
    made = [result["result"] for result in results if result["result"] != _SKIPPED]
    right = made.count("right")
    print(f"{right} of {len(made)} calls are right")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "results": results}, indent=2) + "\n", encoding="utf-8")
    return 0 if made and right == len(made) else 1


if __name__ == "__main__":
    sys.exit(main())
