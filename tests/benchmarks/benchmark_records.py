"""Benchmark records for tests."""

import json
from dataclasses import asdict

from benchmarks import records
from benchmarks.cases import FORWARD_BACKWARD, MEMORY_SHAPE, Case, Shape
from benchmarks.implementations.registry import COMPILED, EAGER, ONE_MAP
from benchmarks.measure.session import time_records

ORIGIN = records.Origin(
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
    measured_at="2030-01-02T03:04:05Z",
)
SMALL = Case(Shape(2, 3, 20, 8))


def times(case=SMALL, **seconds):
    """Makes the records of a case from the seconds of each implementation."""
    names = {"eager": EAGER, "compiled": COMPILED, "one_map": ONE_MAP}
    by_name = {names.get(name, name): values for name, values in seconds.items()}
    return time_records(case, by_name, 0.01, ORIGIN)


def time_of(case, name, milliseconds, peak=None):
    """Makes the record of one implementation; `peak` is the rate of the matrix product in GFLOP/s."""
    (record,) = time_records(case, {name: [1e-3 * milliseconds]}, 0.0, ORIGIN, peak)
    return record


def to_line(record):
    return json.dumps(asdict(record))


def memory(extra_mb):
    return records.MemoryRecord(
        ORIGIN,
        **records.case_fields(Case(MEMORY_SHAPE, mode=FORWARD_BACKWARD)),
        implementation="cpu",
        input_mb=1,
        output_mb=2,
        saved_mb=3,
        gradient_mb=4,
        forward_extra_mb=5,
        backward_extra_mb=extra_mb,
        extra_mb=extra_mb,
        control_mb=64,
        method="m",
    )


def overhead(case, name, median_us, q1_us, q3_us):
    fields = records.case_fields(case)
    return records.OverheadRecord(
        ORIGIN, **fields, implementation=name, median_us=median_us, q1_us=q1_us, q3_us=q3_us, repeats=200
    )
