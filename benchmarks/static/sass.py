"""Machine code (SASS) as a list of instructions, and the path of one warp through its loops."""

import re
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_LABEL = re.compile(r"^(\.L_x_\d+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
_NUMBER = re.compile(r"\b0x[0-9a-f]+")
_REGISTER = re.compile(r"\b(UR|R|UP|P)(\d+)\b")
# Number of registers of a result, by suffix of the opcode; the text names only the first.
_WIDTHS = {".64": 2, ".128": 4, ".WIDE": 2}
# Instructions that write no register, so that their first operand is read.
_WITHOUT_RESULT = ("ST", "RED", "LDGSTS", "BAR", "BRA", "EXIT", "DEPBAR", "UTC", "SYNCS.EXCH", "UBLKCP", "WARP")

# Instructions whose first result is a predicate.
_PREDICATE_FIRST = ("SHFL", "ATOM")


@dataclass(frozen=True)
class Instruction:
    """One instruction of a warp.

    Attributes:
        opcode: the opcode with its suffixes, such as "LDG.E.128".
        operands: the operands as text.
        guard: the predicate under which it is executed, such as "@!P0"; "" if always.
        reads, writes: names of registers, such as "R12", "UR4" and "P0".
        target: index of the instruction to which a branch within the kernel leads; None for other instructions.
    """

    opcode: str
    operands: str
    guard: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
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


def pending(wait: Instruction) -> int:
    """The number of groups of products or copies that a wait leaves in flight: the last operand of the wait."""
    return int(_NUMBER.findall(wait.operands)[-1], 16)


def loads_in_flight(iteration: Iterable[Instruction]) -> int:
    """The least number of groups of copies that a wait leaves in flight; 0 without such waits.

    The minimum over all waits decides, because no load is in flight after a wait for all copies.

    Args:
        iteration: the instructions that a warp issues per iteration of the main loop; empty if there is no such loop.
    """
    return min((pending(i) for i in iteration if i.stem == "DEPBAR" and "SB" in i.operands), default=0)


def _instruction(guard: str, opcode: str, operands: str, labels: dict[str, int]) -> Instruction:
    # A call of a label in the same kernel never returns, so it is a branch.
    target = _TARGET.search(operands) if opcode.startswith(("BRA", "CALL")) else None
    parts = [] if target else [part.strip() for part in operands.split(",")]
    written = [] if opcode.startswith(_WITHOUT_RESULT) else _results(opcode, parts)
    reads = [name for part in parts[len(written) :] for name in _names(part)] + _names(guard)
    if opcode.startswith("HGMMA"):  # accumulators are no inputs here: WARPGROUP.DEPBAR waits for them
        reads = [] if parts[1].startswith("gdesc") else _range(parts[1], 4)
    elif opcode.startswith("HMMA"):
        reads = _range(parts[1], 4) + _range(parts[2], 2) + _range(parts[3], 4)
    writes = [name for part in written for name in _names(part)]
    if written and not opcode.startswith(("HGMMA", "UTC")):
        writes += _range(written[0], _width(opcode))[1:]
    return Instruction(opcode, operands, guard, tuple(reads), tuple(writes), labels.get(target[1]) if target else None)


def _results(opcode: str, parts: list[str]) -> list[str]:
    """The operands that are written: the first one, and predicates that follow it, as in ISETP and IADD3."""
    if opcode.startswith(("ISETP", "FSETP", "PLOP3", "UISETP", "UPLOP3", "DSETP", "R2P", *_PREDICATE_FIRST)):
        return parts[:2]
    count = 1
    while count < len(parts) and re.fullmatch(r"U?P[0-9T]", parts[count]) and count < 3:
        count += 1
    return parts[:count]


def _names(text: str) -> list[str]:
    return [kind + number for kind, number in _REGISTER.findall(text)]


def _range(operand: str, width: int) -> list[str]:
    """The names of `width` consecutive registers, of which the operand names the first."""
    match = re.match(r"-?(U?R)(\d+)", operand)
    return [f"{match[1]}{int(match[2]) + n}" for n in range(width)] if match else []


def _width(opcode: str) -> int:
    """The number of registers of a result."""
    if opcode.startswith(("HMMA", "LDSM.16.M88.4", "LDSM.16.MT88.4")):
        return 4
    if column := re.search(r"LDTM.*\.x(\d+)", opcode):
        return int(column[1])
    return max((width for suffix, width in _WIDTHS.items() if suffix in opcode), default=1)


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


def loading_loops(program: Sequence[Instruction]) -> list[Loop]:
    """All loops that read global memory."""
    found = [Loop(i.target, n) for n, i in enumerate(program) if i.target is not None and i.target <= n]
    return [loop for loop in found if any(i.stem == "LDG" for i in program[loop.start : loop.stop + 1])]


def work(program: Sequence[Instruction], loop: Loop) -> int:
    """The work in a loop, to compare loops: tensor-core products first, then float32 multiply-adds."""
    inside = program[loop.start : loop.stop + 1]
    return 1000 * sum(i.stem in PRODUCTS for i in inside) + sum(i.stem in ("FFMA", "FFMA2") for i in inside)


def main_loop(program: Sequence[Instruction]) -> Loop | None:
    """The outermost loop with the most work; None if no loop has work."""
    loops = loops_of(program)
    outermost = [loop for loop in loops if not any(loop in other for other in loops)]
    return max(outermost, key=lambda loop: work(program, loop), default=None)


def indices(
    program: Sequence[Instruction],
    main: Loop | None,
    times: Callable[[Loop], int],
    repeated: Sequence[Loop] | None = None,
) -> Iterator[int]:
    """Yields the indices of the instructions that a warp issues in a call with full tiles, loops repeated.

    The conditions of branches are not evaluated. A conditional forward branch counts as taken in two cases only:

    - A warp that does not take it never reaches the main loop (or the last product, if `main` is None).
    - It skips another loop of products. A call with a key mask runs either the loop with mask checks or the loop
      without them.

    This leaves out code for cases that do not occur in such a call.

    Args:
        program: the instructions of the kernel.
        main: its main loop, or None.
        times: returns the number of iterations of a loop.
        repeated: loops to repeat; by default all with arithmetic, which include the main one.
    """
    repeated = loops_of(program) if repeated is None else repeated
    loops = {loop.stop: loop for loop in repeated}
    products = [n for n, i in enumerate(program) if i.stem in PRODUCTS]
    goal = main.start if main else max(products, default=0)
    meets = _reaching(program, goal)
    others = [loop for loop in loops.values() if main and loop != main and loop not in main and main not in loop]
    others = [loop for loop in others if any(loop.start <= n <= loop.stop for n in products)]
    left: dict[Loop, int] = {}
    index, past_main = 0, False
    while index < len(program):
        instruction = program[index]
        yield index
        past_main = past_main or (main is None and index >= goal)
        if instruction.stem == "EXIT" and not instruction.guard:
            return
        following = index + 1
        if instruction.target is not None:
            if index in loops:
                loop = loops[index]
                left[loop] = left.get(loop, times(loop)) - 1
                if left[loop] > 0:
                    following = instruction.target
                else:
                    del left[loop]
                    past_main = past_main or loop == main
            elif instruction.target > index:
                unconditional = not instruction.guard and not re.search(r"\bU?P\d", instruction.operands)
                lost = not past_main and index < goal and following not in meets
                skips = any(index < loop.start and loop.stop < instruction.target for loop in others)
                if unconditional or lost or (skips and (past_main or instruction.target in meets)):
                    following = instruction.target
        index = following


def _reaching(program: Sequence[Instruction], goal: int) -> set[int]:
    """The indices of the instructions from which a path leads to `goal`."""
    before: dict[int, list[int]] = {}
    for index, instruction in enumerate(program):
        unconditional = not instruction.guard and not re.search(r"\bU?P\d", instruction.operands)
        if instruction.target is not None:
            before.setdefault(instruction.target, []).append(index)
        if not (unconditional and (instruction.target is not None or instruction.stem in ("EXIT", "RET"))):
            before.setdefault(index + 1, []).append(index)
    found, ahead = {goal}, [goal]
    while ahead:
        for index in before.get(ahead.pop(), []):
            if index not in found:
                found.add(index)
                ahead.append(index)
    return found
