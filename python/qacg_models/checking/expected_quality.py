"""The quality to expect from the number of training sentences, from the committed learning curves."""

from __future__ import annotations

import math

# Macro-F1 on test in %, lowest and highest mean over the kinds of texts of benchmarks/results/learning: SentiHood,
# SemEval-2014 and, without MiniLM, generated English and German reviews. By sentences: TF-IDF, random weights, MiniLM.
CURVES: dict[int, dict[str, tuple[int, int]]] = {
    50: {"TF-IDF": (32, 48), "scratch": (25, 46), "minilm": (37, 46)},
    100: {"TF-IDF": (33, 58), "scratch": (21, 64), "minilm": (45, 53)},
    300: {"TF-IDF": (40, 69), "scratch": (37, 79), "minilm": (55, 66)},
    1000: {"TF-IDF": (50, 68), "scratch": (42, 80), "minilm": (60, 72)},
    5000: {"TF-IDF": (61, 61), "scratch": (78, 78)},
}


def expected_quality(sentences: int) -> str:
    """One line about the macro-F1 of trainings with about as many sentences.

    Example:
        >>> expected_quality(320)
        'expected macro-F1 with about 300 sentences: TF-IDF 40 to 69 %, scratch 37 to 79 %, minilm 55 to 66 %'
    """
    nearest = min(CURVES, key=lambda size: abs(math.log(size / max(1, sentences))))
    parts = [f"{name} {low} to {high} %" for name, (low, high) in CURVES[nearest].items()]
    return f"expected macro-F1 with about {nearest:,} sentences: {', '.join(parts)}"
