"""The model of machine code, on programs of a few lines whose clocks can be counted by hand."""

import importlib.util
import struct

import pytest

from benchmarks.static import chips, follow, path, scheduler, units
from benchmarks.static.disassemble import parse

HOPPER = chips.CHIPS["sm_90"]


def program(*lines):
    """nvdisasm's text; a line that ends in a colon is a label."""
    text = [line if line.endswith(":") else f"        /*{16 * n:04x}*/    {line} ;" for n, line in enumerate(lines)]
    return parse("\n".join(text))


def clocks(code, warps=4, blocks=1, iterations=1):
    main = path.main_loop(code)
    way = list(path.indices(code, main, lambda loop: iterations))
    return scheduler.clocks(code, [way], warps, blocks, HOPPER)


def independent(opcode, count):
    return [f"{opcode} R{n}, R200, R201" for n in range(count)]


def test_registers_targets_and_guards_are_read():
    code = program(".L_x_0:", "@P1 LDG.E.128 R4, desc[UR2][R8.64]", "STS.64 [R4], R6", "@!P0 BRA `(.L_x_0)")
    load, store, branch = code
    assert load.writes == ("R4", "R5", "R6", "R7") and set(load.reads) >= {"P1", "R8", "UR2"}
    assert store.writes == () and set(store.reads) >= {"R4", "R6"}
    assert branch.target == 0 and branch.guard == "@!P0"
    assert units.counts(code) == {
        "all": 3, "tensor": 0, "mufu": 0, "fma": 0, "integer": 1, "shared": 1, "global": 1, "barrier": 0,
    }  # fmt: skip


def test_a_shuffle_writes_the_register_behind_its_predicate():
    (to_none, to_one) = program("SHFL.BFLY PT, R5, R4, 0x1, 0x1f", "SHFL.UP P0, R6, R4, 0x1, RZ")
    assert to_none.writes == ("R5",) and to_none.reads == ("R4",)
    assert to_one.writes == ("P0", "R6")


def test_a_path_goes_through_the_loop_with_the_work_and_leaves_out_what_a_full_call_skips():
    code = program(
        "@P0 BRA `(.L_x_1)",  # the way that falls through never meets the loop
        "MOV R1, RZ",
        "BRA `(.L_x_3)",
        ".L_x_1:",
        "HMMA.16816.F32.BF16 R4, R8, R12, R4",
        "@P2 BRA `(.L_x_2)",  # on the way: not taken
        "FADD R1, R2, R3",
        ".L_x_2:",
        "@!P1 BRA `(.L_x_1)",
        ".L_x_3:",
        "EXIT",
    )
    main = path.main_loop(code)
    assert (main.start, main.stop) == (3, 6)
    assert list(path.indices(code, main, lambda loop: 2)) == [0, 3, 4, 5, 6, 3, 4, 5, 6, 7]


def test_a_path_without_a_loop_goes_to_the_last_product():
    code = program(
        "@P0 BRA `(.L_x_1)",  # the way that falls through leaves
        "EXIT",
        ".L_x_1:",
        "UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]",
        "@P1 BRA `(.L_x_2)",  # after it: not taken
        "FADD R1, R2, R3",
        ".L_x_2:",
        "EXIT",
    )
    assert path.main_loop(code) is None
    assert list(path.indices(code, None, lambda loop: 1)) == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(("opcode", "each"), [("FFMA", 1), ("MUFU.EX2", 8), ("FMNMX", 2)])
def test_a_unit_takes_its_clocks_and_two_warps_take_turns(opcode, each):
    for warps in (4, 8):
        found = clocks(program(*independent(opcode, 100), "EXIT"), warps)
        assert found == pytest.approx(100 * each * warps / 4, abs=10)


def test_a_result_is_waited_for():
    code = program("MUFU.EX2 R1, R0", *["MUFU.EX2 R1, R1"] * 9, "EXIT")
    assert clocks(code) == pytest.approx(10 * 22, abs=22)
    assert clocks(code, warps=8) == clocks(code, warps=4) + 8  # the second warp works while the first waits


def wgmma(*between):
    products = ["HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24"] * 3
    last = "HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"
    before, after = between
    return program(*products, last, *before, "WARPGROUP.DEPBAR.LE gsb0, 0x0", *after, "EXIT")


def test_products_of_wgmma_run_while_the_warp_works_on_until_it_waits():
    work = independent("FFMA", 200)
    products = 4 * 64  # m64n128k16 at 4096 FLOP a clock
    assert clocks(wgmma((), work)) == pytest.approx(products + 200, abs=60)
    assert clocks(wgmma(work, ())) == pytest.approx(products, abs=60)


def test_copies_are_waited_for_by_group():
    copies = ["LDGSTS.E.BYPASS.128 [R1], desc[UR2][R2.64]", "LDGDEPBAR"]
    early = program(*copies, *copies, "DEPBAR.LE SB0, 0x1", "EXIT")
    late = program(*copies, *independent("FFMA", 900), *copies, "DEPBAR.LE SB0, 0x1, {2}", "EXIT")
    assert clocks(early) > units.GLOBAL_LATENCY
    assert clocks(late) < 900 + units.GLOBAL_LATENCY / 2


