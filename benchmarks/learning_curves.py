"""How good the default training is by the number of sentences: `python -m benchmarks.learning_curves --out DIR`.

Trains with the defaults of `qacg train`, beside TF-IDF with logistic regression, the smallest sizes first, and adds a
row for each training to DIR. The same command goes on where it was ended, in the midst of a training too; `--table`
measures nothing, and prints what is there.
"""

import argparse
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

from qacg_models.cli.libraries import load_libraries
from qacg_models.reporting.run_records import row_of
from qacg_models.runs.options import TrainingOptions

from benchmarks.cli.options import INTERRUPTED
from benchmarks.learning.curve_rows import FILE, STARTS, Key, append, key_of, read, table
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
    begin = None if start == "scratch" else start
    before = time.process_time()
    record = train(dataset, work / "model", replace(options, from_checkpoint=begin, seed=seed), resume=True).record
    took = time.process_time() - before if anew else None
    append(out, {"text": kind, "sentences": size, "begun_from": start, "processor_seconds": took} | row_of(record))
    shutil.rmtree(work)
    return True


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
    parser.add_argument("--bf16", action="store_true", help="bfloat16 autocast, which the rows say")
    parser.add_argument("--table", action="store_true", help="only print the table of the rows that are there")
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
    choices = TrainingOptions(minutes=options.minutes, bf16=options.bf16)
    done = {key_of(row) for row in read(options.out)}
    if not options.table:
        load_libraries("training", alone=arguments is None)
    try:
        for key in [] if options.table else [key for key in keys if key not in done]:
            print(f"\n{key[0]}, {key[1]:,} sentences, from {key[2]}, seed {key[3]}", flush=True)
            if not measure(options.out, key, options.data, choices):
                print("there are not so many sentences")
    except KeyboardInterrupt:
        print("interrupted; the same command goes on")
        return INTERRUPTED
    print(f"\n{table(read(options.out), options.texts, sorted(options.sizes))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
