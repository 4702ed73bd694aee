"""Compares this machine's kernels with the reference: `python -m qacg_kernels.selftest [--device cuda] [--json FILE]`.

Run this command first on a new GPU, and attach its output to bug reports. The calls run in a child process. If a call
crashes or hangs, the child process ends, and the remaining calls run in a new one. With TRITON_INTERPRET=1 only the
Triton kernels run, on the CPU and on small sizes.
"""

import argparse
import faulthandler
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from qacg_kernels import info
from qacg_kernels.backends import cpu, dispatch, triton
from qacg_kernels.operators import self_check
from qacg_kernels.testing import PARITY_CASES, evaluate, supported_dtypes, through_backend
from qacg_kernels.testing.inputs import Case, Inputs, make_inputs

_SECONDS_OF_A_CALL = 120.0
_FAR = "offsets above 2^31"
_SKIPPED = "skipped: out of memory"
_NOT_COMPLETED = "not completed: the time limit is reached"
_GATED = dict(gate="shared", bias="shared")
_SMALL = (
    *PARITY_CASES,
    Case("plain", queries=50, head_dim=64),
    Case("odd sizes", queries=37, keys=61, head_dim=33, layout="strided"),
    Case("strided rows", queries=37, keys=61, head_dim=40, layout="strided"),
    Case("row gate per head, fused projection", queries=64, head_dim=64, gate="per_head", layout="fused_projection"),
    Case("column gate, mask", queries=40, keys=70, head_dim=64, form="column", mask="boolean", **_GATED),
    Case("mask, dropout", queries=100, head_dim=64, mask="minus_10000", dropout_p=0.1, layout="heads_inside", **_GATED),
    Case("causal, dropout", queries=90, head_dim=64, is_causal=True, dropout_p=0.1, **_GATED),
    Case("causal, lengths, mask", queries=90, head_dim=128, is_causal=True, key_lengths=(90, 7), mask="additive"),
    Case("lambda, lengths, negative scale", queries=60, head_dim=64, key_lengths=(60, 0), scale=-0.2),
    Case("bias of the scores, lengths", queries=70, head_dim=64, key_lengths=(70, 3), quasi_bias="per_query", **_GATED),
    Case("gradient through lambda", queries=33, head_dim=64, lambda_gradient=True, **_GATED),
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
    Case("packed, bias of the scores", heads=1, sequences=(20, 0, 3), head_dim=16, quasi_bias="per_query", **_GATED),
)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def calls(device: torch.device) -> list[str]:
    """The calls to make on a device, each as "backend|dtype|case"."""
    cases = _SMALL if device.type == "cpu" else _SMALL + _LARGE
    names = [name for name in dispatch.BACKENDS if device.type == dispatch.backend_of(name).DEVICE]
    if triton.interpreted():
        names, cases = ["triton"], _INTERPRETED
    return [
        f"{name}|{str(dtype).removeprefix('torch.')}|{case.name}"
        for name in names
        for dtype in _DTYPES
        if dtype in supported_dtypes(name, device)  # () if the backend is unavailable
        for case in cases
        if not dispatch.wrong_head_dim(dispatch.backend_of(name), case.head_dim)
        and (case.name != _FAR or dtype != torch.float32)  # in float32 it would allocate 8 GiB
    ]


def run(device: str, seconds_of_a_call: str, end: str, *asked: str) -> None:
    """Runs calls one after another and prints a line of JSON after each; the main function of the child process.

    A wrong result is an error. A call that takes longer than `seconds_of_a_call`, or the time `end` (`time.time`), ends
    the process. `asked` are calls, each as "backend|dtype|case".
    """
    os.environ[self_check.VARIABLE] = self_check.STRICT
    if device == "cpu" and not cpu.NEEDS_SELF_CHECK and not triton.interpreted():
        cpu.check_first_calls()
    cases = {case.name: case for case in (_INTERPRETED if triton.interpreted() else _SMALL + _LARGE)}
    for call in asked:
        faulthandler.dump_traceback_later(max(min(float(seconds_of_a_call), float(end) - time.time()), 1e-3), exit=True)
        backend, dtype, name = call.split("|")
        result = "right"
        try:
            evaluate(_inputs(cases[name], getattr(torch, dtype), device), through_backend(backend))
        except torch.OutOfMemoryError:
            result = _SKIPPED
        except Exception as error:
            result = f"{type(error).__name__}: {error}"
        print(json.dumps({"call": call, "result": result}), flush=True)


