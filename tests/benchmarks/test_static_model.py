"""The model of machine code, on short programs whose clocks are counted by hand."""

import importlib.util
import json
import struct
import subprocess
from pathlib import Path

import pytest
from native import compilers

from benchmarks.static import hardware, sass, sass_trace, scheduler
from benchmarks.static.sass import parse
from qacg_kernels.backends.triton.tile_tables import shipped

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "benchmarks" / "results" / "static"
HOPPER = hardware.CHIPS["sm_90"]


def program(*lines):
    """nvdisasm's text; a line that ends in a colon is a label."""
    text = [line if line.endswith(":") else f"        /*{16 * n:04x}*/    {line} ;" for n, line in enumerate(lines)]
    return parse("\n".join(text))


def clocks(code, warps=4, blocks=1, iterations=1):
    main = sass.main_loop(code)
    path = list(sass.indices(code, main, lambda loop: iterations))
    return scheduler.clocks(code, [path], warps, blocks, HOPPER)


def independent(opcode, count):
    return [f"{opcode} R{n}, R200, R201" for n in range(count)]


def test_parse_reads_registers_targets_and_guards():
    code = program(".L_x_0:", "@P1 LDG.E.128 R4, desc[UR2][R8.64]", "STS.64 [R4], R6", "@!P0 BRA `(.L_x_0)")
    load, store, branch = code
    assert load.writes == ("R4", "R5", "R6", "R7")
    assert set(load.reads) >= {"P1", "R8", "UR2"}
    assert store.writes == ()
    assert set(store.reads) >= {"R4", "R6"}
    assert branch.target == 0
    assert branch.guard == "@!P0"
    assert hardware.counts(code) == {
        "all": 3, "tensor": 0, "mufu": 0, "fma": 0, "integer": 1, "shared": 1, "global": 1, "barrier": 0,
    }  # fmt: skip


def test_parse_reads_the_result_of_a_shuffle():
    (to_none, to_one) = program("SHFL.BFLY PT, R5, R4, 0x1, 0x1f", "SHFL.UP P0, R6, R4, 0x1, RZ")
    assert to_none.writes == ("R5",)
    assert to_none.reads == ("R4",)
    assert to_one.writes == ("P0", "R6")


def test_indices_repeat_the_main_loop():
    code = program(
        "@P0 BRA `(.L_x_1)",  # the path that falls through does not reach the loop
        "MOV R1, RZ",
        "BRA `(.L_x_3)",
        ".L_x_1:",
        "HMMA.16816.F32.BF16 R4, R8, R12, R4",
        "@P2 BRA `(.L_x_2)",  # inside the loop: not taken
        "FADD R1, R2, R3",
        ".L_x_2:",
        "@!P1 BRA `(.L_x_1)",
        ".L_x_3:",
        "EXIT",
    )
    main = sass.main_loop(code)
    assert (main.start, main.stop) == (3, 6)
    assert list(sass.indices(code, main, lambda loop: 2)) == [0, 3, 4, 5, 6, 3, 4, 5, 6, 7]


def test_indices_without_a_loop_reach_the_last_product():
    code = program(
        "@P0 BRA `(.L_x_1)",  # the path that falls through exits
        "EXIT",
        ".L_x_1:",
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]",
        "@P1 BRA `(.L_x_2)",  # after it: not taken
        "FADD R1, R2, R3",
        ".L_x_2:",
        "EXIT",
    )
    assert sass.main_loop(code) is None
    assert list(sass.indices(code, None, lambda loop: 1)) == [0, 2, 3, 4, 5]


def test_indices_leave_out_other_loops_of_products():
    product = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
    loops = (
        "@P0 BRA `(.L_x_1)",  # skips the loop with mask checks
        ".L_x_0:", product, "FADD R1, R2, R3", "@!P1 BRA `(.L_x_0)",
        ".L_x_1:", product, product, "@!P1 BRA `(.L_x_1)",
        "@P0 BRA `(.L_x_3)",  # skips a loop after the main one
        ".L_x_2:", product, "@!P1 BRA `(.L_x_2)",
        ".L_x_3:", "EXIT",
    )  # fmt: skip
    code = program(*loops)
    main = sass.main_loop(code)
    assert (main.start, main.stop) == (4, 6)
    assert list(sass.indices(code, main, lambda loop: 2)) == [0, 4, 5, 6, 4, 5, 6, 7, 10]


