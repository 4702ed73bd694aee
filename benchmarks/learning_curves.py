"""Measures quality by the number of sentences: `python -m benchmarks.learning_curves --out DIR`.

Trains with the defaults of `qacg train`, the smallest sizes first, and fits the TF-IDF baseline on the same data. Adds
a record for each training run to DIR. The same command resumes an interrupted run, also in the middle of a training.
`--table` only prints the stored records. `--baseline-only` trains no model: for the kinds of text in `--texts`, it fits
the baseline again and changes the stored records.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.cli.libraries import load_libraries
from qacg_models.data import file_digest
from qacg_models.metrics import judge
from qacg_models.metrics.tfidf import TfidfBaseline
from qacg_models.reporting.run_records import row_of
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import markdown_table, mean_and_deviation
from qacg_models.utils.provenance import commit, now

from benchmarks.command import RESUMES, exit_status
from benchmarks.learning_texts import KINDS, PUBLISHED, dataset_of

FILE = "learning-curves.jsonl"
STARTS = ("scratch", "minilm")
NOT_YET = "not yet measured"
Key = tuple[str, int, str, int]


def key_of(row: dict) -> Key:
    """The key of a training run: kind of text, number of sentences, initial weights and seed."""
    return row["text"], row["sentences"], row["begun_from"], row["seed"]


def read(folder: Path) -> list[dict]:
    """Reads the records of a folder; [] if the folder has no file FILE."""
    path = folder / FILE
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append(folder: Path, row: dict) -> None:
    """Appends a record to the file FILE of a folder."""
    with (folder / FILE).open("a", encoding="utf-8") as handle:
        handle.write(json.dumps(row, allow_nan=False) + "\n")


def replace_all(folder: Path, rows: Iterable[dict]) -> None:
    """Replaces the file FILE of a folder atomically by a file with the records `rows`."""
    with atomic_write(folder / FILE) as handle:
        handle.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def table(rows: Sequence[dict], kinds: Iterable[str], sizes: Sequence[int]) -> str:
    """A Markdown table of macro-F1 on the test split in per cent, mean and standard deviation over seeds.

    Minutes are CPU time, which other processes do not lengthen; for a run that was resumed they are wall time.

    Args:
        rows: the records.
        kinds: kinds of text, in the order of the table.
        sizes: numbers of sentences, in the order of the table.
    """
    header = ["text", "sentences", "TF-IDF", *(f"{start}{unit}" for start in STARTS for unit in ("", ", minutes"))]
    lines = []
    for kind in kinds:
        for size in sizes:
            here = [row for row in rows if row["text"] == kind and row["sentences"] == size]
            by_seed = {row["seed"]: row["tfidf"]["test"]["macro_f1"] for row in here}
            cells = [kind, f"{size:,}", _mean_and_deviation(list(by_seed.values()), 100)]
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


SIZES = (50, 100, 300, 1000, 5000)


def measure(out: Path, key: Key, data: Path | None, options: TrainingOptions) -> bool:
    """Trains once and stores the record; returns False if the data has fewer sentences than the key.

    Args:
        out: folder of the records, and of unfinished runs.
        key: the training run, as `key_of` returns it.
        data: folder of the published data sets, or None.
        options: training options; initial weights and seed are taken from the key.
    """
    from qacg_models.training import train  # imports transformers

    kind, size, start, seed = key
    work = out / "unfinished" / "-".join(map(str, key))
    resumed = work.exists()
    dataset = dataset_of(kind, size, seed, data, work / "data")
    if dataset is None:
        return False
    before = time.process_time()
    record = train(dataset, work / "model", replace(options, from_checkpoint=start, seed=seed), resume=True).record
    seconds = None if resumed else time.process_time() - before
    append(out, {"text": kind, "sentences": size, "begun_from": start, "processor_seconds": seconds} | row_of(record))
    shutil.rmtree(work)
    return True


def refit_baseline(out: Path, data: Path | None, kinds: Sequence[str]) -> None:
    """Fits the baseline again for stored records, and stores its metrics, the commit and the date in the records.

    Args:
        out: folder of the records.
        data: folder of the published data sets, or None.
        kinds: kinds of text whose records are changed.

    Raises:
        ValueError: the data files differ from the data files of the training, or have fewer sentences.
    """
    rows, found = read(out), {}
    made = {"commit": commit(), "written": now()}
    for row in [row for row in rows if row["text"] in kinds]:
        key = row["text"], row["sentences"], row["seed"]
        if key not in found:
            dataset = dataset_of(*key, data, out / "unfinished" / "baseline")
            if dataset is None:
                raise ValueError(f"data: expected at least the {key[1]:,} sentences of the record {key}, got fewer")
            baseline = TfidfBaseline(dataset.splits["train"], dataset.task)
            print(f"{key[0]}, {key[1]:,} sentences, seed {key[2]}: {baseline.describe()}", flush=True)
            asked = {split: dataset.splits[split] for split in row["tfidf"]}
            metrics = {split: judge(dataset.task, some, baseline.probabilities(some)) for split, some in asked.items()}
            digests = {split: file_digest(*paths) for split, paths in dataset.files.items()}
            found[key] = digests, {split: one.to_json() for split, one in metrics.items()}, str(baseline.setting)
        digests, metrics, setting = found[key]
        if digests != row["data"]:
            raise ValueError(f"data: expected the data files of the record {key}, got files with other contents")
        row |= {"tfidf": metrics, "tfidf_refitted": made | {"setting": setting}}
    replace_all(out, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning_curves",
        description="Measures the default training by the number of sentences, beside TF-IDF with logistic regression.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the records file, {FILE}")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder of {'/ and '.join(PUBLISHED)}/")
    parser.add_argument("--texts", nargs="+", choices=KINDS, default=["english", *PUBLISHED], help="kinds of text")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="sentences in train plus dev")
    parser.add_argument("--from", dest="starts", nargs="+", choices=STARTS, default=STARTS, help="initial weights")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="seeds of data and weights"
    )
    parser.add_argument(
        "--minutes", type=float, metavar="X", help="time limit of a training run (default: as in qacg train)"
    )
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast also for training from scratch")
    parser.add_argument("--table", action="store_true", help="only print the table of the stored records")
    parser.add_argument(
        "--baseline-only",
        action="store_true",
        help="train no model; fit the baseline again for the stored records whose kind of text is in --texts",
    )
    options = parser.parse_args(arguments)
    published = [kind for kind in options.texts if kind in PUBLISHED]
    if published and options.data is None and not options.table:
        parser.error(f"--data: expected the folder of {published[0]}/, got none. Pass --data, or other --texts.")
    if min(options.sizes) < 1:
        parser.error(f"--sizes: expected at least 1 sentence, got {min(options.sizes)}")
    options.out.mkdir(parents=True, exist_ok=True)
    keys = [
        (kind, size, start, seed)
        for size in sorted(options.sizes)
        for seed in options.seeds
        for start in options.starts
        for kind in options.texts
    ]
    done = {key_of(row) for row in read(options.out)}
    if not options.table:
        load_libraries()

    def run() -> int:
        choices = TrainingOptions(minutes=options.minutes, bf16=options.bf16 or None)
        if options.baseline_only:
            refit_baseline(options.out, options.data, options.texts)
        for key in [] if options.table or options.baseline_only else [key for key in keys if key not in done]:
            print(f"\n{key[0]}, {key[1]:,} sentences, from {key[2]}, seed {key[3]}", flush=True)
            if not measure(options.out, key, options.data, choices):
                print("skipped: the data has fewer sentences")
        print(f"\n{table(read(options.out), options.texts, sorted(options.sizes))}")
        return 0

    return exit_status(run, RESUMES)


if __name__ == "__main__":
    sys.exit(main())
