"""Predicts Parquet files with Ray Data: python ray_predict.py MODEL INPUT OUTPUT --text review --keep id"""

import argparse
import os

import ray
from qacg_models import BatchPredictor


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder that qacg train wrote, under the same path on every machine")
    parser.add_argument("input", help="Parquet file, or folder of them")
    parser.add_argument("output", help="new folder")
    parser.add_argument("--text", default="text", help="column of the texts")
    parser.add_argument("--keep", nargs="*", default=["id"], help="columns to copy")
    parser.add_argument("--on-empty", default="skip", choices=["skip", "raise"], help="for empty texts")
    parser.add_argument("--rows", type=int, default=10_000, help="texts of a task, which a killed worker repeats")
    parser.add_argument("--workers", type=int, default=2, help="processes with the model, each on one CPU")
    given = parser.parse_args()

    os.environ.setdefault("RAY_worker_niceness", "0")  # by default 15: other programs of the machine come first
    # Actors that have all CPUs leave none for reading, and Ray waits for ever. On a cluster: `ray.init()`.
    ray.init(num_cpus=given.workers + 1, include_dashboard=False)
    table = ray.data.read_parquet(given.input, columns=[given.text, *given.keep])
    # Without this, small files are one block, which one actor predicts.
    table = table.repartition(target_num_rows_per_block=given.rows)
    predictions = table.map_batches(
        BatchPredictor,
        fn_constructor_args=[given.model],
        fn_constructor_kwargs={"text": given.text, "keep": given.keep, "on_empty": given.on_empty},
        compute=ray.data.ActorPoolStrategy(size=given.workers),
        num_cpus=1,
        batch_size=None,  # the whole block
        batch_format="pandas",
    )
    predictions.write_parquet(given.output)


if __name__ == "__main__":
    main()