@pytest.mark.parametrize(("opcode", "each"), [("FFMA", 1), ("MUFU.EX2", 8), ("FMNMX", 2)])
def test_clocks_of_a_unit_grow_with_the_warps(opcode, each):
    for warps in (4, 8):
        found = clocks(program(*independent(opcode, 100), "EXIT"), warps)
        assert found == pytest.approx(100 * each * warps / 4, abs=10)


def test_clocks_include_the_latency_of_results():
    code = program("MUFU.EX2 R1, R0", *["MUFU.EX2 R1, R1"] * 9, "EXIT")
    assert clocks(code) == pytest.approx(10 * 22, abs=22)
    assert clocks(code, warps=8) == clocks(code, warps=4) + 8  # the second warp runs while the first waits


def wgmma(*between):
    products = ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24"] * 3
    last = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"
    before, after = between
    return program(*products, last, *before, "WARPGROUP.DEPBAR.LE gsb0, 0x0", *after, "EXIT")


def test_clocks_overlap_wgmma_with_other_work():
    work = independent("FFMA", 200)
    products = 4 * 64  # m64n128k16 at 4096 FLOP a clock
    assert clocks(wgmma((), work)) == pytest.approx(products + 200, abs=60)
    assert clocks(wgmma(work, ())) == pytest.approx(products, abs=60)


def test_clocks_wait_for_groups_of_copies():
    copies = ["LDGSTS.E.BYPASS.128 [R1], desc[UR2][R2.64]", "LDGDEPBAR"]
    early = program(*copies, *copies, "DEPBAR.LE SB0, 0x1", "EXIT")
    late = program(*copies, *independent("FFMA", 900), *copies, "DEPBAR.LE SB0, 0x1, {2}", "EXIT")
    assert clocks(early) > hardware.GLOBAL_LATENCY
    assert clocks(late) < 900 + hardware.GLOBAL_LATENCY / 2