def test_a_barrier_holds_a_block_until_its_last_warp():
    # The two warps of a block take turns at the unit before the barrier; those of two blocks need not wait.
    code = program(*independent("MUFU.EX2", 50), "BAR.SYNC.DEFER_BLOCKING 0x0", *independent("FFMA", 400), "EXIT")
    assert clocks(code, warps=8) == pytest.approx(2 * 400 + 2 * 400, abs=40)
    assert clocks(code, warps=4, blocks=2) < clocks(code, warps=8)


def test_warps_of_a_block_may_go_different_ways():
    code = program(*independent("MUFU.EX2", 50), "EXIT")
    whole = list(range(len(code)))
    assert scheduler.clocks(code, [whole, whole[-1:]], 8, 1, HOPPER) == clocks(code, warps=4)


# A loop as often as the parameter at 0x10 says, in which a thread below the one at 0x14 does what others leave out.
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


def test_a_thread_goes_where_the_numbers_of_a_call_lead():
    code = program(*COUNTED)
    lean, full = [3, 4, 6, 7, 8], [3, 4, 5, 6, 7, 8]
    assert follow.way(code, constants(3, 32), 32) == [0, 1, 2, *lean * 3, 9]
    assert follow.way(code, constants(2, 32), 31) == [0, 1, 2, *full * 2, 9]


def test_what_a_predicate_skips_takes_a_slot_alone():
    lines = ["ISETP.GE.AND P0, PT, RZ, 0x1, PT", *["@P0 MUFU.EX2 R1, R2"] * 100, "EXIT"]
    code = program(*lines)
    way = follow.way(code, b"", 0)
    assert way == [0, *[len(code)] * 100, 101]
    assert scheduler.clocks([*code, follow.SKIPPED], [way], 4, 1, HOPPER) == pytest.approx(102, abs=10)


def test_a_branch_on_what_is_not_known_is_an_error():
    code = program("POPC R0, R1", "ISETP.NE.AND P0, PT, R0, RZ, PT", "@P0 BRA `(.L_x_0)", ".L_x_0:", "EXIT")
    with pytest.raises(follow.UnknownWayError, match="at 2: @P0 BRA"):
        follow.way(code, b"", 0)
    with pytest.raises(follow.UnknownWayError, match="have not led to the end"):
        follow.way(program(".L_x_0:", "BRA `(.L_x_0)"), b"", 0)


# Each with what P0 has to be, when c[0x0][0x10] is 100 and c[0x0][0x14] is -7.
COMPUTED = {
    "a quotient by way of a float": (
        "I2F.U32.RP R1, 0x7", "MUFU.RCP R1, R1", "VIADD R1, R1, 0xffffffe", "F2I.FTZ.U32.TRUNC.NTZ R3, R1",
        "IMAD.MOV.U32 R2, RZ, RZ, RZ", "IMAD.MOV R4, RZ, RZ, -R3", "IMAD R4, R4, 0x7, RZ", "IMAD.HI.U32 R3, R3, R4, R2",
        "IMAD.HI.U32 R5, R3, c[0x0][0x10], RZ", "ISETP.EQ.AND P0, PT, R5, 0xe, PT",
    ),
    "a sum of 64 bits": (
        "IADD3 R1, P1, RZ, -0x1, RZ", "IADD3 R2, P1, R1, 0x2, RZ", "IADD3.X R3, RZ, RZ, RZ, P1, !PT",
        "ISETP.EQ.U32.AND P0, PT, R2, 0x1, PT", "ISETP.EQ.AND.EX P0, PT, R3, 0x1, PT, P0",
    ),
    "a difference that borrows": (
        "MOV R9, 0x1", "IADD3 R2, P1, RZ, -R9, RZ", "IADD3.X R3, RZ, ~RZ, RZ, P1, !PT",
        "ISETP.EQ.AND P0, PT, R3, -0x1, PT",
    ),
    "a shift that keeps the sign": (
        "LDC R1, c[0x0][0x14]", "SHF.R.S32.HI R2, RZ, 0x1, R1", "ISETP.EQ.AND P0, PT, R2, -0x4, PT",
    ),
    "the rest by a power of two": (
        "MOV R1, c[0x0][0x10]", "LEA.HI R2, RZ, R1, RZ, 0x3", "LOP3.LUT R2, R2, 0xfffffff8, RZ, 0xc0, !PT",
        "IMAD.IADD R1, R1, 0x1, -R2", "ISETP.EQ.AND P0, PT, R1, 0x4, PT",
    ),
    "the least of a sum and a number": (
        "MOV R1, c[0x0][0x10]", "VIADDMNMX R2, R1, -0x3, 0x40, PT", "ISETP.EQ.AND P0, PT, R2, 0x40, PT",
    ),
    "predicates kept in a register": (
        "ISETP.EQ.AND P3, PT, RZ, RZ, PT", "P2R R1, PR, RZ, 0x8", "ISETP.NE.AND P0, PT, R1, RZ, PT",
    ),
    "bytes of two words": (
        "MOV R1, 0x11223380", "PRMT R2, R1, 0x9810, RZ", "ISETP.EQ.AND P0, PT, R2, 0xff3380, PT",
    ),
    "floats, which are ordinary": ("LDG.E R1, desc[UR4][R2.64]", "FSETP.GT.AND P0, PT, |R1|, -INF , PT"),
    "predicates by a table": (
        "ISETP.EQ.AND P1, PT, RZ, RZ, PT", "ISETP.NE.AND P2, PT, RZ, RZ, PT", "PLOP3.LUT P0, PT, P1, P2, PT, 0x20, 0x0",
    ),
}  # fmt: skip


