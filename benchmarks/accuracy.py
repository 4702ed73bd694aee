"""Compares ways to ask about an aspect: `python -m benchmarks.accuracy --data DIR --out DIR`.

Trains each of WAYS, with the defaults of `qacg train` otherwise, on parts of SentiHood and SemEval-2014 and on all of
SentiHood, the smallest sizes first, fits the TF-IDF baseline on the same data, and times predictions. Adds a record for
each training to the file FILE in `--out`. The same command resumes an interrupted run, also in the middle of a
training. `--table` only prints the tables of the stored records. Times of different ways can be compared if they are of
one run on a machine without other work, such as `--texts sentihood --sizes 1000 --seeds 0`.
"""

import argparse
import json
import math
import random
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from qacg_models.sentiment.dataset import Dataset, load_data, split_dev, target_names
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.predictor import Predictor
from qacg_models.sentiment.record import TrainingRecord
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.utils.machine import load_libraries
from qacg_models.utils.text import markdown_table, mean_and_deviation

from benchmarks.command import RESUMES, exit_status

FILE = "learning-curves.jsonl"
FORMATS = {"sentihood": "sentihood-tsv", "semeval2014": "semeval-csv"}  # data format by data set
# The training options of each way. All but `scratch` start from MiniLM, whose last layer is layer 5.
WAYS: dict[str, dict[str, Any]] = {
    "scratch": {"from_checkpoint": "scratch", "model": "qacg-bert"},
    "pairs": {"model": "bert"},
    "quasi-pairs": {"model": "qacg-bert", "context_standalone": False, "context_from_layer": 0},
    "quasi-shared": {"model": "qacg-bert", "context_standalone": True, "context_from_layer": 5},
    "quasi-shared-4": {"model": "qacg-bert", "context_standalone": True, "context_from_layer": 4},
    "aspect-bert": {"model": "aspect-bert"},
}
WHOLE = 0  # the size of a cell that has all published sentences in the published splits
CELLS = [*((name, size) for size in (50, 100, 300, 1000) for name in FORMATS), ("sentihood", WHOLE)]
TEST_SENTENCES = 300  # the same test sentences for every seed and every size but WHOLE
RESAMPLES = 2_000
# The aspects and targets about which each text is asked to time predictions, by the number of contexts.
ASKED = {1: (1, 1), 4: (4, 1), 8: (4, 2)}
ROUNDS = 5
NOT_YET = "not yet measured"
Key = tuple[str, int, str, int]


def key_of(row: dict) -> Key:
    """The key of a training run: data set, number of sentences, way and seed."""
    return row["text"], row["sentences"], row["way"], row["seed"]


def read(folder: Path) -> list[dict]:
    """Reads the records of a folder; [] if the folder has no file FILE."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append(folder: Path, row: dict) -> None:
    """Appends a record to the file FILE of a folder."""
    with (folder / FILE).open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row, allow_nan=False) + "\n")


def metric_of(size: int) -> str:
    """The metric of a cell: that of the published task for all sentences, otherwise macro-F1, as for a user's data."""
    return "strict_accuracy" if size == WHOLE else "macro_f1"


def table(rows: Sequence[dict], cells: Sequence[tuple[str, int]], ways: Sequence[str]) -> str:
    """A Markdown table of the metric on the test split in per cent, mean and standard deviation over seeds.

    Minutes are CPU time, which other processes do not lengthen; for a run that was resumed they are wall time.
    """
    header = ["text", "sentences", "TF-IDF", *(f"{way}{unit}" for way in ways for unit in ("", ", minutes"))]
    lines = []
    for name, size in cells:
        here = [row for row in rows if (row["text"], row["sentences"]) == (name, size)]
        metric = metric_of(size)
        by_seed = {row["seed"]: row["tfidf"]["test"][metric] for row in here}
        cell = [name, f"{size:,}" if size else "all", _mean_and_deviation(list(by_seed.values()), 100)]
        for way in ways:
            found = [row for row in here if row["way"] == way]
            cell.append(_mean_and_deviation([row["metrics"]["test"][metric] for row in found], 100))
            seconds = [row.get("processor_seconds") or row["seconds"] for row in found]
            cell.append(_mean_and_deviation(seconds, 1 / 60) if found else "")
        lines.append(cell)
    return markdown_table(header, lines, texts=1)


