"""The cases of the suite, of the GPU benchmark and of the corner targets, in the order of measurement.

The most important cases come first, so that a run that is interrupted has them.
"""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.cases import (
    BACKWARD,
    DOCUMENTS,
    DTYPES,
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
    VECTORS,
    Case,
    Shape,
)
from benchmarks.implementations.registry import (
    COMPILED,
    COMPOSITION,
    CUDNN,
    EAGER,
    FLASH_ATTENTION,
    FLEX_ATTENTION,
    ONE_MAP,
    compiled,
    graphed,
)
from benchmarks.measure.session import MEMORY, OVERHEAD, Item

DROPOUT = 0.1
_HIDDEN = 768

# The suite on the CPU.

OVERHEAD_SHAPE = Shape(1, 1, 16, 64)
MATERIALISED_SHAPE = Shape(1, 12, 2048, 64)  # small enough for implementations that materialise the maps
SUITE_HEAD_DIMS = (64, 128, 32)
SUITE_LENGTHS = (
    128,
    512,
    2048,
    32,
    8192,
    16,
    1024,
    64,
    4096,
    256,
)  # the first lengths, however many, are spread evenly on a logarithmic axis
_SUITE_TOKENS = 2048
_MOST_ENTRIES = 201_326_592  # entries of one map, 0.8 GB in float32; eager keeps several maps
_GROWING = Shape(16, 12, 128, 64)


@dataclass(frozen=True)
class Stage:
    """Items that run with the same number of threads."""

    threads: int
    items: list[Item]


