"""Reads the resources of compiled Triton kernels from their machine code. Needs no GPU."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CUOBJDUMP, NVDISASM = _TOOLS / "cuobjdump", _TOOLS / "nvdisasm"


class Resources(NamedTuple):
    """The resources of one kernel: registers and stack of a thread, memory of a block, and kinds of instructions."""

    registers: int  # on AMD GPUs with the accumulation registers
    stack: int  # bytes
    shared: int  # bytes
    tensor_columns: int  # of tensor memory, which only sm_100 has
    wgmma: bool  # 16-bit products by a warp group or a block (wgmma, tcgen05); on AMD GPUs any matrix instructions
    spills: int = 0  # loads and stores of the stack within loops; 0 on AMD GPUs
    mismatched: int = 0  # products that Triton compiles wrongly


def spills_within_loops(program: str) -> int:
    """Counts loads and stores of the stack within loops, in the output of nvdisasm.

    Only loops with arithmetic count. In other loops, some of which lie after the last EXIT, a warp only waits.
    """
    exits = [match.end() for match in re.finditer(r"\*/\s+EXIT\b", program)]
    program = program[: exits[-1]] if exits else program
    found: set[int] = set()
    for label in re.finditer(r"^(\.L_x_\d+):", program, re.MULTILINE):
        # A call of a label in the same kernel never returns, so it is a branch.
        back = rf".*\s(?:BRA|CALL)\b[^\n]*`\({re.escape(label[1])}\)"
        loop = re.compile(back, re.DOTALL).match(program, label.end())
        if loop and re.search(r"\s(?:HGMMA|HMMA|UTCHMMA|FFMA2?)\b", loop[0]):
            found |= {loop.start() + spill.start() for spill in re.finditer(r"\s(?:LDL|STL)\b", loop[0])}
    return len(found)


def resources(kernel: object) -> Resources:
    """Reads the resources of a compiled kernel from its machine code and the compiler's metadata."""
    if "amdgcn" in kernel.asm:
        return _amd_resources(kernel)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [CUOBJDUMP, "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        command = [NVDISASM, "-c", file.name]
        program = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(rf"\b{field}:(\d+)", text)[1]) for field in ("REG", "STACK"))
    return Resources(
        registers,
        stack,
        shared=kernel.metadata.shared,
        tensor_columns=getattr(kernel.metadata, "tmem_size", 0),
        wgmma=bool(re.search(r"\s(?:HGMMA|UTCHMMA)\b", program)),
        spills=spills_within_loops(program),
        mismatched=_mismatched_products(kernel.asm["ttgir"]),
    )


def _mismatched_products(ttgir: str) -> int:
    """Counts the mma.sync products whose operands Triton (3.6, 3.7) loads in different orders.

    A thread reads kWidth consecutive numbers of each row of the left operand, and four threads share a row. If the left
    operand has fewer than 4 kWidth columns, a thread reads fewer numbers, but Triton loads the right operand as if
    the thread read kWidth numbers. On an H200 such a product was wrong. `tiles.hide_bytes` avoids it.
    """
    layouts = set(re.findall(r"^(#\w+) = #ttg\.nvidia_mma<\{versionMajor = 2", ttgir, re.MULTILINE))
    left = r"tt\.dot .*?: tensor<\d+x(\d+)x\w+, #ttg\.dot_op<\{opIdx = 0, parent = (#\w+), kWidth = (\d+)\}>>"
    return sum(
        layout in layouts and int(columns) < 4 * int(width) for columns, layout, width in re.findall(left, ttgir)
    )


def _amd_resources(kernel: object) -> Resources:
    text = kernel.asm["amdgcn"]
    fields = ("vgpr_count", "private_segment_fixed_size")  # vgpr_count includes accumulation registers
    registers, stack = (int(re.search(rf"\.{name}: +(\d+)", text)[1]) for name in fields)
    matrix = bool(re.search(r"\bv_(mfma|smfmac|wmma)_", text))
    return Resources(registers, stack, kernel.metadata.shared, tensor_columns=0, wgmma=matrix)
