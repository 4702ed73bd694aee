"""What `benchmarks.suite` measures on the CPU, in which order: a run that is cut off has the most wanted already.

Parts, in order:
    aims: what `aims.py` judges, with every rival but the compiled one.
    calls: what a call costs the host at a tiny shape, and peak memory.
    sentences: sequences of real lengths, padded and packed, in every pass, with and without dropout.
    work: how cost grows with batch, heads and threads.
    curves: lengths from 16 to 8,192, head sizes 32, 64 and 128, float32 and bfloat16, every pass. Lengths come in an
        order that leaves an even curve wherever it is cut. torch.compile joins at head size 64, in the passes that a
        model runs: it compiles each case anew, which takes longer than all measuring.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cases.case import (
    BACKWARD,
    DOCUMENTS,
    FORWARD,
    FORWARD_BACKWARD,
    FULL,
    MAIN_DTYPES,
    MAIN_SHAPES,
    MEMORY_SHAPE,
    MODES,
    PACKED,
    PADDED,
    SENTENCES,
    TRAINING_FORWARD,
    Case,
    Shape,
)
from benchmarks.plans.session import HOST, MEMORY, Item
from benchmarks.providers.names import COMPILED, COMPOSITION, EAGER, ONE_MAP

DROPOUT = 0.1
HOST_SHAPE = Shape(1, 1, 16, 64)
MAPS_SHAPE = Shape(1, 12, 2048, 64)  # where those that store maps have room for them too
HEAD_DIMS = (64, 128, 32)
LENGTHS = (128, 512, 2048, 32, 8192, 16, 1024, 64, 4096, 256)
_TOKENS = 2048
_HIDDEN = 768
_MOST_CELLS = 201_326_592  # of one head size's maps: 0.8 GB in float32, of which eager keeps several
_SENTENCES_GROWING = Shape(16, 12, 128, 64)


@dataclass(frozen=True)
class Stage:
    """Items that run with as many threads."""

    threads: int
    items: list[Item]


def curve_shape(length: int, head_dim: int) -> Shape:
    """The same tokens and width, as long as the maps fit; beyond, fewer heads."""
    batch = max(1, min(64, _TOKENS // length))
    heads = min(_HIDDEN // head_dim, max(1, _MOST_CELLS // (batch * length * length)))
    return Shape(batch, heads, length, head_dim)


def _of_lengths(lengths: str, dropout: float, backend: str) -> tuple[str, ...]:
    """Who takes sequences of real lengths: eager has no packed form, the composition no dropout."""
    eager = (EAGER,) if lengths == PADDED else ()
    composition = () if dropout else (COMPOSITION,)
    return (*eager, *composition, backend)


def _aims(backend: str) -> list[Item]:
    rivals = (EAGER, COMPOSITION, ONE_MAP, backend)
    whole = [Item(Case(shape, mode=mode), rivals) for mode in (FORWARD, FORWARD_BACKWARD) for shape in MAIN_SHAPES]
    dropout = [Item(Case(shape, mode=FORWARD_BACKWARD, dropout=DROPOUT), (EAGER, backend)) for shape in MAIN_SHAPES]
    packed = [
        Item(Case(SENTENCES, mode=mode, lengths=lengths), _of_lengths(lengths, 0.0, backend))
        for mode in (FORWARD, FORWARD_BACKWARD)
        for lengths in (PACKED, PADDED)
    ]
    backward = [Item(Case(shape, mode=BACKWARD), rivals) for shape in MAIN_SHAPES]
    half = [Item(Case(shape, "bfloat16", mode), rivals) for mode in (FORWARD, BACKWARD) for shape in MAIN_SHAPES]
    return [*whole, *dropout, *packed, *backward, *half]


def _calls(backend: str) -> list[Item]:
    everyone = (EAGER, COMPILED, COMPOSITION, ONE_MAP, backend)
    passes = (FORWARD, FORWARD_BACKWARD)
    host = [Item(Case(HOST_SHAPE, dtype, mode), everyone, HOST) for dtype in MAIN_DTYPES for mode in passes]
    memory = [Item(Case(MAPS_SHAPE, mode=mode), (EAGER, COMPOSITION, ONE_MAP, backend), MEMORY) for mode in passes]
    memory += [
        Item(Case(MEMORY_SHAPE, dtype, mode), (COMPOSITION, ONE_MAP, backend), MEMORY)
        for dtype in MAIN_DTYPES
        for mode in passes
    ]
    memory += [
        Item(Case(SENTENCES, mode=FORWARD_BACKWARD, lengths=lengths), (backend,), MEMORY)
        for lengths in (FULL, PADDED, PACKED)
    ]
    return [*host, *memory]


def _sentences(backend: str) -> list[Item]:
    return [
        Item(Case(SENTENCES, dtype, mode, dropout, lengths=lengths), _of_lengths(lengths, dropout, backend))
        for dropout in (0.0, DROPOUT)
        for dtype in MAIN_DTYPES
        for mode in MODES
        for lengths in (PACKED, PADDED)
        if not (dropout and mode == FORWARD)
    ]


def _work(backend: str) -> list[Item]:
    batches = [_SENTENCES_GROWING._replace(batch=count) for count in (1, 4, 16, 64)]
    heads = [_SENTENCES_GROWING._replace(heads=count) for count in (1, 4, 24)]
    return [
        Item(Case(shape, dtype, mode), (ONE_MAP, backend))
        for dtype in MAIN_DTYPES
        for mode in (FORWARD, BACKWARD)
        for shape in (*batches, *heads)
    ]


def _fewer_threads(backend: str) -> list[Item]:
    return [
        Item(Case(shape, dtype, mode), (ONE_MAP, backend))
        for dtype in MAIN_DTYPES
        for mode in (FORWARD, BACKWARD)
        for shape in (_SENTENCES_GROWING, *(curve_shape(length, 64) for length in (512, 2048)), DOCUMENTS)
    ]


def _curves(backend: str) -> list[Item]:
    def rivals(head_dim: int, mode: str) -> tuple[str, ...]:
        compiled = (COMPILED,) if head_dim == 64 and mode in (FORWARD, FORWARD_BACKWARD) else ()
        return (EAGER, *compiled, COMPOSITION, ONE_MAP, backend)

    return [
        Item(Case(curve_shape(length, head_dim), dtype, mode), rivals(head_dim, mode))
        for head_dim in HEAD_DIMS
        for dtype in MAIN_DTYPES
        for length in LENGTHS
        for mode in (FORWARD, FORWARD_BACKWARD, BACKWARD, TRAINING_FORWARD)
    ]


_PARTS: dict[str, Callable[[str], list[Item]]] = {
    "aims": _aims,
    "calls": _calls,
    "sentences": _sentences,
    "work": _work,
    "curves": _curves,
}
PARTS = tuple(_PARTS)


def stages(backend: str, threads: int, parts: tuple[str, ...] = PARTS) -> list[Stage]:
    """The plan for a backend.

    Args:
        backend: name of the provider that everything is about.
        threads: of torch; `work` is measured with halves of it too, down to one.
        parts: names of PARTS, in any order.
    """
    found = []
    for part in PARTS:
        if part not in parts:
            continue
        found.append(Stage(threads, _PARTS[part](backend)))
        if part == "work":
            fewer = threads // 2
            while fewer:
                found.append(Stage(fewer, _fewer_threads(backend)))
                fewer //= 2
    return found