@pytest.mark.parametrize(("waits", "expected"), [((), 0), ((3,), 3), ((3, 1, 2), 1), ((2, 0), 0)])
def test_loads_in_flight_is_the_least_over_the_waits(waits, expected):
    copies = [f"DEPBAR.LE SB0, 0x{left:x}" for left in waits]
    code = program(*copies, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R1, R2, R3")
    assert sass.loads_in_flight(code) == expected


# A loop with the iterations of the parameter at 0x210, which waits for all copies. One group is left in flight before.
WAITING = (
    "LDGDEPBAR", "DEPBAR.LE SB0, 0x1", "IMAD.MOV.U32 R1, RZ, RZ, RZ", "ULDC UR4, c[0x0][0x210]",
    ".L_x_0:", "DEPBAR.LE SB0, 0x{least}", "FADD R2, R2, R3", "DEPBAR.LE SB0, 0x3", "IADD3 R1, R1, 0x1, RZ",
    "ISETP.LT.AND P1, PT, R1, UR4, PT", "@P1 BRA `(.L_x_0)",
    "DEPBAR.LE SB0, 0x0", "EXIT",
)  # fmt: skip


def estimated_cuda_kernel(monkeypatch, name, lines):
    """Estimates one iteration per 64 keys of a kernel with this machine code."""
    from benchmarks.static import cuda_kernels
    from benchmarks.static.calibrate import Calibration

    made = cuda_kernels.Code(program(*lines), registers=32, stack=0)
    monkeypatch.setattr(cuda_kernels, "code", lambda architecture: {(name, 64): made})
    monkeypatch.setattr(cuda_kernels, "calibration", lambda: Calibration(1.0, {}))
    calls = {n: cuda_kernels.Call(128, 1024, 64, 64, struct.pack("<I", max(1, n // 64))) for n in (1, 256, 768)}
    return cuda_kernels._estimate_uncached(name, 64, False, "sm_90", calls).estimate


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("least", [0, 2])
def test_loads_in_flight_of_cuda_count_waits_in_the_loop(least, monkeypatch):
    lines = [line.format(least=least) for line in WAITING]
    assert estimated_cuda_kernel(monkeypatch, "forward", lines).loads_in_flight == least


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_loads_in_flight_without_a_loop_are_zero(monkeypatch):
    lines = ("LDGDEPBAR", "DEPBAR.LE SB0, 0x1", "FADD R2, R2, R3", "EXIT")
    assert estimated_cuda_kernel(monkeypatch, "forward_short", lines).loads_in_flight == 0


@pytest.mark.parametrize("file", ["sm_80.jsonl", "sm_90.jsonl", "cuda_sm_80.jsonl", "cuda_sm_90.jsonl"])
def test_static_records_with_one_stage_load_nothing_ahead(file):
    lines = (RECORDS / file).read_text(encoding="utf-8").splitlines()
    single = [record for record in map(json.loads, lines) if record.get("stages") == 1]
    assert single
    assert {record["loads_in_flight"] for record in single} == {0}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_static_record_has_the_tiles_of_the_shipped_table(architecture):
    """If it fails, renew it: `python -m benchmarks.static --arch ARCH --bits 16 --head-dims 64 128 --out FILE`."""
    entries = shipped(architecture).by_key
    records = map(json.loads, (RECORDS / f"{architecture}.jsonl").read_text(encoding="utf-8").splitlines())
    recorded = {
        tuple(one[name] for name in ("kernel", "bits", "head_dim", "busy")): (*one["tile"], one["warps"], one["stages"])
        for one in records
        if "tile" in one
    }
    assert recorded
    present = {key: entries[key] for key in recorded}
    assert recorded == {key: (one.block_m, one.block_n, one.num_warps, one.num_stages) for key, one in present.items()}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_products_of_tiled_kernels_execute_the_tiled_flops():
    from benchmarks.cases import BACKWARD, FORWARD, TILED_FLOPS
    from benchmarks.static import cuda_kernels, kernel

    triton, cuda = kernel.PRODUCTS, cuda_kernels.PRODUCTS
    assert 2 * triton["tiled_forward"] == TILED_FLOPS[FORWARD]
    assert 2 * (triton["key_gradients"] + triton["query_gradients"]) == TILED_FLOPS[BACKWARD]
    assert 2 * cuda["hopper_forward"] == TILED_FLOPS[FORWARD]
    assert 2 * (cuda["backward_keys"] + cuda["backward_rows"]) == TILED_FLOPS[BACKWARD]


def test_clocks_wait_at_a_barrier_for_the_block():
    # The two warps of a block alternate at the unit before the barrier; warps of two blocks need not wait.
    code = program(*independent("MUFU.EX2", 50), "BAR.SYNC.DEFER_BLOCKING 0x0", *independent("FFMA", 400), "EXIT")
    assert clocks(code, warps=8) == pytest.approx(2 * 400 + 2 * 400, abs=40)
    assert clocks(code, warps=4, blocks=2) < clocks(code, warps=8)


def test_clocks_of_warps_with_different_paths():
    code = program(*independent("MUFU.EX2", 50), "EXIT")
    whole = list(range(len(code)))
    assert scheduler.clocks(code, [whole, whole[-1:]], 8, 1, HOPPER) == clocks(code, warps=4)


# A loop with the iterations of the parameter at 0x10, in which threads below the one at 0x14 run one more instruction.
COUNTED = (
    "S2R R0, SR_TID.X",
    "IMAD.MOV.U32 R1, RZ, RZ, RZ",
    "ULDC UR4, c[0x0][0x10]",
    ".L_x_0:",
    "ISETP.GE.AND P0, PT, R0, c[0x0][0x14], PT",
    "@P0 BRA `(.L_x_1)",
    "FADD R2, R2, R3",
    ".L_x_1:",
    "IADD3 R1, R1, 0x1, RZ",
    "ISETP.LT.AND P1, PT, R1, UR4, PT",
    "@P1 BRA `(.L_x_0)",
    "EXIT",
)


def constants(*words):
    return bytes(0x10) + struct.pack(f"<{len(words)}I", *words)


def test_trace_path_follows_the_parameters():
    code = program(*COUNTED)
    lean, full = [3, 4, 6, 7, 8], [3, 4, 5, 6, 7, 8]
    assert sass_trace.trace_path(code, constants(3, 32), 32) == [0, 1, 2, *lean * 3, 9]
    assert sass_trace.trace_path(code, constants(2, 32), 31) == [0, 1, 2, *full * 2, 9]


def test_trace_path_reads_literals():
    code = program("MOV R0, c[0x2][0x4]", "ISETP.EQ.AND P0, PT, R0, 0x340, PT", "@P0 EXIT", "NOP", "EXIT")
    assert sass_trace.trace_path(code, b"", 0, literals=struct.pack("<II", 1, 0x340)) == [0, 1, 2]
    with pytest.raises(sass_trace.UnknownPathError):
        sass_trace.trace_path(code, b"", 0, literals=b"")


def test_trace_path_of_a_whole_warp_does_not_diverge():
    code = program("BRA.DIV UR5, `(.L_x_0)", "NOP", ".L_x_0:", "EXIT")
    assert sass_trace.trace_path(code, b"", 0) == [0, 1, 2]


def test_trace_path_of_skipped_instructions():
    lines = ["ISETP.GE.AND P0, PT, RZ, 0x1, PT", *["@P0 MUFU.EX2 R1, R2"] * 100, "EXIT"]
    code = program(*lines)
    path = sass_trace.trace_path(code, b"", 0)
    assert path == [0, *[len(code)] * 100, 101]
    assert scheduler.clocks([*code, sass_trace.SKIPPED], [path], 4, 1, HOPPER) == pytest.approx(102, abs=10)


def test_trace_path_of_an_unknown_branch_raises():
    code = program("POPC R0, R1", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 BRA `(.L_x_0)", ".L_x_0:", "EXIT")
    with pytest.raises(sass_trace.UnknownPathError, match=r"instruction 2: .* got @P0 BRA"):
        sass_trace.trace_path(code, b"", 0)
    with pytest.raises(sass_trace.UnknownPathError, match=r"thread 0: expected EXIT within .* endless loop"):
        sass_trace.trace_path(program(".L_x_0:", "BRA `(.L_x_0)"), b"", 0)


# Programs that must set P0, if c[0x0][0x10] is 100 and c[0x0][0x14] is -7.
COMPUTED = {
    "quotient by a float reciprocal": (
        "I2F.U32.RP R1, 0x7", "MUFU.RCP R1, R1", "VIADD R1, R1, 0xffffffe", "F2I.FTZ.U32.TRUNC.NTZ R3, R1",
        "IMAD.MOV.U32 R2, RZ, RZ, RZ", "IMAD.MOV R4, RZ, RZ, -R3", "IMAD R4, R4, 0x7, RZ", "IMAD.HI.U32 R3, R3, R4, R2",
        "IMAD.HI.U32 R5, R3, c[0x0][0x10], RZ", "ISETP.EQ.AND P0, PT, R5, 0xe, PT",
    ),
    "sum of 64 bits": (
        "IADD3 R1, P1, RZ, -0x1, RZ", "IADD3 R2, P1, R1, 0x2, RZ", "IADD3.X R3, RZ, RZ, RZ, P1, !PT",
        "ISETP.EQ.U32.AND P0, PT, R2, 0x1, PT", "ISETP.EQ.AND.EX P0, PT, R3, 0x1, PT, P0",
    ),
    "difference with a borrow": (
        "MOV R9, 0x1", "IADD3 R2, P1, RZ, -R9, RZ", "IADD3.X R3, RZ, ~RZ, RZ, P1, !PT",
        "ISETP.EQ.AND P0, PT, R3, -0x1, PT",
    ),
    "arithmetic shift": (
        "LDC R1, c[0x0][0x14]", "SHF.R.S32.HI R2, RZ, 0x1, R1", "ISETP.EQ.AND P0, PT, R2, -0x4, PT",
    ),
    "remainder by a power of two": (
        "MOV R1, c[0x0][0x10]", "LEA.HI R2, RZ, R1, RZ, 0x3", "LOP3.LUT R2, R2, 0xfffffff8, RZ, 0xc0, !PT",
        "IMAD.IADD R1, R1, 0x1, -R2", "ISETP.EQ.AND P0, PT, R1, 0x4, PT",
    ),
    "minimum of a sum and a number": (
        "MOV R1, c[0x0][0x10]", "VIADDMNMX R2, R1, -0x3, 0x40, PT", "ISETP.EQ.AND P0, PT, R2, 0x40, PT",
    ),
    "predicates kept in a register": (
        "ISETP.EQ.AND P3, PT, RZ, RZ, PT", "P2R R1, PR, RZ, 0x8", "ISETP.NE.AND P0, PT, R1, RZ, PT",
    ),
    "bytes of two words": (
        "MOV R1, 0x11223380", "PRMT R2, R1, 0x9810, RZ", "ISETP.EQ.AND P0, PT, R2, 0xff3380, PT",
    ),
    "integer by halves": (
        "HFMA2.MMA R1, -RZ, RZ, 2, 5.9604644775390625e-08", "ISETP.EQ.AND P0, PT, R1, 0x40000001, PT",
    ),
    "floats, assumed to be finite": ("LDG.E R1, desc[UR4][R2.64]", "FSETP.GT.AND P0, PT, |R1|, -INF , PT"),
    "predicates by a table": (
        "ISETP.EQ.AND P1, PT, RZ, RZ, PT", "ISETP.NE.AND P2, PT, RZ, RZ, PT", "PLOP3.LUT P0, PT, P1, P2, PT, 0x20, 0x0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", COMPUTED.values(), ids=COMPUTED)
def test_trace_path_computes_integers(lines):
    code = program(*lines, "@P0 BRA `(.L_x_0)", "NOP", ".L_x_0:", "EXIT")
    assert len(code) - 2 not in sass_trace.trace_path(code, constants(100, -7 & 0xFFFFFFFF), 0)


def test_resident_blocks_have_three_limits():
    assert hardware.resident_blocks(HOPPER, registers=128, warps=8, shared=1024) == 2
    assert hardware.resident_blocks(HOPPER, registers=32, warps=8, shared=1024) == 8
    # 84,480 bytes and the 1 KiB of each block: twice would be 167 KiB of the A100's 164.
    assert hardware.resident_blocks(hardware.CHIPS["sm_80"], registers=128, warps=4, shared=84_480) == 1
    assert hardware.resident_blocks(HOPPER, registers=128, warps=8, shared=240_000) == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_entry_record_has_the_documented_fields():
    from benchmarks.static import report
    from benchmarks.static.kernel import Estimate
    from benchmarks.static.operator import EstimatedEntry
    from qacg_kernels.backends.triton.tile_tables import TileEntry

    row = TileEntry("tiled_forward", 16, 64, False, 128, 64, 8, 3)
    counted = hardware.counts(program("MUFU.EX2 R1, R0"))
    estimate = Estimate(8, 200, 0, 98304, 1, 0, counted, True, 3, 1.0, "mufu", 900.0, 2000.0)
    record = report.entry_record(EstimatedEntry(row, estimate, 312.4))
    assert " ".join(record) == (
        "backend kernel pass bits head_dim busy tile warps stages registers stack shared_bytes resident instructions "
        "wgmma loads_in_flight duplicated bound counted_tflops executed_tflops"
    )
    assert record["pass"] == "forward"
    assert (record["counted_tflops"], record["executed_tflops"]) == (234.0, 312.0)
    assert report.sentence(record).endswith("234.0 TFLOP/s counted, 312.0 TFLOP/s executed")
    assert "128 x 64, 8 warps, 3 stages" in report.sentence(record)
    assert "; wgmma; at least 3 loads in flight; 1 warps per attention entry; bound by mufu" in report.sentence(record)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_entry_record_of_part_of_a_pass_has_no_counted_rate():
    from benchmarks.static import report
    from benchmarks.static.kernel import Estimate
    from benchmarks.static.operator import EstimatedEntry
    from qacg_kernels.backends.triton.tile_tables import TileEntry

    row = TileEntry("key_gradients", 16, 64, False, 64, 128, 8, 3)
    counted = hardware.counts(program("MUFU.EX2 R1, R0"))
    estimate = Estimate(8, 200, 0, 98304, 1, 0, counted, True, 3, 1.0, "mufu", 900.0, 2000.0)
    record = report.entry_record(EstimatedEntry(row, estimate, 312.4))
    assert (record["counted_tflops"], record["executed_tflops"]) == (None, 312.0)
    assert report.sentence(record).endswith("mufu; 312.0 TFLOP/s executed")


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("pass_", "products", "counted", "executed"), [("forward", 4, 6.0, 8.0), ("backward", 11, 16.0, 22.0)]
)
def test_call_rates_count_flops_and_products(pass_, products, counted, executed):
    from benchmarks.cases import Shape
    from benchmarks.static.operator import Predicted, call_rates

    rates = call_rates(Predicted(1e-3, "tensor", products), Shape(10, 10, 1000, 10), pass_)
    assert rates == pytest.approx((counted, executed))


def cuda_kernels_of(*names):
    """Estimates of 1,000 clocks, and 100 clocks per iteration, for kernels with tiles of 64 rows and 32 keys."""
    from benchmarks.static import cuda_kernels
    from benchmarks.static.kernel import Estimate

    estimate = Estimate(4, 100, 0, 1024, 1, 0, {}, False, 0, 1.0, "mufu", 1000.0, 100.0)
    call = cuda_kernels.Call(128, 1024, 64, 32, b"")
    return {(name, 64): cuda_kernels.EstimatedKernel(name, 64, False, call, estimate, 1.0) for name in names}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("name", "pass_", "length", "clocks", "products"),
    [
        ("cuda", "forward", 128, 1400, 3),  # forward_short
        ("cuda", "forward", 1280, 1000 + 40 * 100, 4),
        ("hopper", "forward", 128, 1000 + 4 * 100, 4),
        ("cuda", "backward", 1280, 2 * 1000 + (40 + 20) * 100, 11),
    ],
)
def test_cuda_call_is_the_sum_of_its_kernels(monkeypatch, name, pass_, length, clocks, products):
    from benchmarks.cases import Shape
    from benchmarks.static import cuda_kernels, operator
    from benchmarks.static.calibrate import Calibration

    monkeypatch.setattr(operator, "calibration", lambda: Calibration(1.0, {}))
    kernels = cuda_kernels_of("forward", "forward_short", "hopper_forward", "backward_rows", "backward_keys")
    found = cuda_kernels.predict_call("sm_90", kernels, name, Shape(1, 1, length, 64), pass_)
    launches = 2 if pass_ == "backward" else 1
    assert found.seconds == pytest.approx(clocks / 1.6e9 + launches * 2.5e-6)
    assert found.products == products


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("name", "pass_"), [("hopper", "forward"), ("hopper", "backward")])
def test_cuda_call_without_its_kernel_has_no_prediction(name, pass_):
    from benchmarks.cases import Shape
    from benchmarks.static import cuda_kernels

    kernels = cuda_kernels_of("forward", "backward_rows", "backward_keys")
    assert cuda_kernels.predict_call("sm_80", kernels, name, Shape(1, 1, 512, 64), pass_) is None


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("sequences", "bound"), [(1, "latency"), (4096, "memory")])
def test_gate_sums_are_bound_by_warps_or_memory(monkeypatch, sequences, bound):
    from benchmarks.cases import Shape
    from benchmarks.static import cuda_kernels, operator
    from benchmarks.static.calibrate import Calibration

    monkeypatch.setattr(operator, "calibration", lambda: Calibration(1.0, {}))
    waits = program("LDG.E R1, desc[UR4][R2.64]", "FADD R1, R1, R1", "EXIT")
    code = {("gate_partial_sums", cuda_kernels.ANY_SIZE): cuda_kernels.Code(waits, registers=32, stack=0)}
    monkeypatch.setattr(cuda_kernels, "code", lambda architecture: code)
    monkeypatch.setattr(cuda_kernels, "_printed", lambda *sizes: [f"gate_partial_sums {sequences} 256 1024 00"])
    (found,) = cuda_kernels.estimate_gate_sums("sm_90", Shape(sequences, 1, 128, 64))
    assert found.predicted.bound == bound
    clocks = hardware.GLOBAL_LATENCY if bound == "latency" else 4 * 2 * sequences * 128 * 64 / 0.9 / 4.3e12 * 1.6e9
    assert found.predicted.seconds == pytest.approx(clocks / 1.6e9 + 2.5e-6, abs=3e-8)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZN4qacg4cuda3mma13forward_shortINS_8Bfloat16ELi64EEEvNS0_7ProblemE", ("forward_short", 64)),
        ("_ZN4qacg4cuda17gate_partial_sumsENS0_7ProblemENS0_9GradientsE", ("gate_partial_sums", 0)),
        ("_ZN4qacg4cuda5plain7forwardENS0_7ProblemE", ("forward", 0)),
    ],
)
def test_kernel_name_from_mangled_name(mangled, name):
    from benchmarks.static import cuda_kernels

    assert cuda_kernels._name_of(mangled) == name


def most_without_a_branch(code, opcode):
    """The most instructions of this opcode between two branches or their targets."""
    ends = {i.target for i in code} | {n + 1 for n, i in enumerate(code) if i.stem in ("BRA", "EXIT")}
    counts = [0]
    for index, instruction in enumerate(code):
        if index in ends:
            counts.append(0)
        counts[-1] += instruction.opcode == opcode
    return max(counts)


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.skipif(compilers.nvcc() is None, reason="nvcc, the CUDA compiler, is not on this machine")
@pytest.mark.parametrize("gpu", ["sm_80", "sm_90a"])
def test_gate_sums_read_sixteen_rows_at_once(gpu, tmp_path):
    """A branch between two reads makes the warp wait for the first one."""
    from benchmarks.static import cuda_kernels

    source, cubin = tmp_path / "gates.cu", tmp_path / "gates.cubin"
    source.write_text('#include "gate_kernels.h"\n')
    flags = ("-std=c++17", "-O3", "-DNDEBUG", "-cubin", f"-arch={gpu}", f"-I{ROOT / 'csrc' / 'cuda'}")
    subprocess.run([compilers.nvcc(), *flags, source, "-o", cubin], check=True)
    kernels = cuda_kernels.kernels_of(cubin)
    partial, sums = (kernels[name, cuda_kernels.ANY_SIZE].program for name in ("gate_partial_sums", "gate_sums"))
    assert most_without_a_branch(partial, "LDG.E.U16") >= 16
    assert most_without_a_branch(sums, "LDG.E") >= 16


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("kernel_name", ["whole_row_forward", "whole_row_backward", "key_gradients", "query_gradients"])
def test_work_of_every_tile_table_kernel(kernel_name):
    from benchmarks.static import kernel
    from benchmarks.static.launches import launch_of_row
    from qacg_kernels.backends.triton.tile_tables import shipped

    table = shipped("sm_90")
    row = table.by_key[kernel_name, 16, 64, False]
    work = kernel.work_of(launch_of_row(table, row))
    assert work.flops == 2 * row.block_m * row.block_n * 64 * kernel.PRODUCTS[kernel_name]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("mask", "head_dim", "used"),
    [("none", 64, [False, True]), ("keys", 64, [False, True]), ("keys", 128, [True]), ("full", 64, [True])],
)
def test_masks_select_the_entries_that_calls_use(mask, head_dim, used):
    from benchmarks.static.launches import is_used
    from qacg_kernels.backends.triton.tile_tables import shipped

    entries = [shipped("sm_90").by_key["whole_row_backward", 16, head_dim, busy] for busy in (False, True)]
    assert [entry.busy for entry in entries if is_used(entry, mask)] == used


