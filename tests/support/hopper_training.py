"""Trains with the Hopper forward in the CUDA emulator and Triton's backward in its interpreter, on CPU tensors.

Prints a JSON line for each case that meets the error rule, and for one that torch.compile traces. Requires
TRITON_INTERPRET=1.
"""

import ctypes
import json
import os

import torch
from cuda_emulator import build
from judging import check

import qacg_kernels as qk
from qacg_kernels.backends import cuda
from qacg_kernels.backends.cuda import hopper
from qacg_kernels.backends.triton import launch
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing.inputs import Case, make_inputs

LIMIT = 227 * 1024  # shared memory of a block, in bytes
ONE = dict(batch=1, heads=1)
CASES = (
    Case("tiles, lambda", **ONE, queries=70, keys=150, head_dim=64),
    Case("tiles, vectors, 128 dims", **ONE, queries=140, head_dim=128, gate="per_head", bias="shared"),
    Case("tiles, column", **ONE, queries=40, keys=140, head_dim=64, gate="shared", form="column", dropout_p=0.1),
    Case("tiles, empty rows", **ONE, queries=40, keys=140, head_dim=64, mask="boolean_empty_rows", dropout_p=0.1),
    Case("tiles, no key at all", batch=2, heads=1, queries=33, keys=130, head_dim=64, key_lengths=(0, 130)),
    Case("tiles, packed, causal", heads=1, sequences=(150, 0, 30), head_dim=64, is_causal=True, gate="shared"),
    Case("single tile", **ONE, queries=100, head_dim=64, gate="shared"),
    Case("single tile, empty rows", **ONE, queries=40, head_dim=64, mask="minus_infinity", gate="shared"),
    Case("odd strides", batch=2, heads=2, queries=20, keys=140, head_dim=16, layout="strided"),
)


def emulate_hopper() -> ctypes.CDLL:
    """Makes the CUDA backends run CPU tensors on an emulated Hopper GPU."""
    os.environ["QACG_EMULATOR_SHARED_LIMIT"] = str(LIMIT)
    path = build.library()
    torch.ops.load_library(path)
    library = ctypes.CDLL(str(path))
    library.qacg_emulator_group_products.restype = ctypes.c_int64
    cuda._missing, cuda.DEVICE, hopper.DEVICE = [], "cpu", "cpu"
    cuda._ask(library)
    cuda._gpus, cuda._shared_memory = ("9.0a",), lambda device: LIMIT
    return library


def main() -> None:
    library = emulate_hopper()
    backwards, original = [], launch.backward

    def backward(problem, saved):
        backwards.append(problem)
        return original(problem, saved)

    def forward(*_: object):
        raise AssertionError("Triton's forward: expected no call, got one. The Hopper forward saves all that is needed")

    launch.backward, launch.forward, launch.launch_forward = backward, forward, forward
    for case in CASES:
        products, calls = library.qacg_emulator_group_products(), len(backwards)
        check(case, "hopper", torch.float16, "cpu")
        inputs = make_inputs(case, torch.float16)
        note = qk.explain(*inputs.arguments(), **inputs.options, backend="hopper").notes["hopper"]
        record = dict(
            case=case.name,
            wgmma=library.qacg_emulator_group_products() - products,
            backwards=len(backwards) - calls,
            note=note,
        )
        print(json.dumps(record), flush=True)
    print(json.dumps(dict(case="compiled", **compiled(backwards))))


def compiled(backwards: list) -> dict[str, object]:
    """How often a compiled step calls Triton's backward, and whether its results have the bits of an uncompiled one."""
    inputs = make_inputs(CASES[0], torch.float16)
    attend = through_backend("hopper")
    expected, calls = evaluate(inputs, attend), len(backwards)
    results = evaluate(inputs, torch.compile(attend, backend="aot_eager"))
    equal = all(torch.equal(results[name], t) for name, t in expected.items())
    return dict(backwards=len(backwards) - calls, equal=equal)


if __name__ == "__main__":
    main()
