"""Large data: Arrow tables of examples and features equal lists of them."""

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
import torch
from errors import raises
from qacg_models.data import DataError, DataOptions, Example, ExampleTable, arrow_rows, load_data
from qacg_models.data.arrow_rows import ArrowRows, gather_rows, map_rows, write_rows
from qacg_models.data.dataset import count_overlap, describe_examples, label_shares
from qacg_models.data.example_table import distinct
from qacg_models.data.feature_table import Encoding, read_features, write_features
from qacg_models.data.task import Task
from qacg_models.data.tokenization import encode_examples, train_tokenizer
from qacg_models.errors import InputError
from qacg_models.training import encoded_splits
from qacg_models.training.rows import EpochSampler

TASK = Task("own", ("none", "good", "bad"), ("food", "room"), has_absent=True)


def examples(count):
    aspects = ("food", "room")
    return [
        Example(f"id {n // 2}", f"text {n // 6} ä😀", aspects[n % 2], "", aspects[n % 2], n % 3, 2 + n)
        for n in range(count)
    ]


@pytest.fixture(params=["in memory", "in a file"])
def table_of(request, monkeypatch, tmp_path):
    """Makes tables of small blocks, in memory or in a temporary file."""
    monkeypatch.setattr(arrow_rows, "BLOCK", 7)
    monkeypatch.setattr(arrow_rows.blocks, "__defaults__", (7,))
    monkeypatch.setattr(arrow_rows.tempfile, "tempdir", str(tmp_path))
    if request.param == "in a file":
        monkeypatch.setattr(arrow_rows, "IN_MEMORY", 400)
    return ExampleTable


def test_example_table_equals_its_examples(table_of):
    rows = examples(50)
    table = table_of(iter(rows))
    assert len(table.rows.batches) == 8
    assert table == rows
    assert [*table] == rows
    assert table[3:20:4] == rows[3:20:4]
    assert [table[n] for n in (0, 6, 7, 49, -1, -50)] == [rows[n] for n in (0, 6, 7, 49, -1, -50)]
    for outside in (50, -51):
        with pytest.raises(IndexError):
            table[outside]
    assert table != rows[:-1]
    assert table != [*rows[:-1], rows[0]]
    assert table != 3
    unlabelled = [dataclasses.replace(row, label=None) for row in rows]
    assert table_of(unlabelled) == unlabelled
    assert table_of([]) == [] and not len(table_of([]).rows)


def test_example_table_statistics_equal_those_of_a_list(table_of):
    rows, others = examples(50), [*examples(9), dataclasses.replace(examples(1)[0], sentence=" TEXT  0 Ä😀")]
    table = table_of(rows)
    for names in (("sentence",), ("id", "target"), ("context",)):
        assert distinct(table, *names) == distinct(rows, *names)
    assert label_shares(table, TASK) == [17 / 50, 17 / 50, 16 / 50]
    assert label_shares(rows, TASK) == [17 / 50, 17 / 50, 16 / 50]
    assert describe_examples("train", table, TASK) == describe_examples("train", rows, TASK)
    assert "9 sentences, 25 groups, 50 rows" in describe_examples("train", table, TASK)
    assert count_overlap({"a": table, "b": table_of(others)}) == {("a", "b"): 2}
    assert count_overlap({"a": rows, "b": others}) == {("a", "b"): 2}
    chosen = table.where(lambda texts: [text.startswith("text 1 ") for text in texts], "sentence")
    assert chosen == [row for row in rows if row.sentence.startswith("text 1 ")]


def test_example_table_temporary_file_is_unlinked(table_of, tmp_path):
    table = table_of(examples(50))
    assert not [*tmp_path.iterdir()]
    assert table[49] == examples(50)[49]


def test_example_table_unwritable_file_raises(monkeypatch, tmp_path):
    monkeypatch.setattr(arrow_rows, "IN_MEMORY", 400)
    monkeypatch.setattr(arrow_rows.blocks, "__defaults__", (7,))
    monkeypatch.setattr(arrow_rows.tempfile, "tempdir", str(tmp_path / "gone"))
    with raises("InputError: gone...cannot be created (No such file...TMPDIR"):
        ExampleTable(examples(50))


def test_example_table_keeps_errors_of_the_data(table_of):
    def rows():
        yield from examples(50)
        raise DataError("reviews.csv", 52, "unknown label 'x'")

    with pytest.raises(DataError) as caught:
        table_of(rows())
    assert (str(caught.value), caught.value.line) == ("reviews.csv:52: unknown label 'x'", 52)


