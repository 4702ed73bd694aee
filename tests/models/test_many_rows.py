"""Data of many rows: examples and features in columns, which give what lists of them gave."""

import dataclasses

import pyarrow as pa
import pytest
import torch
from qacg_models.data import DataError, DataOptions, Example, ExampleTable, arrow_rows, load_data
from qacg_models.data.arrow_rows import ArrowRows, gather_rows, map_rows, write_rows
from qacg_models.data.description import count_overlap, describe_examples, label_shares
from qacg_models.data.example_table import distinct
from qacg_models.data.feature_table import feature_table
from qacg_models.data.task import Task
from qacg_models.data.tokenization import encode_examples, train_tokenizer
from qacg_models.errors import InputError
from qacg_models.training import encoded_splits
from qacg_models.training.sampling import EpochSampler

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


def test_a_table_is_the_sequence_it_was_made_of(table_of):
    rows = examples(50)
    table = table_of(iter(rows))
    assert len(table.rows.batches) == 8
    assert table == rows and [*table] == rows and table[3:20:4] == rows[3:20:4]
    assert [table[n] for n in (0, 6, 7, 49, -1, -50)] == [rows[n] for n in (0, 6, 7, 49, -1, -50)]
    for outside in (50, -51):
        with pytest.raises(IndexError):
            table[outside]
    assert table != rows[:-1] and table != [*rows[:-1], rows[0]] and table != 3
    unlabelled = [dataclasses.replace(row, label=None) for row in rows]
    assert table_of(unlabelled) == unlabelled
    assert table_of([]) == [] and not len(table_of([]).rows)


def test_statistics_of_a_table_are_those_of_a_list(table_of):
    rows, others = examples(50), [*examples(9), dataclasses.replace(examples(1)[0], sentence=" TEXT  0 Ä😀")]
    table = table_of(rows)
    for names in (("sentence",), ("id", "target"), ("context",)):
        assert distinct(table, *names) == distinct(rows, *names)
    assert label_shares(table, TASK) == label_shares(rows, TASK) == [17 / 50, 17 / 50, 16 / 50]
    assert describe_examples("train", table, TASK) == describe_examples("train", rows, TASK)
    assert "9 sentences, 25 groups, 50 rows" in describe_examples("train", table, TASK)
    assert (
        count_overlap({"a": table, "b": table_of(others)}) == count_overlap({"a": rows, "b": others}) == {("a", "b"): 2}
    )
    chosen = table.where(lambda texts: [text.startswith("text 1 ") for text in texts], "sentence")
    assert chosen == [row for row in rows if row.sentence.startswith("text 1 ")]


def test_a_temporary_file_has_no_name_once_it_is_read(table_of, tmp_path):
    table = table_of(examples(50))
    assert not [*tmp_path.iterdir()]
    assert table[49] == examples(50)[49]


def test_a_temporary_file_that_cannot_be_written_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(arrow_rows, "IN_MEMORY", 400)
    monkeypatch.setattr(arrow_rows.blocks, "__defaults__", (7,))
    monkeypatch.setattr(arrow_rows.tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InputError, match=r"gone.*cannot be made .No such file.*TMPDIR"):
        ExampleTable(examples(50))


def test_bad_rows_are_found_one_after_the_other(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,aspect,label,id\na,x,good,1\na,y,bad,1\na,x,bad,1\n")
    with pytest.raises(DataError, match="id '1' already has a row for 'x' on line 2") as caught:
        load_data(path, ("train",), DataOptions(id_column="id"))
    assert caught.value.line == 4


def test_features_in_a_file_are_those_of_encode_examples(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow_rows.blocks, "__defaults__", (7,))
    rows = examples(50)
    tokenizer = train_tokenizer([row.sentence for row in rows], 60)
    told, path = [], tmp_path / "features.arrow"

    def made(contexts=("food", "room"), length=8):
        return feature_table(path, rows, tokenizer, contexts, length, told_cut=told.append)

    features, cut = encode_examples(rows, tokenizer, ("food", "room"), 8)
    table = made()
    assert [*table] == features and table[13] == features[13]
    assert told == ([cut] if cut else [])
    assert table.lengths().tolist() == [len(feature["input_ids"]) for feature in features]
    assert table.labels().tolist() == [row.label for row in rows]
    written = path.stat().st_mtime_ns
    assert [*made()] == features and path.stat().st_mtime_ns == written
    # Of other choices, or damaged, it is made anew.
    assert [*made(None)] == encode_examples(rows, tokenizer, None, 8)[0]
    assert path.stat().st_mtime_ns != written
    path.write_bytes(path.read_bytes()[:-40])
    assert [*made()] == features


def test_a_file_of_rows_is_whole_or_not_there(tmp_path):
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


def test_a_large_dev_is_sampled_by_whole_groups():
    rows = examples(4000)
    assert encoded_splits.evaluation_sample(rows, 4000, 0) is rows
    chosen = encoded_splits.evaluation_sample(rows, 1000, 0)
    assert 900 < len(chosen) < 1100 and chosen == sorted(chosen, key=lambda row: row.line)
    ids = {row.id for row in chosen}
    assert chosen == [row for row in rows if row.id in ids]
    assert chosen == encoded_splits.evaluation_sample(rows, 1000, 0) != encoded_splits.evaluation_sample(rows, 1000, 1)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_rows_are_drawn_as_ever_from_an_array(balance):
    labels = torch.tensor([0] * 70_000 + [1] * 10)
    drawn = [*EpochSampler(labels.numpy(), balance, seed=3)]
    assert drawn == [*EpochSampler(labels.tolist(), balance, seed=3)]
    assert len(drawn) == len(labels) and all(isinstance(number, int) for number in drawn)
