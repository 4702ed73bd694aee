"""The classes of length in which backends are timed, and which backend a class is best served by."""

import math
from typing import NamedTuple

from qacg_kernels.certificates.family import SHORT, CallKind

# Sentences of up to 128 tokens, packed; then padded rows of about so many keys.
PACKED_SENTENCES = "packed"
LENGTHS = (128, 512, 2048, 8192)
CLASSES = (PACKED_SENTENCES, *map(str, LENGTHS))
FORWARD = "forward"
TRAINING = "forward+backward"
MODES = (FORWARD, TRAINING)
# Times closer than this count as equal and go by the fixed order, so that several GPUs of a kind choose alike.
TIE = 1.05


class Timed(NamedTuple):
    """What one measurement was of."""

    dtype: str
    head_dim: int
    length: str  # one of CLASSES
    mode: str  # one of MODES

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Timed":
        """What `str` wrote.

        Raises:
            ValueError: it is not that.
        """
        parts = text.split("/")
        if len(parts) != len(cls._fields) or not parts[1].isdigit() or parts[2] not in CLASSES or parts[3] not in MODES:
            raise ValueError(f"measurement: got {text!r}, wanted {'/'.join(cls._fields)}")
        return cls(parts[0], int(parts[1]), *parts[2:])

    @property
    def route(self) -> str:
        """The route of the families that a measurement runs; see family.py."""
        if self.length == PACKED_SENTENCES:
            return "packed"
        return "whole_row" if int(self.length) <= SHORT else "tiled"


def timed_as(kind: CallKind) -> Timed | None:
    """Under which measurement a call falls; None for calls of no scope and for traces, whose lengths may vary."""
    if kind.scope is None or kind.longest_row is None:
        return None
    mode = TRAINING if kind.differentiable else FORWARD
    nearest = min(LENGTHS, key=lambda n: abs(math.log(max(kind.longest_row, 1) / n)))
    if kind.packed and nearest == LENGTHS[0]:
        return Timed(*kind.scope, PACKED_SENTENCES, mode)
    return Timed(*kind.scope, str(nearest), mode)


def by_speed(times: dict[str, float], order: tuple[str, ...]) -> list[str]:
    """The names of `order` that were timed, fastest first; a near tie keeps its place in `order`."""
    left = [name for name in order if name in times]
    ranked = []
    while left:
        fastest = min(times[name] for name in left)
        best = next(name for name in left if times[name] <= TIE * fastest)
        ranked.append(best)
        left.remove(best)
    return ranked


def is_slower(times: dict[str, float], name: str, other: str) -> bool:
    """Whether `name` was seen to take longer than `other`, by more than a near tie."""
    return name in times and other in times and times[name] > TIE * times[other]
