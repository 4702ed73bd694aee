"""Makes records of the predictions, and formats them as lines of text."""

import itertools
from collections.abc import Iterator, Sequence

from benchmarks.cases import BACKWARD, GATES, LAMBDA, VECTORS, Shape
from benchmarks.plans import GPU_HEAD_DIMS, GPU_LENGTHS, GPU_SHAPES, gpu_shape
from benchmarks.static import cuda_kernels, hardware, kernel
from benchmarks.static.cuda_kernels import STAGES, EstimatedKernel, EstimatedSums
from benchmarks.static.kernel import Estimate
from benchmarks.static.launches import is_used
from benchmarks.static.operator import (
    PASSES,
    EstimatedEntry,
    Predicted,
    call_rates,
    counted_rate,
    estimate_entry,
    predict,
)
from qacg_kernels.backends.triton.tile_tables import Key, Table

Record = dict[str, object]
BACKEND = "triton"
BITS = 16  # element width in the GPU benchmark
BUSY = {"triton": ", with entry mask, dropout or column gate", "cuda": ", with dropout"}
GATE_SUMS_SHAPES = (*GPU_SHAPES, gpu_shape(32, 64))
FORWARD_KERNELS = ("whole_row_forward", "tiled_forward")


def entry_records(table: Table, keys: list[Key], mask: str = "none") -> Iterator[Record]:
    """Yields a record for the entry of each key in `keys`, for calls with `mask`, one of `hardware.MASKS`.

    Entries that such calls do not use have no record.
    """
    for key in keys:
        if is_used(table.by_key[key], mask):
            yield entry_record(estimate_entry(table, table.by_key[key], mask))


def entry_record(found: EstimatedEntry) -> Record:
    entry = found.entry
    own = {
        "backend": BACKEND,
        "kernel": entry.kernel,
        "pass": PASSES[entry.kernel not in FORWARD_KERNELS],
        "bits": entry.bits,
        "head_dim": entry.head_dim,
        "busy": entry.busy,
        "tile": [entry.block_m, entry.block_n],
        "warps": entry.num_warps,
        "stages": entry.num_stages,
    }
    return own | _estimated(found.estimate, entry.kernel, found.tflops, kernel.PRODUCTS[entry.kernel])


def cuda_record(found: EstimatedKernel) -> Record:
    own = {
        "backend": "cuda",
        "kernel": found.name,
        "pass": PASSES["backward" in found.name],
        "bits": BITS,
        "head_dim": found.head_dim,
        "busy": found.busy,
        "tile": [found.call.rows, found.call.keys],
        "warps": found.estimate.warps,
        "stages": STAGES.get(found.name, 2),
    }
    return own | _estimated(found.estimate, found.name, found.tflops, cuda_kernels.PRODUCTS[found.name])


def gate_sums_record(found: EstimatedSums) -> Record:
    """The record of a kernel in a call of the shape `call`; `shape` is the key of whole calls."""
    return {
        "backend": "cuda",
        "kernel": found.name,
        "pass": BACKWARD,
        "bits": BITS,
        "head_dim": found.shape.head_dim,
        "gate": VECTORS,
        "call": list(found.shape),
        "warps": found.estimate.warps,
        "registers": found.estimate.registers,
        "stack": found.estimate.stack,
        "resident": found.estimate.resident,
        "instructions": found.estimate.instructions,
        "bound": found.predicted.bound,
        "predicted_ms": _figure(1e3 * found.predicted.seconds),
    }


def _estimated(estimate: Estimate, kernel_name: str, executed: float, products: int) -> Record:
    counted = counted_rate(kernel_name, executed, products)
    return {
        "registers": estimate.registers,
        "stack": estimate.stack,
        "shared_bytes": estimate.shared,
        "resident": estimate.resident,
        "instructions": estimate.instructions,
        "wgmma": estimate.wgmma,
        "loads_in_flight": estimate.loads_in_flight,
        "duplicated": estimate.duplicated,
        "bound": estimate.bound,
        "counted_tflops": None if counted is None else _figure(counted),
        "executed_tflops": _figure(executed),
    }


def shapes() -> list[Shape]:
    """The shapes of the GPU benchmark, without duplicates."""
    curves = [gpu_shape(length, head_dim) for head_dim in GPU_HEAD_DIMS for length in GPU_LENGTHS]
    return list(dict.fromkeys((*GPU_SHAPES, *curves)))


