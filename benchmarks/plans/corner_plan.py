"""What `benchmarks.corners` measures: decoding steps, tiny rows and attention to a single key, beside eager.

86 cases: 1 to 8 queries, 1 to 32,768 keys, float32, bfloat16 and float16, inference and a training step; and one key
for 128 queries in float32.
"""

from benchmarks.cases.case import DTYPES, FORWARD, FORWARD_BACKWARD, Case, Shape
from benchmarks.plans.session import Item
from benchmarks.providers.names import EAGER

# (batch, heads, queries, keys); the head size is 64.
SIZES = (
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
ONE_KEY = (16, 12, 128, 1)


def _case(size: tuple[int, int, int, int], dtype: str, mode: str) -> Case:
    batch, heads, queries, keys = size
    return Case(Shape(batch, heads, queries, 64), dtype, mode, keys=keys)


CASES = tuple(
    [_case(size, dtype, mode) for size in SIZES for dtype in DTYPES for mode in (FORWARD, FORWARD_BACKWARD)]
    + [_case(ONE_KEY, "float32", mode) for mode in (FORWARD, FORWARD_BACKWARD)]
)


def items(backend: str) -> list[Item]:
    """Every case, with eager and the backend side by side."""
    return [Item(case, (EAGER, backend)) for case in CASES]