def _inputs(case: Case, dtype: torch.dtype, device: str) -> Inputs:
    inputs = make_inputs(case, dtype, device)
    if case.name == _FAR:
        # The second sequence begins 2^31 elements after the first, so the memory is 4 GiB in 16 bits.
        memory = torch.empty((1 << 31) + (1 << 20), dtype=dtype, device=device)
        for number, (name, t) in enumerate(inputs.tensors.items()):
            strides = (1 << 31, *t.stride()[1:])
            inputs.tensors[name] = memory.as_strided(t.shape, strides, number << 16).copy_(t)
    return inputs


def results_of(device: torch.device, minutes: float) -> Iterator[dict[str, str]]:
    """Yields the results of a device's calls, in order, which child processes run for at most `minutes`.

    A result is "right", an error, or a text which states that the call was skipped, crashed, hung or was not completed.
    """
    left, end = calls(device), time.time() + 60 * minutes
    while left and time.time() < end:
        for result in _lines(str(device), left, end):
            left.remove(result["call"])
            yield result
            if "CUDA error" in result["result"]:
                break  # the child's CUDA context is unusable, so start another process
        else:
            if left and time.time() < end:  # the child ended before the last call
                yield {"call": left.pop(0), "result": "crashed or hung: the process that ran it ended"}
    yield from ({"call": call, "result": _NOT_COMPLETED} for call in left)


def _lines(device: str, asked: list[str], end: float) -> Iterator[dict[str, str]]:
    """Starts a child process for the calls in `asked`; yields each result that it prints, as long as it runs."""
    package = Path(__file__).resolve().parent
    # The child imports nothing from the current folder, whose name on the path is empty.
    child = f"import sys; sys.path = [p for p in sys.path if p]; from {package.name} import selftest; "
    child += "selftest.run(*sys.argv[1:])"
    command = [sys.executable, "-c", child, device, str(_SECONDS_OF_A_CALL), str(end), *asked]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package.parent), *filter(None, sys.path)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield from (json.loads(line) for line in process.stdout if line.startswith("{"))
        finally:
            process.kill()


def _check_options(parser: argparse.ArgumentParser, options: argparse.Namespace) -> torch.device:
    """Returns the device; an invalid option ends the process here, since the calls after it take minutes."""
    try:
        device = torch.device(options.device)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        parser.error(f"--device: expected cpu or cuda, got {options.device!r}")
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error(
            f"--device: expected a device of this machine, got {options.device!r}, but torch finds no GPU. Pass cpu"
        )
    if not options.minutes > 0:
        parser.error(f"--minutes: expected a positive number, got {options.minutes}")
    if options.json:
        try:
            options.json.open("a").close()
        except OSError as error:
            parser.error(f"--json: expected a file that can be written, got {str(options.json)!r} ({error.strerror})")
    return device


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status of the command: 0 if every call is right, else 1.

    Calls that were skipped for lack of memory do not count, but at least one call must be right.
    """
    parser = argparse.ArgumentParser(
        prog="python -m qacg_kernels.selftest", description="Compares the kernels of this machine with the reference."
    )
    here = "cuda" if torch.cuda.is_available() and not triton.interpreted() else "cpu"
    parser.add_argument("--device", default=here, help="device of the tensors (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to a file")
    parser.add_argument("--minutes", type=float, default=5.0, help="time limit in minutes (default: %(default)g)")
    options = parser.parse_args(arguments)
    device = _check_options(parser, options)
    facts = info.collect()
    print(info.render(facts), flush=True)
    results = []
    for result in results_of(device, options.minutes):
        results.append(result)
        print(f"{result['call'].replace('|', '  '):<60} {result['result']}", flush=True)
    made = [result["result"] for result in results if result["result"] != _SKIPPED]
    right = made.count("right")
    late = made.count(_NOT_COMPLETED)
    print(f"{right} of {len(made)} calls are right" + (f", {late} not completed: pass --minutes" if late else ""))
    if not results:
        print(f"no backend that is compared with the reference can run on {options.device}: see the reasons above")
    if options.json:
        options.json.write_text(json.dumps({"machine": facts, "results": results}, indent=2) + "\n", encoding="utf-8")
    return 0 if made and right == len(made) else 1


if __name__ == "__main__":
    sys.exit(main())
