"""Traces one thread through a program with the parameters of a call: the instructions it issues, in order.

CUDA kernels branch on the options of a call (a mask, dropout, a gate), so their path depends on its parameters.
Integers and predicates are computed as on the GPU. Values from memory, and floats that are not computed from integers,
are assumed to be 1.0; then no branch leaves the fast path. A branch that depends on an unknown value is an error.
"""

import re
import struct
from collections.abc import Callable, Sequence

from benchmarks.static.sass import Instruction

_WORD = 0xFFFFFFFF
_ONE = 0x3F800000  # 1.0
_LEADS_AWAY = ("BRA", "EXIT", "CALL", "RET", "BRX", "BRXU", "JMP")
_MOST = 2_000_000  # instructions; a longer path counts as an endless loop
_CONSTANT = re.compile(r"c\[0x0\]\[(?:(U?R\w+)\+?)?(-?0x[0-9a-f]+)?\]")
_LITERAL = re.compile(r"c\[0x2\]\[(0x[0-9a-f]+)\]")
_FLOATS = ("F", "MUFU", "HADD2", "HMUL2", "HFMA2", "LDS", "LDG", "LDSM", "SHFL", "HMMA", "I2F")
_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "EQ": lambda a, b: a == b,
    "NE": lambda a, b: a != b,
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}


# Stands for an instruction whose predicate is false, which only takes an issue slot.
SKIPPED = Instruction("SKIPPED", "")


class UnknownPathError(RuntimeError):
    """The instructions that a thread issues cannot be determined.

    Either a branch does not follow from the parameters of the call, and the message has the branch. Or the thread does
    not reach EXIT within the limit of instructions, and the message has the thread.
    """


def trace_path(program: Sequence[Instruction], constants: bytes, thread: int, literals: bytes = b"") -> list[int]:
    """Returns the indices of the instructions that a thread of the first block issues.

    An instruction whose predicate is false has the index len(program); a branch or exit that is not taken keeps its own
    index.

    Args:
        program: the instructions of the kernel.
        constants: the first bytes of constant bank 0, up to the end of the kernel's parameters; the rest is 0.
        thread: index of the thread in its block.
        literals: constant bank 2, with numbers that the compiler stores there.

    Raises:
        UnknownPathError: a branch depends on an unknown value, or the path does not end.
    """
    state, found, index = _Thread(constants, thread, literals), [], 0
    while len(found) < _MOST:
        instruction = program[index]
        found.append(index)
        index += 1
        does = state.predicate(instruction.guard.removeprefix("@")) if instruction.guard else True
        if instruction.stem in _LEADS_AWAY:
            if instruction.opcode == "BRA.DIV":  # taken by a warp of which not all threads are active
                continue
            condition = re.match(r"(!?U?P\w+),", instruction.operands)
            goes = state.both(does, state.predicate(condition[1])) if condition else does
            if goes and instruction.stem == "EXIT":
                return found
            if goes is None or (goes and instruction.target is None):
                raise UnknownPathError(
                    f"instruction {index - 1}: expected a branch that follows from the call's parameters, got "
                    f"{instruction.guard} {instruction.opcode} {instruction.operands}"
                )
            if goes:
                index = instruction.target
        elif does is False:
            found[-1] = len(program)
        else:
            state.run(instruction, certain=does is True)
    raise UnknownPathError(
        f"thread {thread}: expected EXIT within {_MOST} instructions, got none; the program may have an endless loop"
    )