def calls(table: Table, widths: Sequence[int], head_dims: Sequence[int]) -> Iterator[Record]:
    """Yields a record of the whole operator in bfloat16 for each combination of `shapes()`, PASSES and GATES.

    Shapes whose head size is not in `head_dims` are left out, and gate vectors are included for GPU_SHAPES only. If
    `widths`, the element widths in bits, does not contain BITS, there are no records.
    """
    for shape, pass_, gate in itertools.product(shapes(), PASSES, GATES):
        if BITS not in widths or shape.head_dim not in head_dims or (gate == VECTORS and shape not in GPU_SHAPES):
            continue
        found = predict(table, shape, pass_, BITS, busy=False, gate=gate)
        yield _call_record(BACKEND, shape, pass_, gate, found)


def cuda_records(architecture: str, head_dims: Sequence[int]) -> Iterator[Record]:
    """Yields a record of each kernel of csrc/cuda, then of each call of `cuda` and `hopper` in bfloat16.

    Kernels that sum the gradients of gate vectors have a record for each of GATE_SUMS_SHAPES. The calls are
    combinations of `shapes()` and PASSES, with a lambda tensor. Calls whose kernels have no estimate are left out.
    """
    kernels = {}
    for one in cuda_kernels.estimate_kernels(architecture, head_dims):
        yield cuda_record(one)
        if not one.busy:
            kernels[one.name, one.head_dim] = one
    for shape in GATE_SUMS_SHAPES:
        if shape.head_dim in head_dims:
            yield from map(gate_sums_record, cuda_kernels.estimate_gate_sums(architecture, shape))
    for (backend, pass_), shape in itertools.product(cuda_kernels.CALLS, shapes()):
        found = cuda_kernels.predict_call(architecture, kernels, backend, shape, pass_)
        if found is not None:
            yield _call_record(backend, shape, pass_, LAMBDA, found)


def _call_record(backend: str, shape: Shape, pass_: str, gate: str, found: Predicted) -> Record:
    counted, executed = call_rates(found, shape, pass_)
    return {
        "backend": backend,
        "shape": list(shape),
        "pass": pass_,
        "bits": BITS,
        "head_dim": shape.head_dim,
        "busy": False,
        "gate": gate,
        "bound": found.bound,
        "predicted_ms": _figure(1e3 * found.seconds),
        "counted_tflops": _figure(counted),
        "executed_tflops": _figure(executed),
    }


def _figure(number: float) -> float:
    """Rounds to three significant digits, more than the model's accuracy."""
    return float(f"{number:.3g}")


def sentence(record: Record) -> str:
    """Formats a record as a line of text."""
    if "shape" in record:
        shape = Shape(*record["shape"])
        return (
            f"{record['backend']}, {shape} {record['bits']} bits {record['pass']}, gate {record['gate']}: "
            f"{record['predicted_ms']} ms, {_rates(record)}, bound by {record['bound']}"
        )
    of_units = ", ".join(f"{record['instructions'][unit]} {unit}" for unit in hardware.UNITS)
    if "call" in record:
        return (
            f"{record['kernel']} in {Shape(*record['call'])} {record['bits']} bits {record['pass']}, gate "
            f"{record['gate']}: {record['predicted_ms']} ms; {record['registers']} registers, {record['resident']} "
            f"blocks to a multiprocessor; {record['instructions']['all']} instructions per warp ({of_units}); bound by "
            f"{record['bound']}"
        )
    m, n = record["tile"]
    busy = BUSY[record["backend"]] if record["busy"] else ""
    products = "wgmma" if record["wgmma"] else "mma.sync" if record["bits"] == 16 else "no tensor cores"
    return (
        f"{record['kernel']} {record['bits']} bits D={record['head_dim']}{busy}: "
        f"{m} x {n}, {record['warps']} warps, {record['stages']} stages; {record['registers']} registers, "
        f"{record['stack']} B of stack, {record['shared_bytes']} B shared, {record['resident']} blocks to a "
        f"multiprocessor; {record['instructions']['all']} instructions per warp and iteration ({of_units}); "
        f"{products}; at least {record['loads_in_flight']} loads in flight; "
        f"{record['duplicated']:g} warps per attention entry; bound by {record['bound']}; {_rates(record)}"
    )


def _rates(record: Record) -> str:
    counted = record["counted_tflops"]
    prefix = "" if counted is None else f"{counted} TFLOP/s counted, "
    return f"{prefix}{record['executed_tflops']} TFLOP/s executed"
