"""The way of one warp through a program: its loops, and the instructions in the order in which they are issued."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.static.disassemble import Instruction

PRODUCTS = ("HGMMA", "HMMA", "UTCHMMA")  # of the tensor cores, by their stems


@dataclass(frozen=True)
class Loop:
    """Instructions start to stop, of which the last branches back to the first."""

    start: int
    stop: int

    def __contains__(self, other: "Loop") -> bool:
        return other != self and self.start <= other.start and other.stop <= self.stop


def loops_of(program: Sequence[Instruction]) -> list[Loop]:
    """Every loop but those in which a warp waits: those have no arithmetic, and may lie behind the program's end."""
    exits = [index for index, i in enumerate(program) if i.stem == "EXIT" and not i.guard]
    end = exits[-1] if exits else len(program)
    found: dict[int, int] = {}
    for index, instruction in enumerate(program[:end]):
        if instruction.target is not None and instruction.target <= index:
            found[instruction.target] = index
    loops = [Loop(start, stop) for start, stop in found.items()]
    return [loop for loop in loops if work(program, loop)]


def work(program: Sequence[Instruction], loop: Loop) -> int:
    """Products of tensor cores in a loop, or where there are none its float32 multiply-adds."""
    inside = program[loop.start : loop.stop + 1]
    return 1000 * sum(i.stem in PRODUCTS for i in inside) + sum(i.stem in ("FFMA", "FFMA2") for i in inside)


def main_loop(program: Sequence[Instruction]) -> Loop | None:
    """The outermost loop with the most work."""
    loops = loops_of(program)
    outermost = [loop for loop in loops if not any(loop in other for other in loops)]
    return max(outermost, key=lambda loop: work(program, loop), default=None)


def copying_loop(program: Sequence[Instruction], main: Loop) -> Loop | None:
    """The loop of warps that only copy into shared memory; None where those of the main loop do."""
    if any(i.stem == "LDGSTS" for i in program[main.start : main.stop + 1]):
        return None
    found = [Loop(i.target, n) for n, i in enumerate(program) if i.target is not None and i.target <= n]
    copying = [loop for loop in found if any(i.stem == "LDGSTS" for i in program[loop.start : loop.stop + 1])]
    return min(copying, key=lambda loop: loop.stop - loop.start, default=None)  # others are around it


def indices(program: Sequence[Instruction], main: Loop | None, times: Callable[[Loop], int]) -> Iterator[int]:
    """Indices of the instructions that a warp issues, with the main loop and those inside it repeated.

    At a branch forward the warp goes on behind it, unless that way never meets the main loop, or the last product where
    there is no loop. So code for what does not happen in a full call (no iteration, a row that is not there) is left
    out.

    Args:
        times: how often a loop runs.
    """
    loops = {loop.stop: loop for loop in (*loops_of(program), *([main] if main else []))}
    products = [n for n, i in enumerate(program) if i.stem in PRODUCTS]
    goal = main.start if main else max(products, default=0)
    meets = _reaching(program, goal)
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
                if unconditional or lost:
                    following = instruction.target
            elif past_main and not instruction.guard and not re.search(r"\bU?P\d", instruction.operands):
                return  # back to where warps that only copy wait for other work
        index = following


def _reaching(program: Sequence[Instruction], goal: int) -> set[int]:
    """Indices from which some way leads to `goal`."""
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
