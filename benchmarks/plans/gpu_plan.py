"""What `make bench-gpu` measures, in which order: what the marks ask for first, then the curves."""

from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, PACKED, PADDED, SENTENCES, Case, Shape
from benchmarks.plans.session import HOST, MEMORY, Item
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP, compiled, graphed

DTYPE = "bfloat16"
DROPOUT = 0.1
HEAD_DIMS = (64, 128)
LENGTHS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384)
MARK_SHAPES = (SENTENCES, Shape(8, 12, 512, 64), Shape(2, 12, 4096, 64))
HOST_SHAPE = SENTENCES
MEMORY_SHAPE = Shape(1, 12, 16384, 64)
_TOKENS = 16384  # of a batch of the curves; short rows in batches of 512 at most
_HIDDEN = 768
# Beyond this length eager's stored maps, some 20 bytes a cell, leave no room on the smaller GPUs.
_LONGEST_STORED = 8192


def curve_shape(length: int, head_dim: int) -> Shape:
    """The same tokens and width at every length."""
    return Shape(max(1, min(512, _TOKENS // length)), _HIDDEN // head_dim, length, head_dim)


def items(backends: tuple[str, ...], device: str = "cuda") -> list[Item]:
    """The plan for the backends of this machine, most wanted first."""

    def of(shape: Shape, mode: str, rivals: tuple[str, ...], dropout: float = 0.0, lengths: str = "full") -> Item:
        return Item(Case(shape, DTYPE, mode, dropout, device, lengths), (*rivals, *backends))

    def stored(shape: Shape, *rivals: str) -> tuple[str, ...]:
        return tuple(r for r in rivals if r in (ONE_MAP, COMPOSITION) or shape.length <= _LONGEST_STORED)

    # The host's part of a call, and peak memory.
    replayed = [named(name) for named in (graphed, compiled) for name in backends]
    calls = [
        Item(Case(HOST_SHAPE, DTYPE, mode, 0.0, device), tuple(providers), HOST)
        for providers in (backends, replayed)
        for mode in (FORWARD, FORWARD_BACKWARD)
    ]
    calls.append(Item(Case(MEMORY_SHAPE, DTYPE, FORWARD_BACKWARD, 0.0, device), backends, MEMORY))
    all_rivals = (EAGER, COMPILED, COMPOSITION, ONE_MAP)
    marks = [of(shape, mode, all_rivals) for shape in MARK_SHAPES for mode in (FORWARD, FORWARD_BACKWARD)]
    marks += [
        of(SENTENCES, mode, rivals, lengths=lengths)
        for mode in (FORWARD, FORWARD_BACKWARD)
        for lengths, rivals in ((PADDED, (EAGER,)), (PACKED, ()))
    ]
    curves = [
        of(curve_shape(length, head_dim), mode, stored(curve_shape(length, head_dim), EAGER, ONE_MAP))
        for length in reversed(LENGTHS)
        for head_dim in HEAD_DIMS
        for mode in (FORWARD, BACKWARD, FORWARD_BACKWARD)
    ]
    dropout = [
        of(shape, FORWARD_BACKWARD, stored(shape, EAGER, ONE_MAP), DROPOUT)
        for shape in (curve_shape(length, head_dim) for head_dim in HEAD_DIMS for length in (128, 512, 4096, 16384))
    ]
    dropout += [of(SENTENCES, FORWARD_BACKWARD, (), DROPOUT, lengths) for lengths in (PADDED, PACKED)]
    # Compiling takes longer than all measuring: the composition's other lengths come last.
    composed = [
        of(curve_shape(length, 64), mode, (COMPOSITION,))
        for length in (1024, 16384, 2048, 8192)
        for mode in (FORWARD, FORWARD_BACKWARD)
    ]
    return [*calls, *marks, *curves, *dropout, *composed]
