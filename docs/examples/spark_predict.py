"""Predicts Parquet files with Spark: python spark_predict.py MODEL INPUT OUTPUT --text review --keep id"""

import argparse
import os
import sys

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType
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
    # The number after the comma, of attempts at a task, is 1 if it is omitted; a cluster's spark.task.maxFailures is 4.
    parser.add_argument("--master", default="local[2,4]", help="address of the cluster")
    given = parser.parse_args()

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the first python3 of PATH
    spark = SparkSession.builder.master(given.master).getOrCreate()
    table = spark.read.parquet(given.input).select(given.text, *given.keep)
    table = table.repartition(1 + table.count() // given.rows)
    predict = BatchPredictor(given.model, text=given.text, keep=given.keep, on_empty=given.on_empty)
    # Spark requires the schema. The result of an empty frame has it; kept columns have theirs in the input.
    answers = predict(table.limit(0).toPandas()).drop(columns=given.keep)
    answers = spark.createDataFrame(pa.Table.from_pandas(answers)).schema
    schema = StructType([*table.select(*given.keep).schema, *answers])
    table.mapInPandas(predict.stream, schema).write.parquet(given.output)


if __name__ == "__main__":
    main()