class _Thread:
    """The registers and predicates of a thread by name. A value that is missing or None is unknown."""

    def __init__(self, constants: bytes, thread: int, literals: bytes) -> None:
        self._constants, self._thread, self._literals = constants, thread, literals
        self._known: dict[str, int | bool | None] = {}

    @staticmethod
    def both(a: bool | None, b: bool | None) -> bool | None:
        return False if a is False or b is False else None if a is None or b is None else True

    def predicate(self, text: str) -> bool | None:
        name = text.lstrip("!")
        value = True if name in ("PT", "UPT") else self._known.get(name)
        return value if value is None or not text.startswith("!") else not value

    def run(self, instruction: Instruction, certain: bool) -> None:
        """Executes an instruction. If it is not certain to be executed, its results are unknown."""
        written = instruction.writes
        values = self._values(instruction) if certain and written else {}
        for name in (*written, *values):
            self._known[name] = values.get(name)

    def _values(self, instruction: Instruction) -> dict[str, int | bool | None]:
        parts = [part.strip() for part in instruction.operands.split(",")]
        stem = instruction.stem
        rule = getattr(self, f"_{stem.lower()}", None) or getattr(self, f"_{stem.removeprefix('U').lower()}", None)
        if rule:
            return rule(instruction, parts)
        return dict.fromkeys(instruction.writes, _ONE) if stem.startswith(_FLOATS) else {}

    # Operands.

    def _word(self, text: str) -> int | None:
        """The value of a 32-bit operand; None if unknown. For -R it is ~R + 1, not truncated, so that sums carry."""
        text = text.removesuffix(".reuse")
        if text.startswith("-") and not re.match(r"-0x", text):
            value = self._word(text[1:])
            return None if value is None else (value ^ _WORD) + 1
        if text.startswith("~"):
            value = self._word(text[1:])
            return None if value is None else value ^ _WORD
        if re.fullmatch(r"-?0x[0-9a-f]+", text):
            return int(text, 16) & _WORD
        if match := _LITERAL.fullmatch(text):
            word = self._literals[int(match[1], 16) :][:4]
            return int.from_bytes(word, "little") if len(word) == 4 else None
        if match := _CONSTANT.match(text):
            base = self._known.get(match[1]) if match[1] else 0
            return None if base is None else self._constant(base + int(match[2] or "0", 16))
        return 0 if text in ("RZ", "URZ", "SRZ") else self._known.get(text)

    def _constant(self, offset: int, size: int = 4) -> int:
        return int.from_bytes(self._constants[offset : offset + size].ljust(size, b"\0"), "little")

    def _pair(self, text: str) -> int | None:
        low, match = self._word(text), re.match(r"(U?R)(\d+)", text)
        high = self._word(f"{match[1]}{int(match[2]) + 1}") if match else 0
        return None if low is None or high is None else low | high << 32

    def _results(self, parts: list[str]) -> tuple[str, list[str], list[str]]:
        """Splits operands into the register of the result, predicates that are written, and operands that are read."""
        count = 1
        while count < len(parts) and re.fullmatch(r"U?P[0-9T]", parts[count]):
            count += 1
        return parts[0], parts[1:count], parts[count:]

    def _wide(self, name: str, value: int) -> dict[str, int]:
        match = re.match(r"(U?R)(\d+)", name)
        return {name: value & _WORD, f"{match[1]}{int(match[2]) + 1}": value >> 32 & _WORD} if match else {}

    # Instructions, by their stems; those of the uniform path are the same.

    def _mov(self, instruction: Instruction, parts: list[str]):
        return {parts[0]: self._word(parts[1])}

    def _ldc(self, instruction: Instruction, parts: list[str]):
        match = _CONSTANT.search(parts[1])
        base = self._known.get(match[1]) if match[1] else 0
        if base is None:
            return {}
        offset = base + int(match[2] or "0", 16)
        if ".64" in instruction.opcode:
            return self._wide(parts[0], self._constant(offset, 8))
        if ".128" in instruction.opcode:
            names = instruction.writes
            return {name: self._constant(offset + 4 * n) for n, name in enumerate(names)}
        return {parts[0]: self._constant(offset, 1 if ".U8" in instruction.opcode else 4)}

    _ldcu = _uldc = _ldc

    def _s2r(self, instruction: Instruction, parts: list[str]):
        return {parts[0]: self._thread if parts[1] == "SR_TID.X" else 0}

    _s2ur = _s2r

    def _p2r(self, instruction: Instruction, parts: list[str]):
        mask, rest = self._word(parts[3]), self._word(parts[2])
        bits = {n: self._known.get(f"P{n}") for n in range(7) if mask >> n & 1}
        if rest is None or None in bits.values():
            return {}
        return {parts[0]: rest & ~mask | sum(bit << n for n, bit in bits.items())}

    def _cs2r(self, instruction: Instruction, parts: list[str]):
        return self._wide(parts[0], 0) if parts[1] == "SRZ" else {}

    def _r2ur(self, instruction: Instruction, parts: list[str]):
        return {parts[0]: self._word(parts[-1])}

    def _sum(self, instruction: Instruction, parts: list[str], multiplied: bool):
        result, carries, operands = self._results(parts)
        count = 3 if multiplied or len(operands) > 2 else 2
        words = [self._word(operand) for operand in operands[:count]]
        if None in words:
            return {}
        extended = ".X" in instruction.opcode
        if extended:  # negating a high word inverts its bits; the carry adds the 1
            words = [
                self._word("~" + text[1:]) if text.startswith("-") and not text.startswith("-0x") else word
                for text, word in zip(operands, words)
            ]
        total = words[0] * words[1] + words[2] if multiplied else sum(words)
        for text in operands[count:] if extended else ():
            carry = self.predicate(text)
            if carry is None:
                return {}
            total += carry
        found = {result: total & _WORD}
        for n, name in enumerate(carries):
            found[name] = bool(total >> 32 > n)
        return found

    def _iadd3(self, instruction: Instruction, parts: list[str]):
        return {} if ".64" in instruction.opcode else self._sum(instruction, parts, multiplied=False)

    _iadd = _viadd = _iadd3

    def _imad(self, instruction: Instruction, parts: list[str]):
        opcode = instruction.opcode
        if ".WIDE" not in opcode and ".HI" not in opcode:
            return self._sum(instruction, parts, multiplied=True)
        result, _, operands = self._results(parts)
        a, b, c = self._word(operands[0]), self._word(operands[1]), self._pair(operands[2].removesuffix(".reuse"))
        if None in (a, b, c):
            return {}
        if ".U32" not in opcode:
            a, b = _signed(a), _signed(b)
        total = a * b + c
        return {result: total >> 32 & _WORD} if ".HI" in opcode else self._wide(result, total)

    def _lea(self, instruction: Instruction, parts: list[str]):
        result, carries, operands = self._results(parts)
        high = ".HI" in instruction.opcode
        a, b = self._word(operands[0]), self._word(operands[1])
        if a is None or b is None:
            return {}
        if high:
            c = (-(a >> 31) & _WORD) if ".SX32" in instruction.opcode else self._word(operands[2])
            if c is None:
                return {}
            a |= c << 32
        extended = ".X" in instruction.opcode
        shift = int(operands[-2 if extended else -1], 16)
        total = ((a << shift) >> 32 if high else a << shift) & _WORD
        total += b
        if extended:
            carry = self.predicate(operands[-1])
            if carry is None:
                return {}
            total += carry
        return {result: total & _WORD} | {name: total > _WORD for name in carries}

    def _shf(self, instruction: Instruction, parts: list[str]):
        low, shift, high = (self._word(part) for part in parts[1:4])
        opcode = instruction.opcode
        if ".U64" not in opcode and ".S64" not in opcode:  # a shift of one word
            if ".R" in opcode and ".HI" in opcode:
                low = 0
            elif ".L" in opcode:
                high = 0
        if None in (low, shift, high):
            return {}
        value = low | high << 32
        if "SHF.L" in opcode:
            value <<= min(shift, 64)
            return {parts[0]: (value >> 32 if ".HI" in opcode else value) & _WORD}
        signed = ".S32" in opcode or ".S64" in opcode
        value = (value - (1 << 64) if signed and value >> 63 else value) >> min(shift, 63)
        return {parts[0]: (value >> 32 if ".HI" in opcode else value) & _WORD}

    def _lop3(self, instruction: Instruction, parts: list[str]):
        predicates = [parts[0]] if re.fullmatch(r"U?P[0-9T]", parts[0]) else []
        result, operands = parts[len(predicates)], parts[len(predicates) + 1 :]
        words, table = [self._word(part) for part in operands[:3]], int(operands[3], 16)
        needed = [word for n, word in enumerate(words) if _matters(table, n)]
        if None in needed:
            return {}
        a, b, c = (word or 0 for word in words)
        value = 0
        for row in range(8):
            if table >> row & 1:
                value |= (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        value &= _WORD
        return {result: value} | {name: value != 0 for name in predicates}

    def _prmt(self, instruction: Instruction, parts: list[str]):
        a, selector, b = (self._word(part) for part in parts[1:4])
        if None in (a, selector, b):
            return {}
        pool, value = (b << 32 | a).to_bytes(8, "little"), 0
        for n in range(4):
            which = selector >> 4 * n & 15
            byte = pool[which & 7]
            value |= ((0xFF if byte >> 7 else 0) if which & 8 else byte) << 8 * n  # bit 3: repeat the sign
        return {parts[0]: value}

    def _plop3(self, instruction: Instruction, parts: list[str]):
        inputs, table = [self.predicate(part) for part in parts[2:5]], int(parts[5], 16)
        if None in [value for n, value in enumerate(inputs) if _matters(table, n)]:
            return {}
        a, b, c = (bool(value) for value in inputs)
        value = bool(table >> (4 * a + 2 * b + c) & 1)
        return {parts[0]: value, parts[1]: not value}

    def _isetp(self, instruction: Instruction, parts: list[str]):
        _, comparison, *options = instruction.opcode.split(".")
        a, b = (self._word(part) for part in parts[2:4])
        other = self.predicate(parts[4])
        if a is None or b is None:
            value = None
        else:
            a, b = a & _WORD, b & _WORD
            if "U32" not in options:
                a, b = _signed(a), _signed(b)
            value = _COMPARISONS[comparison](a, b)
            if "EX" in options and a == b:  # the low words decide
                value = self.predicate(parts[5])
        return {parts[0]: self._joined(options, value, other)}

    def _joined(self, options: list[str], value: bool | None, other: bool | None) -> bool | None:
        if "AND" in options:
            return self.both(value, other)
        if "OR" in options and None not in (value, other):
            return value or other
        return True if "OR" in options and (value or other) else None

    def _fsetp(self, instruction: Instruction, parts: list[str]):
        _, comparison, *options = instruction.opcode.split(".")
        a, b = (self._float(part) for part in parts[2:4])
        value = None if None in (a, b) else _COMPARISONS[comparison.removesuffix("U")](a, b)
        return {parts[0]: self._joined(options, value, self.predicate(parts[4]))}

    def _float(self, text: str) -> float | None:
        text = text.removesuffix(".reuse")
        if text.startswith("|") or text.startswith("-|"):
            value = self._float(text.strip("-|"))
            return None if value is None else abs(value) * (-1 if text.startswith("-") else 1)
        if re.fullmatch(r"[-+]?(\d.*|INF|QNAN)", text):
            return float(text.replace("QNAN", "NAN"))
        if re.match(r"-U?R", text):
            value = self._float(text[1:])
            return None if value is None else -value
        value = self._word(text)
        return None if value is None else _number(value)

    def _hfma2(self, instruction: Instruction, parts: list[str]):
        """Computes 0 x 0 + two immediate halves, by which nvcc sets a register to an integer; assumes 1.0 otherwise."""
        if [part.lstrip("-") for part in parts[1:3]] != ["RZ", "RZ"] or len(parts) != 5:
            return dict.fromkeys(instruction.writes, _ONE)
        high, low = (self._float(part) for part in parts[3:])
        return {} if None in (high, low) else {parts[0]: int.from_bytes(struct.pack("<ee", low, high), "little")}

    def _shfl(self, instruction: Instruction, parts: list[str]):
        return {parts[1]: _ONE}

    def _fchk(self, instruction: Instruction, parts: list[str]):
        return {parts[0]: False}  # ordinary numbers

    def _sel(self, instruction: Instruction, parts: list[str]):
        chosen = self.predicate(parts[3])
        return {} if chosen is None else {parts[0]: self._word(parts[1 if chosen else 2])}

    def _viaddmnmx(self, instruction: Instruction, parts: list[str]):
        total = self._sum(instruction, [parts[0], *parts[1:3]], multiplied=False).get(parts[0])
        return self._least(instruction, parts[0], total, self._word(parts[3]), parts[4])

    def _imnmx(self, instruction: Instruction, parts: list[str]):
        return self._least(instruction, parts[0], self._word(parts[1]), self._word(parts[2]), parts[3])

    _vimnmx = _imnmx

    def _least(self, instruction: Instruction, result: str, a: int | None, b: int | None, least: str):
        if a is None or b is None or (takes_least := self.predicate(least)) is None:
            return {}
        order = (lambda x: x & _WORD) if ".U32" in instruction.opcode else _signed
        return {result: (min if takes_least else max)(a, b, key=order) & _WORD}

    def _iabs(self, instruction: Instruction, parts: list[str]):
        value = self._word(parts[1])
        return {} if value is None else {parts[0]: abs(_signed(value))}

    # Integer division uses a float's reciprocal.

    def _i2f(self, instruction: Instruction, parts: list[str]):
        value = self._word(parts[1])
        if value is None:
            return {}
        return {parts[0]: _bits(float(value if ".U32" in instruction.opcode else _signed(value)))}

    def _mufu(self, instruction: Instruction, parts: list[str]):
        value = self._word(parts[1])
        if ".RCP" not in instruction.opcode or value is None or not _number(value):
            return {parts[0]: _ONE}
        return {parts[0]: _bits(1.0 / _number(value))}

    def _f2i(self, instruction: Instruction, parts: list[str]):
        value = self._word(parts[1])
        return {} if value is None else {parts[0]: int(_number(value)) & _WORD}


def _signed(word: int) -> int:
    word &= _WORD
    return word - (1 << 32) if word >> 31 else word


def _matters(table: int, operand: int) -> bool:
    """Whether a truth table of three inputs depends on the input with this index."""
    bit = 4 >> operand
    return any((table >> row & 1) != (table >> (row ^ bit) & 1) for row in range(8))


def _bits(number: float) -> int:
    return struct.unpack("<I", struct.pack("<f", number))[0]


def _number(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits & _WORD))[0]
