"""Predicts Parquet files with Dask: python dask_predict.py MODEL INPUT OUTPUT --text review --keep id"""

import argparse

import dask.dataframe as dd
from dask.dataframe.dispatch import make_meta
from dask.distributed import Client, LocalCluster
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

    # The default scheduler has threads, which wait for one another. On a cluster: `Client(address)`.
    cluster = LocalCluster(n_workers=given.workers, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster):
        table = dd.read_parquet(given.input, columns=[given.text, *given.keep])
        table = table.repartition(npartitions=1 + len(table) // given.rows)
        predict = BatchPredictor(given.model, text=given.text, keep=given.keep, on_empty=given.on_empty)
        table.map_partitions(predict, meta=predict(make_meta(table))).to_parquet(given.output)


if __name__ == "__main__":
    main()