def test_checked_finds_bad_rows_in_order(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,aspect,label,id\na,x,good,1\na,y,bad,1\na,x,bad,1\n")
    with raises("DataError: id '1' already has a row for 'x' on line 2") as caught:
        load_data(path, ("train",), DataOptions(id_column="id"))
    assert caught.value.line == 4


@pytest.fixture
def encoding():
    return Encoding(train_tokenizer([row.sentence for row in examples(50)], 60), ("food", "room"), 8)


def test_feature_file_equals_encode_examples(tmp_path, monkeypatch, encoding):
    monkeypatch.setattr(arrow_rows.blocks, "__defaults__", (7,))
    rows, path = examples(50), tmp_path / "rows.arrow"
    features, cut = encode_examples(rows, encoding.tokenizer, ("food", "room"), 8)
    assert write_features(path, rows, encoding) == cut
    table = read_features(path)
    assert [*table] == features and table[13] == features[13]
    assert table.lengths().tolist() == [len(feature["input_ids"]) for feature in features]
    assert table.labels().tolist() == [row.label for row in rows]


def test_write_rows_is_atomic(tmp_path):
    schema = pa.schema([("n", "int64")])

    def batches():
        yield pa.record_batch([[1, 2]], schema)
        raise KeyError("stopped")

    with pytest.raises(KeyError):
        write_rows(tmp_path / "rows", batches(), schema)
    assert not [*tmp_path.iterdir()]
    write_rows(tmp_path / "rows", [pa.record_batch([[1, 2]], schema), pa.record_batch([[3]], schema)], schema)
    assert ArrowRows(map_rows(tmp_path / "rows")[0]).column("n").tolist() == [1, 2, 3]
    assert ArrowRows(gather_rows([], schema)).column("n").tolist() == []
    (tmp_path / "other").write_text("no Arrow")
    with pytest.raises(ValueError):
        map_rows(tmp_path / "other")


NUMBERS = pa.schema([("n", "int64")])


def numbers(*batches):
    return [pa.record_batch([list(batch)], NUMBERS) for batch in batches]


def test_arrow_rows_are_a_sequence_over_batches():
    rows = ArrowRows(numbers((1, 2), (), (3,)))
    assert len(rows) == 3
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert [rows[place]["n"] for place in (0, 1, 2, -1, -3)] == [1, 2, 3, 3, 1]
    assert rows[1:] == [{"n": 2}, {"n": 3}]
    assert rows[::-1] == [{"n": 3}, {"n": 2}, {"n": 1}]


@pytest.mark.parametrize("index", [3, -4])
def test_arrow_rows_index_out_of_range_raises(index):
    with raises(f"IndexError: index: expected -3 to 2 for 3 rows, got {index}"):
        ArrowRows(numbers((1, 2), (3,)))[index]


def test_arrow_rows_without_rows_raise():
    with raises("IndexError: index: expected none, because there are no rows, got 0"):
        ArrowRows([])[0]


def test_arrow_rows_column_without_batches_is_int64():
    assert ArrowRows([]).column("n").dtype == np.int64


def test_write_rows_to_a_missing_folder_raises(tmp_path):
    with raises(f"InputError: {tmp_path / 'gone' / 'rows'}: cannot be written (No such file or directory)"):
        write_rows(tmp_path / "gone" / "rows", numbers((1, 2)), NUMBERS)


def test_map_rows_of_a_missing_file_raises(tmp_path):
    with raises("FileNotFoundError: ...rows"):
        map_rows(tmp_path / "rows")


def test_map_rows_returns_batches_and_metadata(tmp_path):
    schema = NUMBERS.with_metadata({"made": "here"})
    write_rows(tmp_path / "rows", [batch.cast(schema) for batch in numbers((1, 2), (3,))], schema)
    batches, metadata = map_rows(tmp_path / "rows")
    assert [batch.to_pydict() for batch in batches] == [{"n": [1, 2]}, {"n": [3]}]
    assert metadata == {b"made": b"here"}


@pytest.mark.parametrize("limit", [1 << 20, 20])
def test_gather_rows_are_equal_in_memory_and_in_a_file(limit, monkeypatch, tmp_path):
    monkeypatch.setattr(arrow_rows, "IN_MEMORY", limit)
    monkeypatch.setattr(arrow_rows.tempfile, "tempdir", str(tmp_path))
    found = gather_rows(numbers((1, 2), (3, 4), (5,)), NUMBERS)
    assert [batch.to_pydict() for batch in found] == [{"n": [1, 2]}, {"n": [3, 4]}, {"n": [5]}]
    assert not [*tmp_path.iterdir()]


def test_gather_rows_on_a_full_disk_names_tmpdir(monkeypatch, tmp_path):
    def full(path, batches, schema):
        raise InputError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(arrow_rows, "IN_MEMORY", 20)
    monkeypatch.setattr(arrow_rows.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(arrow_rows, "write_rows", full)
    with raises("InputError: ...rows.arrow: cannot be written (No space left on device); large data needs...TMPDIR"):
        gather_rows(numbers((1, 2), (3, 4)), NUMBERS)
    assert not [*tmp_path.iterdir()]


def test_large_dev_is_sampled_by_groups():
    rows = examples(4000)
    assert encoded_splits.evaluation_sample(rows, 4000, 0) is rows
    chosen = encoded_splits.evaluation_sample(rows, 1000, 0)
    assert 900 < len(chosen) < 1100
    assert chosen == sorted(chosen, key=lambda row: row.line)
    ids = {row.id for row in chosen}
    assert chosen == [row for row in rows if row.id in ids]
    assert chosen == encoded_splits.evaluation_sample(rows, 1000, 0)
    assert chosen != encoded_splits.evaluation_sample(rows, 1000, 1)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_drawn_rows_do_not_depend_on_storage(balance):
    labels = torch.tensor([0] * 70_000 + [1] * 10)
    drawn = [*EpochSampler(labels.numpy(), balance, seed=3)]
    assert drawn == [*EpochSampler(labels.tolist(), balance, seed=3)]
    assert len(drawn) == len(labels) and all(isinstance(number, int) for number in drawn)