def test_clocks_of_a_barrier_do_not_wait_for_wgmma():
    lines = ["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"] * 8
    waits = program(*lines, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], RZ", *independent("FADD", 20))
    free = program(*lines, *independent("FADD", 20))
    assert clocks(waits) <= clocks(free) + 2


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(("opcode", "iterations"), [("FFMA", 16), ("FFMA2", 8)])
def test_parts_of_a_product_count_paired_multiply_adds(opcode, iterations):
    from benchmarks.static.kernel import Work, parts_of_product

    code = program(".L_x_0:", *independent(opcode, 64), "@P0 BRA `(.L_x_0)", "EXIT")
    work = Work(cells=32 * 128, head_dim=32, products=1, iterates=True)
    assert parts_of_product(code, sass.Loop(0, 64), warps=4, work=work) == iterations


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize(
    ("product", "iterations"),
    [
        ("HMMA.1688.F32.TF32 R4, R8, R12, R4", 16),
        ("HMMA.16816.F32.BF16 R4, R8, R12, R4", 8),
        ("HGMMA.64x8x8.F32.TF32 R4, gdesc[UR4], R4", 16),
    ],
)
def test_parts_of_a_product_count_tensor_core_products(product, iterations):
    from benchmarks.static.kernel import Work, parts_of_product

    code = program(".L_x_0:", product, "@P0 BRA `(.L_x_0)", "EXIT")
    work = Work(cells=64 * 32, head_dim=64, products=1, iterates=True)  # 512 multiply-adds of a thread with 8 warps
    assert parts_of_product(code, sass.Loop(0, 1), warps=8, work=work) == iterations
