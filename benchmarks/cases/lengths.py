"""How long sentences are: SentiHood's own lengths, as a histogram kept beside this file."""

import functools
import json
import random
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path

_FILE = Path(__file__).with_name("sentihood_lengths.json")
LONGEST = 128  # where the histogram's sentences are cut


@functools.cache
def histogram() -> dict[int, int]:
    """Rows of SentiHood's training split by length in word pieces, shortest first."""
    counts = json.loads(_FILE.read_text(encoding="utf-8"))["counts"]
    return {int(length): count for length, count in counts.items()}


@functools.cache
def sentence_lengths(count: int, longest: int) -> tuple[int, ...]:
    """Lengths of `count` sentences: quantiles of the histogram, shuffled, the last of them the longest.

    For another `longest` than the histogram's all lengths are stretched in proportion.
    """
    lengths, counts = zip(*histogram().items())
    up_to = list(accumulate(counts))
    middles = [(i + 0.5) / count * up_to[-1] for i in range(count - 1)]
    drawn = [lengths[bisect_right(up_to, middle)] for middle in middles]
    drawn = [max(1, round(n * longest / LONGEST)) for n in drawn]
    random.Random(0).shuffle(drawn)
    return *drawn, longest
