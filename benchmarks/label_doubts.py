"""Measures how well `qacg check` finds wrong labels: `python -m benchmarks.label_doubts --data DIR`.

Replaces the labels of randomly chosen training examples of SentiHood by wrong labels, and finds the labels that the
TF-IDF baseline doubts. Precision is the share of the doubted labels that were replaced; recall is the share of the
replaced labels that are doubted. The published labels have errors too, so the true precision may be higher.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.data import DataOptions, Example, load_data
from qacg_models.metrics.doubts import baseline_doubts
from qacg_models.utils.cells import markdown_table

from benchmarks.command import exit_status

FIRST = (100, 300, 750)


def flip(rows: Sequence[Example], share: float, labels: int, seed: int) -> tuple[list[Example], set[int]]:
    """Replaces a share of the labels at random; returns all rows, and the indices of the changed rows.

    Args:
        rows: labelled examples.
        share: number in (0, 1]; at least one label is replaced.
        labels: number of classes, at least 2.
        seed: seed of the choice.

    Raises:
        ValueError: `share` is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share: expected a number above 0 and at most 1, got {share}")
    draw = random.Random(seed)
    flipped = set(draw.sample(range(len(rows)), max(1, round(share * len(rows)))))
    noisy = list(rows)
    for place in sorted(flipped):
        other = draw.choice([label for label in range(labels) if label != rows[place].label])
        noisy[place] = replace(rows[place], label=other)
    return noisy, flipped


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a Markdown table with a line per seed; returns the exit status, 1 for unusable data."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_doubts", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with SentiHood")
    parser.add_argument("--share", type=float, default=0.05, help="share of replaced labels (default: %(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of the choice (default: 0 1 2)")
    arguments = parser.parse_args(argv)
    if not 0 < arguments.share <= 1:
        parser.error(f"--share: expected a number above 0 and at most 1, got {arguments.share}")
    return exit_status(lambda: _measure(arguments))


def _measure(arguments: argparse.Namespace) -> int:
    dataset = load_data(arguments.data, ("train",), DataOptions(format="sentihood-tsv"))
    rows = list(dataset.splits["train"])
    first = [f"precision of the first {count}" for count in FIRST]
    print(markdown_table(["seed", "doubts", "precision", "recall", *first, "seconds"], [], texts=0))
    for seed in arguments.seeds:
        noisy, flipped = flip(rows, arguments.share, len(dataset.task.labels), seed)
        begun = time.process_time()
        found = [doubt.row for doubt in baseline_doubts(noisy, dataset.task)]
        seconds = time.process_time() - begun
        hits = [row in flipped for row in found]
        shares = [_share(hits), sum(hits) / len(flipped), *(_share(hits[:count]) for count in FIRST)]
        cells = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {seed} | {len(found)} | {cells} | {seconds:.1f} |", flush=True)
    return 0


def _share(hits: list[bool]) -> float:
    return statistics.fmean(hits) if hits else math.nan


if __name__ == "__main__":
    raise SystemExit(main())
