"""The parser of machine code with which the compile tests find loops, spills and loads in flight."""

import pytest
import sass


def program(*lines):
    """Parses nvdisasm's text of these instructions; a line that ends in a colon is a label."""
    text = [line if line.endswith(":") else f"        /*{16 * n:04x}*/    {line} ;" for n, line in enumerate(lines)]
    return sass.parse("\n".join(text))


def test_parse_reads_opcodes_guards_and_targets():
    load, store, branch = program(".L_x_0:", "@P1 LDG.E.128 R4, desc[UR2][R8.64]", "STL [R1], R6", "@!P0 BRA `(.L_x_0)")
    assert (load.guard, load.stem, load.opcode) == ("@P1", "LDG", "LDG.E.128")
    assert (store.guard, store.stem, store.operands) == ("", "STL", "[R1], R6")
    assert (branch.guard, branch.target) == ("@!P0", 0)


def test_main_loop_is_the_outermost_with_most_products():
    product = "HMMA.16816.F32.BF16 R4, R8, R12, R4"
    code = program(
        ".L_x_0:", product, "@!P1 BRA `(.L_x_0)",
        ".L_x_1:", product, ".L_x_2:", product, "@!P1 BRA `(.L_x_2)", "@!P2 BRA `(.L_x_1)",
        "EXIT", ".L_x_3:", "BRA `(.L_x_3)",
    )  # fmt: skip
    assert sass.loops_of(code) == [sass.Loop(0, 1), sass.Loop(3, 4), sass.Loop(2, 5)]
    assert sass.main_loop(code) == sass.Loop(2, 5)


@pytest.mark.parametrize(("waits", "expected"), [((), 0), ((3,), 3), ((3, 1, 2), 1), ((2, 0), 0)])
def test_loads_in_flight_is_the_least_over_the_waits(waits, expected):
    copies = [f"DEPBAR.LE SB0, 0x{left:x}" for left in waits]
    code = program(*copies, "WARPGROUP.DEPBAR.LE gsb0, 0x0", "FADD R1, R2, R3")
    assert sass.loads_in_flight(code) == expected
