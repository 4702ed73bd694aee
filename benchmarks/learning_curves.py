"""How good the default training is by the number of sentences: `python -m benchmarks.learning_curves --out DIR`.

Trains with the defaults of `qacg train`, beside the TF-IDF baseline, the smallest sizes first, and adds a row for each
training to DIR. The same command goes on where it was ended, in the midst of a training too; `--table` measures
nothing, and prints what is there. `--baseline-only` trains nothing: it fits the baseline of every row again.
"""

import argparse
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.cli.libraries import load_libraries
from qacg_models.data import file_digest
from qacg_models.errors import InputError
from qacg_models.metrics import judge
from qacg_models.metrics.tfidf import TfidfBaseline
from qacg_models.reporting.run_records import row_of
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.provenance import commit, now

from benchmarks.cli.options import INTERRUPTED
from benchmarks.learning.curve_rows import FILE, STARTS, Key, append, key_of, read, replace_all, table
from benchmarks.learning.texts import KINDS, PUBLISHED, dataset_of

SIZES = (50, 100, 300, 1000, 5000)


def measure(out: Path, key: Key, data: Path | None, options: TrainingOptions) -> bool:
    """One training; False where there are not so many sentences."""
    from qacg_models.training import train  # transformers, which --help and --table do without

    kind, size, start, seed = key
    work = out / "unfinished" / "-".join(map(str, key))
    anew = not work.exists()
    dataset = dataset_of(kind, size, seed, data, work / "data")
    if dataset is None:
        return False
    before = time.process_time()
    record = train(dataset, work / "model", replace(options, from_checkpoint=start, seed=seed), resume=True).record
    took = time.process_time() - before if anew else None
    append(out, {"text": kind, "sentences": size, "begun_from": start, "processor_seconds": took} | row_of(record))
    shutil.rmtree(work)
    return True


def refit_baseline(out: Path, data: Path | None, kinds: Sequence[str]) -> None:
    """Replaces the baseline's metrics in the records of `kinds`, with the commit and date that they are from.

    Raises:
        ValueError: the data files differ from those of the training.
    """
    rows, found = read(out), {}
    made = {"commit": commit(), "written": now()}
    for row in [row for row in rows if row["text"] in kinds]:
        key = row["text"], row["sentences"], row["seed"]
        if key not in found:
            dataset = dataset_of(*key, data, out / "unfinished" / "baseline")
            baseline = TfidfBaseline(dataset.splits["train"], dataset.task)
            print(f"{key[0]}, {key[1]:,} sentences, seed {key[2]}: {baseline.describe()}", flush=True)
            asked = {split: dataset.splits[split] for split in row["tfidf"]}
            figures = {split: judge(dataset.task, some, baseline.probabilities(some)) for split, some in asked.items()}
            digests = {split: file_digest(*paths) for split, paths in dataset.files.items()}
            found[key] = digests, {split: one.to_json() for split, one in figures.items()}, str(baseline.setting)
        digests, figures, setting = found[key]
        if digests != row["data"]:
            raise ValueError(f"{key}: the files differ from those of the training; expected the same data")
        row |= {"tfidf": figures, "tfidf_refitted": made | {"setting": setting}}
    replace_all(out, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning_curves",
        description="Measures the default training by the number of sentences, beside TF-IDF with logistic regression.",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"folder of the rows, {FILE}")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"folder that holds {'/ and '.join(PUBLISHED)}/")
    parser.add_argument("--texts", nargs="+", choices=KINDS, default=["english", *PUBLISHED], help="kinds of text")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="N", help="sentences, dev included")
    parser.add_argument("--from", dest="starts", nargs="+", choices=STARTS, default=STARTS, help="what to begin from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="of data and weights")
    parser.add_argument("--minutes", type=float, metavar="X", help="budget of a training, in place of the default")
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast from scratch too")
    parser.add_argument("--table", action="store_true", help="only print the table of the rows that are there")
    parser.add_argument(
        "--baseline-only", action="store_true", help="train nothing; fit the baseline of the rows of --texts again"
    )
    options = parser.parse_args(arguments)
    published = [kind for kind in options.texts if kind in PUBLISHED]
    if published and options.data is None and not options.table:
        parser.error(f"--data: wanted the folder that holds {published[0]}/, or other --texts")
    options.out.mkdir(parents=True, exist_ok=True)
    keys = [
        (kind, size, start, seed)
        for size in sorted(options.sizes)
        for seed in options.seeds
        for start in options.starts
        for kind in options.texts
    ]
    choices = TrainingOptions(minutes=options.minutes, bf16=options.bf16 or None)
    done = {key_of(row) for row in read(options.out)}
    if not options.table:
        load_libraries(alone=arguments is None)
    try:
        if options.baseline_only:
            refit_baseline(options.out, options.data, options.texts)
        for key in [] if options.table or options.baseline_only else [key for key in keys if key not in done]:
            print(f"\n{key[0]}, {key[1]:,} sentences, from {key[2]}, seed {key[3]}", flush=True)
            if not measure(options.out, key, options.data, choices):
                print("there are not so many sentences")
    except (InputError, ValueError) as error:
        print(f"learning_curves: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on")
        return INTERRUPTED
    print(f"\n{table(read(options.out), options.texts, sorted(options.sizes))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
