"""The marks of the GPU kernels, judged from rows: bfloat16 on an H200, as the project has set them."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks import rows
from benchmarks.cases import flops
from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, PACKED, PADDED, SENTENCES, Case
from benchmarks.plans.gpu_plan import DTYPE, HEAD_DIMS, HOST_SHAPE, LENGTHS, MARK_SHAPES, MEMORY_SHAPE, curve_shape
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP
from benchmarks.targets.verdicts import Ratio, Times, Verdict, judge_ratio, not_measured, times_of

MOST_HOST_US = 30.0
MOST_EXTRA_SHARE = 0.05
# FLOP per cell and feature that the rates of two maps count here: four products forward, eight backward.
RATE_FLOPS = {FORWARD: 8, BACKWARD: 16}
# TFLOP/s of two maps on 4,096 keys, by head size.
LENGTH_OF_RATES = 4096
RATES = {64: {FORWARD: 400, BACKWARD: 300}, 128: {FORWARD: 450, BACKWARD: 350}}
# On longer rows the peers have one map: at head size 64 FlashAttention-3 as published (Shah et al. 2024, TFLOP/s on an
# H100 without a causal mask), at 128 the fastest of torch's own, cuDNN's among them, in the same rounds.
FLASH_ATTENTION_3 = {FORWARD: 497, BACKWARD: 474}
OVER_FLASH_ATTENTION_3, OVER_BEST_SDPA = 1.05, 0.95
LONG = tuple(length for length in LENGTHS if length >= 8192)
# No more than so many times the floor's time.
OVER_ONE_MAP = 1.4
SENTENCE_SHAPES = (SENTENCES, *(curve_shape(length, 64) for length in LENGTHS if length <= SENTENCES.length))


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
    found += [Ratio(case(shape, FORWARD), ONE_MAP, 1 / OVER_ONE_MAP) for shape in SENTENCE_SHAPES]
    found += [
        Ratio(case(SENTENCES, mode, PACKED), "", 3, case(SENTENCES, mode, PADDED))
        for mode in (FORWARD, FORWARD_BACKWARD)
    ]
    return found


def _tflops(row: rows.TimeRow, per_cell: dict[str, int]) -> float:
    return per_cell[row.mode] * row.case.products / row.median_ms / 1e9


def _judge_rate(case: Case, backend: str, target: float, times: Times) -> Verdict:
    what, wanted = f"{case}, {backend}, {RATE_FLOPS[case.mode]} S^2 D", f"at least {target:.3g} TFLOP/s"
    row = times(case, backend)
    if row is None:
        return not_measured(what, wanted)
    rate, peak = _tflops(row, RATE_FLOPS), row.matrix_peak_gflops
    share = f" ({rate / peak * 1e3:.0%} of the matrix peak)" if peak else ""
    return Verdict(what, wanted, f"{rate:.4g} TFLOP/s{share}", rate >= target)


def _judge_beside_one_map(case: Case, backend: str, times: Times) -> Verdict:
    what, wanted = f"{case}, {backend}'s rate vs {ONE_MAP}'s", f"at least {OVER_BEST_SDPA:g}x"
    own, other = times(case, backend), times(case, ONE_MAP)
    if own is None or other is None:
        return not_measured(what, wanted)
    rate, peer = _tflops(own, RATE_FLOPS), _tflops(other, flops.SOFTMAX_MAP)
    return Verdict(
        what, wanted, f"{rate / peer:.2f}x ({rate:.4g} and {peer:.4g} TFLOP/s)", rate >= OVER_BEST_SDPA * peer
    )


def _judge_rates(backend: str, device: str, times: Times) -> list[Verdict]:
    def cases(length: int, head_dim: int) -> list[Case]:
        return [Case(curve_shape(length, head_dim), DTYPE, mode, 0.0, device) for mode in RATE_FLOPS]

    verdicts = [
        _judge_rate(case, backend, RATES[head_dim][case.mode], times)
        for head_dim in HEAD_DIMS
        for case in cases(LENGTH_OF_RATES, head_dim)
    ]
    for length in LONG:
        verdicts += [
            _judge_rate(case, backend, OVER_FLASH_ATTENTION_3 * FLASH_ATTENTION_3[case.mode], times)
            for case in cases(length, 64)
        ]
        verdicts += [_judge_beside_one_map(case, backend, times) for case in cases(length, 128)]
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
