"""The cases of the GPU benchmark and of the corner targets, in the order of measurement.

The most important cases come first, so that a run that is interrupted has them.
"""

from benchmarks.cases import (
    BACKWARD,
    DTYPES,
    FORWARD,
    FORWARD_BACKWARD,
    GATES,
    PACKED,
    PADDED,
    SENTENCES,
    VECTORS,
    Case,
    Shape,
)
from benchmarks.implementations.registry import (
    COMPILED,
    COMPOSITION,
    EAGER,
    ONE_MAP,
    SDPA,
    compiled,
    graphed,
)
from benchmarks.measure.session import MEMORY, OVERHEAD, TIME, Item

DROPOUT = 0.1
_HIDDEN = 768

# The GPU benchmark.

GPU_DTYPE = "bfloat16"
GPU_HEAD_DIMS = (64, 128)
GPU_LENGTHS = (32, 128, 512, 1024, 2048, 4096, 8192, 16384)
GPU_SHAPES = (SENTENCES, Shape(8, 12, 512, 64), Shape(2, 12, 4096, 64))
GPU_OVERHEAD_SHAPE = SENTENCES
SHORT_SHAPES = tuple(SENTENCES._replace(length=length) for length in (32, 128, 512))
GPU_MEMORY_SHAPE = Shape(1, 12, 16384, 64)
GATE_VECTOR_PASSES = (FORWARD, BACKWARD, FORWARD_BACKWARD)
_LIBRARIES = (EAGER, ONE_MAP)
_COMPILERS = (EAGER, COMPILED, COMPOSITION, ONE_MAP)  # EAGER and ONE_MAP to compare with
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

    The first items are host overhead and device time of short calls. The next ones compare the backends with every
    baseline, in short and long cases.
    """

    def item(shape: Shape, mode: str, baselines: tuple[str, ...], **options: object) -> Item:
        return Item(gpu_case(shape, mode, **options), (*baselines, *backends))

    def eager_if_short(shape: Shape) -> tuple[str, ...]:
        return (EAGER, ONE_MAP) if shape.length <= _LONGEST_MATERIALISED else (ONE_MAP,)

    def comparisons(shapes: tuple[Shape, ...], baselines: tuple[str, ...]) -> list[Item]:
        return [item(shape, mode, baselines) for shape in shapes for mode in (FORWARD, BACKWARD)]

    passes = (FORWARD, FORWARD_BACKWARD)
    narrow, wide = (SENTENCES, gpu_shape(4096, 64)), (gpu_shape(4096, 128),)
    short = [
        Item(gpu_case(shape, mode, gate=gate, dropout=dropout), (softmax, *backends), kind)
        for shape in SHORT_SHAPES
        for gate in GATES
        for mode, dropout in ((FORWARD, 0.0), (FORWARD_BACKWARD, 0.0), (FORWARD_BACKWARD, DROPOUT))
        for kind, softmax in ((OVERHEAD, SDPA), (TIME, ONE_MAP))
    ]
    replayed = tuple(named(name) for named in (graphed, compiled) for name in backends)
    overhead_replayed = [Item(gpu_case(GPU_OVERHEAD_SHAPE, mode), replayed, OVERHEAD) for mode in passes]
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
    # As in training; without dropout the same shapes are among `curves`, `sentences` and `vectors`.
    dropout = [item(SENTENCES, FORWARD_BACKWARD, (), dropout=DROPOUT, lengths=lengths) for lengths in (PADDED, PACKED)]
    dropout += [item(shape, FORWARD_BACKWARD, (), dropout=DROPOUT, gate=VECTORS) for shape in GPU_SHAPES]
    dropout += [
        item(shape, FORWARD_BACKWARD, eager_if_short(shape), dropout=DROPOUT)
        for shape in (
            gpu_shape(length, head_dim) for length in (32, 128, 512, 4096, 16384) for head_dim in GPU_HEAD_DIMS
        )
    ]
    # Compiling takes longer than all measurements, so the other items that use torch.compile come last.
    composed = [
        item(gpu_shape(length, 64), mode, (COMPOSITION,)) for length in (1024, 16384, 2048, 8192) for mode in passes
    ]
    first = [*short, *comparisons((*narrow, *wide), _LIBRARIES), *memory, *comparisons(narrow, _COMPILERS)]
    long_tail = [*sentences, *vectors, *dropout, *curves]
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
