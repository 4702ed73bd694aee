"""Hand-written benchmark records."""

from benchmarks import rows
from benchmarks.cases.case import FORWARD_BACKWARD, Case, Shape
from benchmarks.measure import ceiling
from benchmarks.measure.side_by_side import time_rows
from benchmarks.providers.names import COMPILED, EAGER, ONE_MAP
from benchmarks.providers.registry import PROVIDERS

ORIGIN = rows.Origin(
    machine={
        "cpu": "Some CPU (R) 9000",
        "cores": 2,
        "threads": 2,
        "torch_instruction_set": "AVX512",
        "instruction_sets": {"float32": "avx512", "bfloat16": "avx512_bf16"},
    },
    versions={"qacg_kernels": "0.1.0", "python": "3.12.1", "torch": "2.13.0", "os": "Linux"},
    commit="0123456789ab",
    dirty=False,
    taken="2030-01-02T03:04:05Z",
)


SMALL = Case(Shape(2, 3, 20, 8))


def seconds_rows(case=SMALL, **seconds):
    names = {"eager": EAGER, "compiled": COMPILED, "one_map": ONE_MAP}
    taken = {names.get(name, name): times for name, times in seconds.items()}
    return time_rows(case, {name: PROVIDERS[name] for name in taken}, taken, 0.01, ORIGIN)


def a_product(dtype):
    return ceiling.Product("some product", dtype, flops=1e6, step=lambda turn: 1e-3)


def memory_row(extra_mb):
    return rows.MemoryRow(
        ORIGIN,
        1,
        12,
        8192,
        64,
        "float32",
        FORWARD_BACKWARD,
        0.0,
        "cpu",
        "cpu",
        1,
        2,
        3,
        4,
        5,
        extra_mb,
        extra_mb,
        64,
        "m",
    )