def costs(rows: Sequence[dict], ways: Sequence[str]) -> str:
    """A Markdown table of the wall time of a training, and of the texts per second that its model predicts."""
    header = ["way", "text", "sentences", "training, minutes", *(f"texts/s, {count} contexts" for count in ASKED)]
    timed = [row for way in ways for row in rows if row["way"] == way and "texts_per_second" in row]
    lines = [
        [row["way"], row["text"], f"{row['sentences']:,}", f"{row['seconds'] / 60:.1f}"]
        + [f"{row['texts_per_second'].get(str(count), math.nan):,.0f}" for count in ASKED]
        for row in timed
    ]
    return markdown_table(header, lines, texts=2) if lines else ""


def _mean_and_deviation(values: Sequence[float], scale: float) -> str:
    if not values:
        return NOT_YET
    return mean_and_deviation(values, scale) + (f" ({len(values)} seeds)" if len(values) > 1 else "")


def differences(rows: Sequence[dict], cells: Sequence[tuple[str, int]], ways: Sequence[str], seeds: int) -> str:
    """A Markdown table of each way minus the first in points, with 95 % intervals over seeds and test sentences.

    The last line is the mean over the cells. Only cells of which all ways have `seeds` seeds with predictions count.
    """
    drawn = random.Random(0)
    kept: dict[tuple[str, int], np.ndarray] = {}
    for name, size in cells:
        here = {(row["way"], row["seed"]): row for row in rows if (row["text"], row["sentences"]) == (name, size)}
        common = sorted({seed for _, seed in here if all("test" in here.get((way, seed), ()) for way in ways)})
        if len(common) >= seeds:
            kept[name, size] = _resampled(here, ways, common, metric_of(size), drawn)
    if not kept:
        return ""
    names = [[name, f"{size:,}" if size else "all"] for name, size in kept]
    lines = []
    for place, values in zip([*names, ["mean", ""]], [*kept.values(), np.mean(list(kept.values()), axis=0)]):
        found = 100 * (values[:, 1:] - values[:, :1])
        low, high = np.percentile(found[1:], (2.5, 97.5), axis=0)
        gains = map("{:+.1f} ({:+.1f} to {:+.1f})".format, found[0], low, high)
        lines.append([*place, f"{100 * values[0, 0]:.1f}", *gains])
    header = ["text", "sentences", ways[0], *(f"{way} minus {ways[0]}" for way in ways[1:])]
    return markdown_table(header, lines, texts=1)


def _resampled(here: dict, ways: Sequence[str], seeds: Sequence[int], metric: str, drawn: random.Random) -> np.ndarray:
    """The metric of each way, (1 + RESAMPLES, ways): the mean over the seeds; then over resampled seeds and sentences.

    All ways of a resample have the same seeds and sentences.
    """
    answers = {(way, seed): here[way, seed]["test"] for way in ways for seed in seeds}
    count = len(next(iter(answers.values()))["gold"].split())
    weights = np.ones((1 + RESAMPLES, count))
    numbers = np.random.default_rng(drawn.randrange(1 << 32))
    weights[1:] = numbers.multinomial(count, [1 / count] * count, RESAMPLES)
    judge = _strict_accuracy if metric == "strict_accuracy" else _macro_f1
    by_seed = np.array([[judge(answers[way, seed], weights) for way in ways] for seed in seeds])  # (seeds, ways, 1 + R)
    chosen = numbers.multinomial(len(seeds), [1 / len(seeds)] * len(seeds), 1 + RESAMPLES) / len(seeds)
    chosen[0] = 1 / len(seeds)
    return np.einsum("rs,swr->rw", chosen, by_seed)