def suite_shape(length: int, head_dim: int) -> Shape:
    """Returns the shape of the suite for a length: 2048 // length sequences, at least 1 and at most 64.

    heads x head_dim is 768. If one map, (B, H, L, L), would then have more than _MOST_ENTRIES entries, there are fewer
    heads, but at least one.
    """
    batch = max(1, min(64, _SUITE_TOKENS // length))
    heads = min(_HIDDEN // head_dim, max(1, _MOST_ENTRIES // (batch * length * length)))
    return Shape(batch, heads, length, head_dim)


def _with_lengths(lengths: str, dropout: float, backend: str) -> tuple[str, ...]:
    """The implementations to measure: `backend`, EAGER if `lengths` is PADDED, and COMPOSITION without dropout."""
    eager = (EAGER,) if lengths == PADDED else ()
    composition = () if dropout else (COMPOSITION,)
    return (*eager, *composition, backend)


def _target_items(backend: str) -> list[Item]:
    every = (EAGER, COMPOSITION, ONE_MAP, backend)
    passes = (FORWARD, FORWARD_BACKWARD)
    full = [Item(Case(shape, mode=mode), every) for mode in passes for shape in MAIN_SHAPES]
    dropout = [Item(Case(shape, mode=FORWARD_BACKWARD, dropout=DROPOUT), (EAGER, backend)) for shape in MAIN_SHAPES]
    packed = [
        Item(Case(SENTENCES, mode=mode, lengths=lengths), _with_lengths(lengths, 0.0, backend))
        for mode in passes
        for lengths in (PACKED, PADDED)
    ]
    backward = [Item(Case(shape, mode=BACKWARD), every) for shape in MAIN_SHAPES]
    half = [Item(Case(shape, "bfloat16", mode), every) for mode in (FORWARD, BACKWARD) for shape in MAIN_SHAPES]
    return [*full, *dropout, *packed, *backward, *half]


def _overhead_and_memory(backend: str) -> list[Item]:
    every = (EAGER, COMPILED, COMPOSITION, ONE_MAP, backend)
    passes = (FORWARD, FORWARD_BACKWARD)
    overhead = [Item(Case(OVERHEAD_SHAPE, dtype, mode), every, OVERHEAD) for dtype in MAIN_DTYPES for mode in passes]
    memory = [
        Item(Case(MATERIALISED_SHAPE, mode=mode), (EAGER, COMPOSITION, ONE_MAP, backend), MEMORY) for mode in passes
    ]
    memory += [
        Item(Case(MEMORY_SHAPE, dtype, mode), (COMPOSITION, ONE_MAP, backend), MEMORY)
        for dtype in MAIN_DTYPES
        for mode in passes
    ]
    memory += [
        Item(Case(SENTENCES, mode=FORWARD_BACKWARD, lengths=lengths), (backend,), MEMORY)
        for lengths in (FULL, PADDED, PACKED)
    ]
    return [*overhead, *memory]


def _sentences(backend: str) -> list[Item]:
    return [
        Item(Case(SENTENCES, dtype, mode, dropout, lengths=lengths), _with_lengths(lengths, dropout, backend))
        for dropout in (0.0, DROPOUT)
        for dtype in MAIN_DTYPES
        for mode in MODES
        for lengths in (PACKED, PADDED)
        if not (dropout and mode == FORWARD)
    ]


def _growth(backend: str) -> list[Item]:
    batches = [_GROWING._replace(batch=count) for count in (1, 4, 16, 64)]
    heads = [_GROWING._replace(heads=count) for count in (1, 4, 24)]
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
        for shape in (_GROWING, *(suite_shape(length, 64) for length in (512, 2048)), DOCUMENTS)
    ]


def _curves(backend: str) -> list[Item]:
    def implementations(head_dim: int, mode: str) -> tuple[str, ...]:
        # torch.compile is measured in a part of the cases: compiling for each case takes longer than all measurements.
        by_compiler = (COMPILED,) if head_dim == 64 and mode in (FORWARD, FORWARD_BACKWARD) else ()
        return (EAGER, *by_compiler, COMPOSITION, ONE_MAP, backend)

    return [
        Item(Case(suite_shape(length, head_dim), dtype, mode), implementations(head_dim, mode))
        for head_dim in SUITE_HEAD_DIMS
        for dtype in MAIN_DTYPES
        for length in SUITE_LENGTHS
        for mode in (FORWARD, FORWARD_BACKWARD, BACKWARD, TRAINING_FORWARD)
    ]


_PARTS: dict[str, Callable[[str], list[Item]]] = {
    "targets": _target_items,  # the cases of the performance targets
    "overhead": _overhead_and_memory,
    "sentences": _sentences,  # padded and packed, in every pass, with and without dropout
    "growth": _growth,  # with batch, heads and threads
    "curves": _curves,  # over length and head size
}
PARTS = tuple(_PARTS)


def suite_stages(backend: str, threads: int, parts: tuple[str, ...] = PARTS) -> list[Stage]:
    """Returns the plan of the suite.

    Args:
        backend: the implementation to measure with the baselines.
        threads: number of torch's threads; the part `growth` also has cases with a half, a quarter, ... of them.
        parts: names in PARTS; the order is always that of PARTS.
    """
    found = []
    for part in PARTS:
        if part not in parts:
            continue
        found.append(Stage(threads, _PARTS[part](backend)))
        if part == "growth":
            fewer = threads // 2
            while fewer:
                found.append(Stage(fewer, _fewer_threads(backend)))
                fewer //= 2
    return found


# The GPU benchmark.

GPU_DTYPE = "bfloat16"
GPU_HEAD_DIMS = (64, 128)
GPU_LENGTHS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384)
GPU_SHAPES = (SENTENCES, Shape(8, 12, 512, 64), Shape(2, 12, 4096, 64))
GPU_OVERHEAD_SHAPE = SENTENCES
GPU_MEMORY_SHAPE = Shape(1, 12, 16384, 64)
GATE_VECTOR_PASSES = (FORWARD, BACKWARD, FORWARD_BACKWARD)
_LIBRARIES = (EAGER, ONE_MAP, CUDNN, FLASH_ATTENTION)
_COMPILERS = (EAGER, COMPILED, COMPOSITION, ONE_MAP, FLEX_ATTENTION)  # EAGER and ONE_MAP to compare with
_CURVE_LENGTHS = (16384, 512, 2048, 32, 8192, 128, 1024, 4096)  # the first ones are spread; 4,096 is measured before
_GPU_TOKENS = 16384  # tokens of a batch of the curves, in at most 512 sequences
_LONGEST_MATERIALISED = 8192  # eager takes about 20 bytes per attention entry; longer sequences do not fit small GPUs


def gpu_shape(length: int, head_dim: int) -> Shape:
    """Returns the shape of the GPU benchmark for a length: 16384 // length sequences, at least 1 and at most 512.

    heads x head_dim is 768.
    """
    return Shape(max(1, min(512, _GPU_TOKENS // length)), _HIDDEN // head_dim, length, head_dim)


def gpu_case(shape: Shape, mode: str, **options: object) -> Case:
    """A case of the GPU benchmark."""
    return Case(shape, GPU_DTYPE, mode, device="cuda", **options)


def gpu_items(backends: tuple[str, ...]) -> list[Item]:
    """Returns the plan of the GPU benchmark for the available backends, with the most important cases first.

    The first items compare the backends with every baseline, in short and long cases.
    """

    def item(shape: Shape, mode: str, baselines: tuple[str, ...], **options: object) -> Item:
        return Item(gpu_case(shape, mode, **options), (*baselines, *backends))

    def eager_if_short(shape: Shape) -> tuple[str, ...]:
        return (EAGER, ONE_MAP) if shape.length <= _LONGEST_MATERIALISED else (ONE_MAP,)

    def comparisons(shapes: tuple[Shape, ...], baselines: tuple[str, ...]) -> list[Item]:
        return [item(shape, mode, baselines) for shape in shapes for mode in (FORWARD, BACKWARD)]

    passes = (FORWARD, FORWARD_BACKWARD)
    narrow, wide = (SENTENCES, gpu_shape(4096, 64)), (gpu_shape(4096, 128),)
    replayed = [named(name) for named in (graphed, compiled) for name in backends]
    overhead, overhead_replayed = (
        [Item(gpu_case(GPU_OVERHEAD_SHAPE, mode), tuple(names), OVERHEAD) for mode in passes]
        for names in (backends, replayed)
    )
    memory = [Item(gpu_case(GPU_MEMORY_SHAPE, FORWARD_BACKWARD), backends, MEMORY)]
    targets = [item(shape, mode, (EAGER, COMPILED, COMPOSITION, ONE_MAP)) for shape in GPU_SHAPES for mode in passes]
    sentences = [
        item(SENTENCES, mode, names, lengths=lengths)
        for mode in passes
        for lengths, names in ((PADDED, (EAGER,)), (PACKED, ()))
    ]
    vectors = [item(shape, mode, (), gate=VECTORS) for shape in GPU_SHAPES for mode in GATE_VECTOR_PASSES]
    shapes = [gpu_shape(length, head_dim) for length in _CURVE_LENGTHS for head_dim in GPU_HEAD_DIMS]
    curves = [
        item(shape, mode, eager_if_short(shape))
        for modes in ((FORWARD, BACKWARD), (FORWARD_BACKWARD,))
        for shape in shapes
        for mode in modes
    ]
    dropout = [
        item(shape, FORWARD_BACKWARD, eager_if_short(shape), dropout=DROPOUT)
        for shape in (gpu_shape(length, head_dim) for head_dim in GPU_HEAD_DIMS for length in (128, 512, 4096, 16384))
    ]
    dropout += [item(SENTENCES, FORWARD_BACKWARD, (), dropout=DROPOUT, lengths=lengths) for lengths in (PADDED, PACKED)]
    # Compiling takes longer than all measurements, so the other items that use torch.compile come last.
    composed = [
        item(gpu_shape(length, 64), mode, (COMPOSITION,)) for length in (1024, 16384, 2048, 8192) for mode in passes
    ]
    first = [*comparisons((*narrow, *wide), _LIBRARIES), *overhead, *memory, *comparisons(narrow, _COMPILERS)]
    long_tail = [*sentences, *vectors, *curves, *dropout]
    return [*first, *long_tail, *targets, *comparisons(wide, _COMPILERS), *overhead_replayed, *composed]


# Corner cases: decoding steps, tiny sequences and single keys.

# (batch, heads, queries, keys); the head size is 64.
_CORNER_SIZES = (
    (1, 8, 1, 32768),
    (1, 12, 1, 4096),
    (8, 12, 1, 2048),
    (16, 12, 1, 512),
    (64, 12, 1, 128),
    (1, 12, 1, 128),
    (64, 12, 1, 8),
    (2500, 4, 1, 1),
    (8, 12, 4, 2048),
    (16, 12, 4, 512),
    (64, 12, 4, 16),
    (8, 12, 8, 2048),
    (64, 12, 8, 8),
    (64, 12, 8, 1),
)
_ONE_KEY = (16, 12, 128, 1)


def _corner(size: tuple[int, int, int, int], dtype: str, mode: str) -> Case:
    batch, heads, queries, keys = size
    return Case(Shape(batch, heads, queries, 64), dtype, mode, keys=keys)


CORNER_CASES = tuple(
    [_corner(size, dtype, mode) for size in _CORNER_SIZES for dtype in DTYPES for mode in (FORWARD, FORWARD_BACKWARD)]
    + [_corner(_ONE_KEY, "float32", mode) for mode in (FORWARD, FORWARD_BACKWARD)]
)
