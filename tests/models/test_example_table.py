"""Tables of examples and of features equal lists of them."""

import dataclasses

import pytest
from errors import raises
from qacg_models.sentiment.dataset import Dataset, describe_examples, label_shares, load_data
from qacg_models.sentiment.encoding import (
    FeatureTable,
    encode_examples,
    train_tokenizer,
)
from qacg_models.sentiment.example import Example, ExampleTable, Task, distinct, frame_of
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.training.rows import evaluation_sample

TASK = Task("own", ("none", "good", "bad"), ("food", "room"), has_absent=True)


def examples(count):
    aspects = ("food", "room")
    return [
        Example(f"id {n // 2}", f"text {n // 6} ä😀", aspects[n % 2], "", aspects[n % 2], n % 3, 2 + n)
        for n in range(count)
    ]


def table_of(rows):
    return ExampleTable(frame_of(rows))


def test_example_table_has_its_examples():
    rows = examples(5000)
    table = table_of(rows)
    assert [*table] == rows and [*table_of([])] == []
    assert table[3:20:4] == rows[3:20:4]
    assert [table[n] for n in (0, 6, 4999, -1, -5000)] == [rows[n] for n in (0, 6, 4999, -1, -5000)]
    for index in (5000, -5001):
        with pytest.raises(IndexError):
            table[index]


def test_example_table_statistics_are_those_of_its_rows():
    rows, others = examples(50), [*examples(9), dataclasses.replace(examples(1)[0], sentence=" TEXT  0 Ä😀")]
    table = table_of(rows)
    assert distinct(table, "id", "target") == distinct(rows, "id", "target")
    assert label_shares(table, TASK) == label_shares(rows, TASK) == [17 / 50, 17 / 50, 16 / 50]
    assert "9 sentences, 25 groups, 50 rows" in describe_examples("train", table, TASK)
    dataset = Dataset(TASK, {"a": rows, "b": table_of(others)}, {}, ("",), (), DataOptions())
    assert dataset.overlap == {("a", "b"): 2}


def test_repeated_aspect_of_an_id_names_both_lines(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("text,aspect,label,id\na,x,good,1\na,y,bad,1\na,x,bad,1\n")
    with raises("DataError: train.csv:4: id '1' already has a row for 'x' on line 2"):
        load_data(path, ("train",), DataOptions(id_column="id"))


@pytest.mark.parametrize("contexts", [None, ("food", "room")])
def test_feature_table_equals_encode_examples(contexts):
    rows = examples(5000)
    tokenizer = train_tokenizer([row.sentence for row in rows[:50]], 60)
    features, cut = encode_examples(rows, tokenizer, contexts, 8)
    table = FeatureTable(rows, tokenizer, contexts, 8)
    assert table.truncated == cut
    assert [*table] == features
    assert table[-1] == features[-1] and table[1:5] == features[1:5]
    assert table.lengths().tolist() == [len(feature["input_ids"]) for feature in features]
    assert table.labels.tolist() == [row.label for row in rows]
    numbers = {}
    expected = [numbers.setdefault(tuple(feature["input_ids"]), len(numbers)) for feature in features]
    assert table.texts().tolist() == expected


def test_large_dev_is_sampled_by_groups():
    rows = examples(4000)
    assert evaluation_sample(rows, 4000, 0) is rows
    chosen = evaluation_sample(rows, 1000, 0)
    assert 900 < len(chosen) < 1100
    ids = {row.id for row in chosen}
    assert chosen == [row for row in rows if row.id in ids] == evaluation_sample(rows, 1000, 0)
    assert chosen != evaluation_sample(rows, 1000, 1)
