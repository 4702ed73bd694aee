"""The marks of the GPU kernels, judged from rows: bfloat16 on an H200, as the project has set them."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import rows
from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, PACKED, PADDED, SENTENCES, Case
from benchmarks.plans.gpu_plan import DTYPE, HEAD_DIMS, HOST_SHAPE, LENGTHS, MARK_SHAPES, MEMORY_SHAPE, curve_shape
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.targets.verdicts import Ratio, Times, Verdict, judge_ratio, not_measured, times_of

MOST_HOST_US = 30.0
MOST_EXTRA_SHARE = 0.05
# FLOP per cell and feature that the rates of the marks count: four products forward, eight backward.
RATE_FLOPS = {FORWARD: 8, BACKWARD: 16}


def _ratios(device: str) -> list[Ratio]:
    def case(shape, mode, lengths="full"):
        return Case(shape, DTYPE, mode, 0.0, device, lengths)

    eager = [(6, 4), (8, 5), (15, 8)]
    found = []
    for shape, targets in zip(MARK_SHAPES, eager):
        for mode, target in zip((FORWARD, FORWARD_BACKWARD), targets):
            found += [
                Ratio(case(shape, mode), EAGER, target),
                Ratio(case(shape, mode), COMPILED, 2.5),
                Ratio(case(shape, mode), COMPOSITION, 1.3 if shape.length <= 1024 else 1.0),
            ]
    found += [
        Ratio(case(curve_shape(length, 64), mode), COMPOSITION, 1.3 if length <= 1024 else 1.0)
        for length in (1024, 16384)
        for mode in (FORWARD, FORWARD_BACKWARD)
    ]
    # No more than 1.6 times the floor's time.
    found.append(Ratio(case(SENTENCES, FORWARD), ONE_MAP, 1 / 1.6))
    found += [
        Ratio(case(SENTENCES, mode, PACKED), "", 3, case(SENTENCES, mode, PADDED))
        for mode in (FORWARD, FORWARD_BACKWARD)
    ]
    return found


def _judge_rates(backend: str, device: str, times: Times) -> list[Verdict]:
    verdicts = []
    for head_dim, targets in zip(HEAD_DIMS, ((400, 300), (450, 350))):
        for mode, target in zip((FORWARD, BACKWARD), targets):
            for length in (n for n in LENGTHS if n >= 4096):
                case = Case(curve_shape(length, head_dim), DTYPE, mode, 0.0, device)
                what = f"{case}, {backend}, {RATE_FLOPS[mode]} S^2 D"
                row = times(case, backend)
                if row is None:
                    verdicts.append(not_measured(what, f"at least {target} TFLOP/s"))
                    continue
                rate = RATE_FLOPS[mode] * case.products / row.median_ms / 1e9
                peak = row.matrix_peak_gflops
                share = f" ({rate / peak * 1e3:.0%} of the matrix peak)" if peak else ""
                verdicts.append(
                    Verdict(what, f"at least {target} TFLOP/s", f"{rate:.4g} TFLOP/s{share}", rate >= target)
                )
    return verdicts


def _judge_memory(backend: str, device: str, measured: Sequence[rows.Row]) -> Verdict:
    case = Case(MEMORY_SHAPE, DTYPE, FORWARD_BACKWARD, 0.0, device)
    what, target = f"{case}, {backend}, memory", f"at most {MOST_EXTRA_SHARE:.0%} beyond"
    for row in measured:
        if isinstance(row, rows.MemoryRow) and row.case == case and row.provider == backend:
            share = row.extra_mb / (row.input_mb + row.output_mb + row.saved_mb)
            return Verdict(what, target, f"{share:.1%} of inputs, output and saved rows", share <= MOST_EXTRA_SHARE)
    return not_measured(what, target)


def _judge_host(backend: str, device: str, measured: Sequence[rows.Row]) -> Verdict:
    case = Case(HOST_SHAPE, DTYPE, FORWARD, 0.0, device)
    what, target = f"{case}, {backend}, host", f"under {MOST_HOST_US:g} us"
    for row in measured:
        if isinstance(row, rows.HostRow) and row.case == case and row.provider == backend:
            return Verdict(what, target, f"{row.median_us:.1f} us", row.median_us < MOST_HOST_US)
    return not_measured(what, target)


def judge(backend: str, measured: Sequence[rows.Row], device: str = "cuda") -> list[Verdict]:
    """Every mark of a backend, met, missed or not measured."""
    times = times_of(measured)
    ratios = [judge_ratio(mark, backend, times) for mark in _ratios(device)]
    memory, host = _judge_memory(backend, device, measured), _judge_host(backend, device, measured)
    return [*_judge_rates(backend, device, times), *ratios, memory, host]


def named(verdicts: Sequence[Verdict], device_name: str) -> list[Verdict]:
    """The marks are an H200's: on another GPU the verdicts say which."""
    if "H200" in device_name:
        return list(verdicts)
    return [replace(v, target=f"{v.target} (H200)") for v in verdicts]
