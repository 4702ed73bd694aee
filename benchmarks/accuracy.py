"""Measures accuracy by the number of training sentences: `python -m benchmarks.accuracy --data DIR --out DIR`.

Trains with the defaults of `qacg train` on parts of SentiHood and SemEval-2014, the smallest sizes first, and fits the
TF-IDF baseline on the same data. Adds a record for each training run to the file FILE in `--out`. The same command
resumes an interrupted run, also in the middle of a training. `--table` only prints the stored records.
"""

import argparse
import json
import random
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.sentiment.dataset import Dataset, load_data, split_dev, target_names
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.report.tables import row_of
from qacg_models.utils.machine import load_libraries
from qacg_models.utils.text import markdown_table, mean_and_deviation

from benchmarks.command import RESUMES, exit_status

FILE = "learning-curves.jsonl"
FORMATS = {"sentihood": "sentihood-tsv", "semeval2014": "semeval-csv"}  # data format by data set
STARTS = ("scratch", "minilm")
SIZES = (50, 100, 300, 1000)
TEST_SENTENCES = 300  # the same test sentences for every size and seed
NOT_YET = "not yet measured"
Key = tuple[str, int, str, int]


def key_of(row: dict) -> Key:
    """The key of a training run: data set, number of sentences, initial weights and seed."""
    return row["text"], row["sentences"], row["begun_from"], row["seed"]


def read(folder: Path) -> list[dict]:
    """Reads the records of a folder; [] if the folder has no file FILE."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append(folder: Path, row: dict) -> None:
    """Appends a record to the file FILE of a folder."""
    with (folder / FILE).open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row, allow_nan=False) + "\n")


def table(rows: Sequence[dict], names: Iterable[str], sizes: Sequence[int]) -> str:
    """A Markdown table of macro-F1 on the test split in per cent, mean and standard deviation over seeds.

    Minutes are CPU time, which other processes do not lengthen; for a run that was resumed they are wall time.
    """
    header = ["text", "sentences", "TF-IDF", *(f"{start}{unit}" for start in STARTS for unit in ("", ", minutes"))]
    lines = []
    for name in names:
        for size in sizes:
            here = [row for row in rows if row["text"] == name and row["sentences"] == size]
            by_seed = {row["seed"]: row["tfidf"]["test"]["macro_f1"] for row in here}
            cells = [name, f"{size:,}", _mean_and_deviation(list(by_seed.values()), 100)]
            for start in STARTS:
                found = [row for row in here if row["begun_from"] == start]
                cells.append(_mean_and_deviation([row["metrics"]["test"]["macro_f1"] for row in found], 100))
                seconds = [row.get("processor_seconds") or row["seconds"] for row in found]
                cells.append(_mean_and_deviation(seconds, 1 / 60) if found else "")
            lines.append(cells)
    return markdown_table(header, lines, texts=1)


def _mean_and_deviation(values: Sequence[float], scale: float) -> str:
    if not values:
        return NOT_YET
    return mean_and_deviation(values, scale) + (f" ({len(values)} seeds)" if len(values) > 1 else "")


def dataset_of(name: str, sentences: int, seed: int, data: Path) -> Dataset | None:
    """Makes a data set with a given number of sentences in train and dev, a tenth of them in dev.

    The metrics are accuracy and macro-F1, as for a user's data; the metrics of the published tasks are not used.
    Training selects weights by macro-F1 on dev.

    Returns None if the published data has fewer sentences.
    """
    whole = load_data(data / name, ("train", "test"), DataOptions(format=FORMATS[name]))
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


def measure(out: Path, key: Key, data: Path, options: TrainingOptions) -> bool:
    """Trains once and stores the record; returns False if the data has fewer sentences than the key."""
    from qacg_models.sentiment.training import train

    name, size, start, seed = key
    work = out / "unfinished" / "-".join(map(str, key))
    resumed = work.exists()
    dataset = dataset_of(name, size, seed, data)
    if dataset is None:
        return False
    before = time.process_time()
    record = train(dataset, work / "model", replace(options, from_checkpoint=start, seed=seed), resume=True).record
    seconds = None if resumed else time.process_time() - before
    append(out, {"text": name, "sentences": size, "begun_from": start, "processor_seconds": seconds} | row_of(record))
    shutil.rmtree(work)
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy",
        description="Measures the default training by the number of sentences, beside TF-IDF with logistic regression.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the records file, {FILE}")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder of {'/ and '.join(FORMATS)}/")
    parser.add_argument("--texts", nargs="+", choices=FORMATS, default=list(FORMATS), help="data sets")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="sentences in train plus dev")
    parser.add_argument("--from", dest="starts", nargs="+", choices=STARTS, default=STARTS, help="initial weights")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="seeds of data and weights"
    )
    parser.add_argument("--table", action="store_true", help="only print the table of the stored records")
    options = parser.parse_args(arguments)
    if options.data is None and not options.table:
        parser.error(f"--data: expected the folder of {options.texts[0]}/, got none. Pass --data.")
    if min(options.sizes) < 1:
        parser.error(f"--sizes: expected at least 1 sentence, got {min(options.sizes)}")
    options.out.mkdir(parents=True, exist_ok=True)
    keys = [
        (name, size, start, seed)
        for size in sorted(options.sizes)
        for seed in options.seeds
        for start in options.starts
        for name in options.texts
    ]
    done = {key_of(row) for row in read(options.out)}
    if not options.table:
        load_libraries()

    def run() -> int:
        for key in [] if options.table else [key for key in keys if key not in done]:
            print(f"\n{key[0]}, {key[1]:,} sentences, from {key[2]}, seed {key[3]}", flush=True)
            if not measure(options.out, key, options.data, TrainingOptions()):
                print("skipped: the data has fewer sentences")
        print(f"\n{table(read(options.out), options.texts, sorted(options.sizes))}")
        return 0

    return exit_status(run, RESUMES)


if __name__ == "__main__":
    sys.exit(main())
