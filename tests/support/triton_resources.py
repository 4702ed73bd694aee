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
    """The resources of one kernel.

    Attributes:
        registers: registers per thread; on AMD GPUs with the accumulation registers.
        stack: bytes of stack per thread, for spilled registers.
        shared: bytes of shared memory per block.
        tensor_columns: columns of tensor memory per block, which only sm_100 has; 0 on other GPUs.
        wgmma: whether 16-bit products use instructions of a warp group or of a block (wgmma, tcgen05). On AMD GPUs,
            whether the kernel has matrix instructions (MFMA, WMMA).
        spills: number of instructions within loops that move registers to or from the stack. On AMD GPUs, it includes
            instructions outside of loops.
        mismatched: number of products that Triton compiles wrongly (`_mismatched_products`).
    """

    registers: int
    stack: int
    shared: int
    tensor_columns: int
    wgmma: bool
    spills: int
    mismatched: int = 0


_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z]\w*)\S*\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_ARITHMETIC = ("HGMMA", "HMMA", "UTCHMMA", "FFMA", "FFMA2")


class Instruction(NamedTuple):
    """An instruction of a warp: the opcode without suffixes, the predicate, and the index to which a branch leads."""

    opcode: str
    guard: str
    target: int | None


def parsed(text: str) -> list[Instruction]:
    """Parses the instructions in the output of nvdisasm."""
    found: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _LINE.match(line):
            found.append((match[1] or "", match[2], match[3]))
    # A call of a label in the same kernel never returns, so it is a branch.
    targets = (_TARGET.search(operands) if opcode in ("BRA", "CALL") else None for _, opcode, operands in found)
    return [Instruction(one[1], one[0], labels.get(to[1]) if to else None) for one, to in zip(found, targets)]


def loops_of(program: list[Instruction]) -> list[range]:
    """All loops with arithmetic. In other loops, some of which lie after the last EXIT, a warp only waits."""
    exits = [index for index, i in enumerate(program) if i.opcode == "EXIT" and not i.guard]
    end = exits[-1] if exits else len(program)
    back = [(i.target, index) for index, i in enumerate(program[:end]) if i.target is not None and i.target <= index]
    loops = [range(start, stop + 1) for start, stop in back]
    return [loop for loop in loops if any(program[index].opcode in _ARITHMETIC for index in loop)]


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
        program = parsed(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    registers, stack = (int(re.search(rf"\b{field}:(\d+)", text)[1]) for field in ("REG", "STACK"))
    looped = {index for loop in loops_of(program) for index in loop}
    spills = sum(program[index].opcode in ("LDL", "STL") for index in looped)
    wgmma = any(i.opcode in ("HGMMA", "UTCHMMA") for i in program)
    columns = getattr(kernel.metadata, "tmem_size", 0)
    mismatched = _mismatched_products(kernel.asm["ttgir"])
    shared = kernel.metadata.shared
    return Resources(registers, stack, shared, columns, wgmma, spills, mismatched)


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
    registers, stack = (int(re.search(rf"\.{name}: +(\d+)", text)[1]) for name in _AMD_FIELDS)
    matrix = bool(re.search(r"\bv_(mfma|smfmac|wmma)_", text))
    spills = len(re.findall(r"\bscratch_(?:load|store)_", text))
    return Resources(registers, stack, kernel.metadata.shared, 0, matrix, spills)


_AMD_FIELDS = ("vgpr_count", "private_segment_fixed_size")  # vgpr_count includes accumulation registers
