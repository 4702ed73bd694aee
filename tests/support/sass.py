"""Machine code (SASS) as a list of instructions, and its loops."""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_NUMBER = re.compile(r"\b0x[0-9a-f]+")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp.

    Attributes:
        opcode: the opcode with its suffixes, such as "LDG.E.128".
        operands: the operands as text.
        guard: the predicate under which it is executed, such as "@!P0"; "" if always.
        target: index of the instruction to which a branch within the kernel leads; None for other instructions.
    """

    opcode: str
    operands: str
    guard: str = ""
    target: int | None = None

    @property
    def stem(self) -> str:
        return self.opcode.partition(".")[0]


def disassembled(cubin: bytes, nvdisasm: Path) -> list[Instruction]:
    """Disassembles the only kernel of a cubin with NVIDIA's disassembler."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return parse(text)


def parse(text: str) -> list[Instruction]:
    """Parses the instructions in the output of nvdisasm."""
    found: list[tuple[str, str, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _LINE.match(line):
            found.append((match[1] or "", match[2], match[3]))
    return [_instruction(*parts, labels) for parts in found]


def loads_in_flight(iteration: Iterable[Instruction]) -> int:
    """The least number of groups of copies that a wait leaves in flight; 0 without such waits.

    The minimum over all waits decides, because no load is in flight after a wait for all copies.

    Args:
        iteration: the instructions that a warp issues per iteration of the main loop; empty if there is no such loop.
    """
    waits = (i for i in iteration if i.stem == "DEPBAR" and "SB" in i.operands)
    return min((int(_NUMBER.findall(wait.operands)[-1], 16) for wait in waits), default=0)


def _instruction(guard: str, opcode: str, operands: str, labels: dict[str, int]) -> Instruction:
    # A call of a label in the same kernel never returns, so it is a branch.
    target = _TARGET.search(operands) if opcode.startswith(("BRA", "CALL")) else None
    return Instruction(opcode, operands, guard, labels.get(target[1]) if target else None)


PRODUCTS = ("HGMMA", "HMMA", "UTCHMMA")  # opcodes of tensor-core products, without suffixes


@dataclass(frozen=True)
class Loop:
    """A loop: instructions `start` to `stop`, the last of which branches back to the first."""

    start: int
    stop: int

    def __contains__(self, other: "Loop") -> bool:
        return other != self and self.start <= other.start and other.stop <= self.stop


def loops_of(program: Sequence[Instruction]) -> list[Loop]:
    """All loops with arithmetic. In other loops, some of which lie after the last EXIT, a warp only waits."""
    exits = [index for index, i in enumerate(program) if i.stem == "EXIT" and not i.guard]
    end = exits[-1] if exits else len(program)
    found: dict[int, int] = {}
    for index, instruction in enumerate(program[:end]):
        if instruction.target is not None and instruction.target <= index:
            found[instruction.target] = index
    loops = [Loop(start, stop) for start, stop in found.items()]
    return [loop for loop in loops if work(program, loop)]


def work(program: Sequence[Instruction], loop: Loop) -> int:
    """The work in a loop, to compare loops: tensor-core products first, then float32 multiply-adds."""
    inside = program[loop.start : loop.stop + 1]
    return 1000 * sum(i.stem in PRODUCTS for i in inside) + sum(i.stem in ("FFMA", "FFMA2") for i in inside)


def main_loop(program: Sequence[Instruction]) -> Loop | None:
    """The outermost loop with the most work; None if no loop has work."""
    loops = loops_of(program)
    outermost = [loop for loop in loops if not any(loop in other for other in loops)]
    return max(outermost, key=lambda loop: work(program, loop), default=None)
