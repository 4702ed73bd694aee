"""Expected macro-F1 by the number of training sentences, from the measurements in benchmarks/results/learning."""

from __future__ import annotations

import math

# Lowest and highest macro-F1 on test in %, by number of training sentences and model. Each bound is the mean over the
# seeds of one data set in learning-curves.jsonl: SentiHood, SemEval-2014, or generated English or German reviews.
# The file has no results of MiniLM for the generated reviews.
CURVES: dict[int, dict[str, tuple[int, int]]] = {
    50: {"TF-IDF": (32, 48), "scratch": (25, 46), "minilm": (37, 46)},
    100: {"TF-IDF": (33, 58), "scratch": (21, 64), "minilm": (45, 53)},
    300: {"TF-IDF": (40, 69), "scratch": (37, 79), "minilm": (55, 66)},
    1000: {"TF-IDF": (50, 68), "scratch": (42, 80), "minilm": (60, 72)},
    5000: {"TF-IDF": (61, 61), "scratch": (78, 78)},
}


def expected_quality(sentences: int) -> str:
    """Returns a line with the range of macro-F1 on test for each model, at the measured size nearest to `sentences`.

    Args:
        sentences: number of training sentences; the nearest size is the one whose ratio to this number is closest to 1.

    Example:
        >>> expected_quality(320)
        'expected macro-F1, as measured with 300 sentences: TF-IDF 40 to 69 %, scratch 37 to 79 %, minilm 55 to 66 %'
    """
    nearest = min(CURVES, key=lambda size: abs(math.log(size / max(1, sentences))))
    shares = {name: f"{low}" if low == high else f"{low} to {high}" for name, (low, high) in CURVES[nearest].items()}
    parts = [f"{name} {share} %" for name, share in shares.items()]
    return f"expected macro-F1, as measured with {nearest:,} sentences: {', '.join(parts)}"