def _strict_accuracy(answers: dict[str, str], weights: np.ndarray) -> np.ndarray:
    """The share of groups (a sentence and a target) without an error, for weights (R, sentences)."""
    pairs = list(zip(answers["gold"].split(), answers["predicted"].split(), strict=True))
    right = [sum(one == other for one, other in zip(a.split("|"), b.split("|"), strict=True)) for a, b in pairs]
    groups = [gold.count("|") + 1 for gold, _ in pairs]
    return (weights @ right) / (weights @ groups)


def _macro_f1(answers: dict[str, str], weights: np.ndarray) -> np.ndarray:
    """The mean F1 of the labels that occur as true labels, for weights (R, sentences)."""
    labels = sorted({*answers["gold"]} - {" ", "|"})
    counts = np.zeros((3, len(labels), weights.shape[1]))
    for index, (gold, predicted) in enumerate(zip(answers["gold"].split(), answers["predicted"].split(), strict=True)):
        for place, label in enumerate(labels):
            hits = sum(a == b == label for a, b in zip(gold, predicted, strict=True))
            counts[:, place, index] = hits, gold.count(label), predicted.count(label)
    hits, true, guessed = counts @ weights.T
    return np.divide(2 * hits, true + guessed, out=np.zeros_like(hits), where=true + guessed > 0).mean(0)


def dataset_of(name: str, sentences: int, seed: int, data: Path) -> Dataset | None:
    """Makes a data set with a given number of sentences in train and dev, a tenth of them in dev.

    The metrics are accuracy and macro-F1, as for a user's data; the metrics of the published tasks are not used.
    Training selects weights by macro-F1 on dev. The size WHOLE has the published splits and metrics.

    Returns None if the published data has fewer sentences.
    """
    options = DataOptions(format=FORMATS[name])
    if sentences == WHOLE:
        return load_data(data / name, options=options)
    whole = load_data(data / name, ("train", "test"), options)
    splits = whole.splits
    if len({row.sentence for row in splits["train"]}) < sentences:
        return None
    train, dev = split_dev(_chosen(splits["train"], sentences, seed), 0.1, seed)
    test = _chosen(splits["test"], TEST_SENTENCES, 0)
    targets = target_names([train], whole.task)
    known = set(whole.task.contexts(targets))
    rows = {"train": train, "dev": dev, "test": test}
    rows = {split: [row for row in part if row.context in known] for split, part in rows.items()}
    return replace(
        whole,
        task=replace(whole.task, metrics="classification", selection="macro_f1", complete=False),
        splits=rows,
        files={"train": whole.files["train"], "dev": whole.files["train"], "test": whole.files["test"]},
        targets=targets,
    )


def _chosen(rows: Sequence[Example], sentences: int, seed: int) -> list[Example]:
    """Draws `sentences` different sentences at random, or all if there are fewer.

    Returns all examples of the drawn sentences, in the order of `rows`.
    """
    found = sorted({row.sentence for row in rows})
    drawn = set(random.Random(seed).sample(found, min(sentences, len(found))))
    return [row for row in rows if row.sentence in drawn]


def grouped(rows: Sequence[Example], labels: Sequence[int]) -> str:
    """Writes a label per row as a digit, with a space between sentences and a bar between targets of a sentence."""
    sentences: dict[str, dict[str, str]] = {}
    for row, label in zip(rows, labels, strict=True):
        targets = sentences.setdefault(row.sentence, {})
        targets[row.target] = targets.get(row.target, "") + str(label)
    return " ".join("|".join(targets.values()) for targets in sentences.values())


def texts_per_second(model: Path, rows: Sequence[Example]) -> dict[str, float]:
    """The rate of `qacg predict` for each number of contexts in ASKED that the model has, medians of ROUNDS."""
    trained = load_trained(model, precision="auto")
    frame = pd.DataFrame({"text": list(dict.fromkeys(row.sentence for row in rows))})
    predict, aspects, targets = Predictor(trained).predict, trained.task.aspects, trained.record.targets
    seconds: dict[int, list[float]] = {}
    for _ in range(ROUNDS):
        for count, (some, places) in ASKED.items():
            chosen = {"aspects": aspects[:some]} | ({"targets": targets[:places]} if trained.task.has_targets else {})
            if places <= len(targets) or places == 1:
                start = time.perf_counter()
                predict(frame, **chosen)
                seconds.setdefault(count, []).append(time.perf_counter() - start)
    return {str(count): round(len(frame) / statistics.median(found), 1) for count, found in seconds.items()}