@pytest.mark.parametrize("lines", COMPUTED.values(), ids=COMPUTED)
def test_integers_are_computed_as_the_machine_would(lines):
    code = program(*lines, "@P0 BRA `(.L_x_0)", "NOP", ".L_x_0:", "EXIT")
    assert len(code) - 2 not in follow.way(code, constants(100, -7 & 0xFFFFFFFF), 0)


def test_blocks_of_a_multiprocessor_are_held_by_registers_warps_and_memory():
    assert chips.resident_blocks(HOPPER, registers=128, warps=8, shared=1024) == 2
    assert chips.resident_blocks(HOPPER, registers=32, warps=8, shared=1024) == 8
    # 84,480 bytes and the 1 KiB of each block: twice would be 167 KiB of the A100's 164.
    assert chips.resident_blocks(chips.CHIPS["sm_80"], registers=128, warps=4, shared=84_480) == 1
    assert chips.resident_blocks(HOPPER, registers=128, warps=8, shared=240_000) == 0


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_a_row_is_told_by_the_names_that_readers_rely_on():
    from benchmarks.static import report
    from benchmarks.static.kernel import Judged
    from benchmarks.static.operator import JudgedRow
    from qacg_kernels.backends.triton.tile_tables import TileEntry

    row = TileEntry("tiled_forward", 16, 64, False, 128, 64, 8, 3)
    counted = units.counts(program("MUFU.EX2 R1, R0"))
    judged = Judged(8, 200, 0, 98304, 1, 0, counted, True, 3, 1.0, "mufu", 900.0, 2000.0)
    record = report.row_record(JudgedRow(row, judged, 312.4))
    assert " ".join(record) == (
        "backend kernel pass bits head_dim busy tile warps stages registers stack shared_bytes resident instructions "
        "wgmma loads_in_flight duplicated bound predicted_tflops"
    )
    assert record["pass"] == "forward" and record["predicted_tflops"] == 312.0
    assert "128 x 64, 8 warps, 3 stages" in report.sentence(record)


def test_warps_that_only_copy_take_their_share_beside_those_that_compute():
    computing = [".L_x_0:", *(f"FFMA R{n}, R200, R201, R202" for n in range(40)), "@!P0 BRA `(.L_x_0)", "EXIT"]
    dispatch = [".L_x_1:", "BAR.SYNC.DEFER_BLOCKING 0x1", "@P1 BRA `(.L_x_0)"]
    copying = [
        ".L_x_2:",
        *["LDGSTS.E.BYPASS.128 [R1], desc[UR2][R2.64]", *["IADD3 R3, R4, R5, R6"] * 9],
        "@!P0 BRA `(.L_x_2)",
    ]
    code = program(*dispatch, *copying, "BRA `(.L_x_1)", *computing)
    main = path.main_loop(code)
    copies = path.copying_loop(code, main)
    assert code[copies.start].stem == "LDGSTS" and copies.stop - copies.start == 10
    of_copies = list(path.indices(code, copies, lambda loop: 3))
    # Back to where they wait for other work they go no further.
    assert [code[i].stem for i in of_copies].count("LDGSTS") == 3 and code[of_copies[-1]].opcode == "BRA"
    assert not set(of_copies) & set(range(main.start, main.stop + 1))
    way = list(range(main.start, main.stop)) * 10
    alone = scheduler.clocks(code, [way], 4, 1, HOPPER)
    both = scheduler.clocks(code, [way], 4, 1, HOPPER, beside=[(of_copies, 4)])
    assert alone < both <= alone + len(of_copies) + 40
    assert path.copying_loop(program(*copying), path.Loop(0, 10)) is None  # the main loop's warps copy


def test_a_wait_for_a_barrier_waits_for_no_product_of_wgmma():
    lines = ["HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24, gsb0"] * 8
    waits = program(*lines, "SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], RZ", *independent("FADD", 20))
    free = program(*lines, *independent("FADD", 20))
    assert clocks(waits) <= clocks(free) + 2