def row_of(record: TrainingRecord) -> dict:
    """What a record stores of a training, without the paths of its options."""
    plain = record.to_json()
    kept = ("metrics", "selected", "steps", "evaluations", "seconds", "versions", "machine", "commit", "written")
    paths = ("from_checkpoint", "tokenizer", "tensorboard")
    return {
        "seed": record.options.seed,
        "tfidf": {"test": plain["tfidf"]["test"]},
        "data": {split: part.sha256 for split, part in record.data.items()},
        "options": {n: value for n, value in plain["options"].items() if n not in paths and value is not None},
        **{name: plain[name] for name in kept},
    }


def measure(out: Path, key: Key, data: Path, options: TrainingOptions) -> bool:
    """Trains once and stores the record; returns False if the data has fewer sentences than the key."""
    from qacg_models.sentiment.training import train

    name, size, way, seed = key
    work = out / "unfinished" / "-".join(map(str, key))
    resumed = work.exists()
    dataset = dataset_of(name, size, seed, data)
    if dataset is None:
        return False
    before = time.process_time()
    trained = train(dataset, work / "model", replace(options, seed=seed), resume=True)
    seconds = None if resumed else time.process_time() - before
    test = dataset.splits["test"]
    predicted = trained.logits(test).argmax(-1)
    answers = {"gold": grouped(test, [row.label for row in test]), "predicted": grouped(test, predicted)}
    cell = {"text": name, "sentences": size, "way": way, "processor_seconds": seconds}
    rates = {"texts_per_second": texts_per_second(work / "model", test)}
    append(out, cell | row_of(trained.record) | rates | {"test": answers})
    shutil.rmtree(work)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description="Compares ways to ask about an aspect, and TF-IDF, by the number of training sentences.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the records file, {FILE}")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder of {'/ and '.join(FORMATS)}/")
    parser.add_argument("--texts", nargs="+", choices=FORMATS, default=list(FORMATS), help="data sets")
    sizes = sorted({size for _, size in CELLS})
    parser.add_argument("--sizes", type=int, nargs="+", default=sizes, metavar="N", help="sentences; 0: all")
    parser.add_argument(
        "--ways",
        nargs="+",
        choices=WAYS,
        default=list(WAYS)[1:],
        help="ways to ask; the first is the base of differences",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="seeds of data and weights"
    )
    parser.add_argument("--table", action="store_true", help="only print the tables of the stored records")
    options = parser.parse_args(arguments)
    if options.data is None and not options.table:
        parser.error(f"--data: expected the folder of {options.texts[0]}/, got none. Pass --data.")
    if min(options.sizes) < 0:
        parser.error(f"--sizes: expected at least 0, got {min(options.sizes)}")
    options.out.mkdir(parents=True, exist_ok=True)
    sizes = [(name, size) for size in sorted(options.sizes, key=lambda size: size or 1 << 30) for name in options.texts]
    cells = [cell for cell in sizes if cell[1] != WHOLE or cell in CELLS]
    keys = [(*cell, way, seed) for cell in cells for seed in options.seeds for way in options.ways]
    if not options.table:
        load_libraries()

    def run() -> int:
        for key in [] if options.table else keys:
            if key in {key_of(row) for row in read(options.out)}:  # again, as another process may add records
                continue
            print(f"\n{key[0]}, {key[1] or 'all'} sentences, {key[2]}, seed {key[3]}", flush=True)
            if not measure(
                options.out, key, options.data, TrainingOptions(**{"from_checkpoint": "minilm"} | WAYS[key[2]])
            ):
                print("skipped: the data has fewer sentences")
        found = read(options.out)
        parts = [table(found, cells, options.ways), differences(found, cells, options.ways, len(options.seeds))]
        print("", *filter(None, [*parts, costs(found, options.ways)]), sep="\n\n")
        return 0

    return exit_status(run, RESUMES)


if __name__ == "__main__":
    sys.exit(main())
