import re
from collections import Counter

import pytest
from errors import raises
from qacg_models.data import (
    DataError,
    check_contexts,
    count_overlap,
    describe,
    label_shares,
    load_data,
    load_file,
    sample_directory,
)
from qacg_models.data.task import SENTIHOOD


def read_sentihood(path):
    return load_file(path, SENTIHOOD)


def group(row_id="7", sentence="location - 1 is cheap", target="location - 1", **labels):
    """The four rows of a group; labels by aspect with _ for a space, None where not given."""
    return [
        [row_id, sentence, f"{target} - {aspect}", labels.get(aspect.replace(" ", "_"), "None")]
        for aspect in SENTIHOOD.aspects
    ]


def test_sentihood_tsv_reads_fields_and_label_none(write_split):
    path = write_split(group(price="Positive", transit_location="Negative"))
    rows = read_sentihood(path)
    assert [(row.aspect, row.label, row.line) for row in rows] == [
        ("general", 0, 2),
        ("price", 1, 3),
        ("safety", 0, 4),
        ("transit location", 2, 5),
    ]
    assert {row.target for row in rows} == {"location - 1"}
    assert rows[0].group == ("7", "location - 1")
    assert label_shares(rows, SENTIHOOD) == [0.5, 0.25, 0.25]


def test_sentihood_tsv_columns_in_any_order(write_split):
    swapped = [fields[::-1] for fields in group(price="Positive")]
    path = write_split(swapped, header=("label", "sentence2", "sentence1", "id"))
    assert read_sentihood(path)[1].sentence == "location - 1 is cheap"
    assert read_sentihood(path)[1].label == 1


def test_sentihood_tsv_accepts_bom_crlf_and_quotes(tmp_path):
    lines = ["id\tsentence1\tsentence2\tlabel"]
    lines += ["\t".join(fields) for fields in group(sentence='location - 1 is "cheap , he said')]
    path = tmp_path / "train.tsv"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode() + b"\r\n\r\n")
    assert {row.sentence for row in read_sentihood(path)} == {'location - 1 is "cheap , he said'}


def replaced(rows, index, column, value):
    copy = [list(fields) for fields in rows]
    copy[index][column] = value
    return copy


FOUR = group()
BAD_ROWS = [
    pytest.param(
        replaced(FOUR, 2, 3, "none"), 4, "label: expected one of None, Positive, .*got 'none'", id="label case"
    ),
    pytest.param(replaced(FOUR, 1, 3, ""), 3, "label: expected .*, got ''", id="label empty"),
    pytest.param(replaced(FOUR, 3, 2, "location - 1 - parking"), 5, "context: expected .*got .*parking", id="aspect"),
    pytest.param(replaced(FOUR, 0, 2, "price"), 2, "context: expected .*, got 'price'", id="context without target"),
    pytest.param([*FOUR[:3], [*FOUR[3], "x"]], 5, "expected 4 tab-separated fields .*, got 5", id="five fields"),
    pytest.param([FOUR[0], FOUR[1][:3]], 3, "fields as in the header, got 3", id="three fields"),
    pytest.param(replaced(FOUR, 1, 0, ""), 3, "empty id", id="id"),
    pytest.param(replaced(FOUR, 1, 1, "  "), 3, "empty sentence1", id="sentence"),
    pytest.param([*FOUR, FOUR[1]], 6, "a row for 'location - 1 - price' on line 3", id="repeated"),
    pytest.param(replaced(FOUR, 2, 1, "other"), 4, "another sentence on line 2", id="two sentences"),
    pytest.param([*group("6"), *FOUR[:3]], 6, "expected 4 rows, got 3; missing: transit location", id="incomplete"),
]


@pytest.mark.parametrize("rows,line,reason", BAD_ROWS)
def test_sentihood_tsv_bad_row_raises(write_split, rows, line, reason):
    path = write_split(rows)
    with pytest.raises(DataError, match=reason) as caught:
        read_sentihood(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    "header,reason",
    [
        (("id", "sentence1", "aspect", "label"), "got one without sentence2"),
        (("id", "sentence1", "sentence2", "label", "note"), "got also note"),
        (("id", "sentence1", "sentence2", "label", "id"), "a column twice"),
        (("id,sentence1,sentence2,label",), "tab separated"),
    ],
)
def test_sentihood_tsv_bad_header_raises(write_split, header, reason):
    path = write_split(FOUR, header=header)
    with pytest.raises(DataError, match=reason) as caught:
        read_sentihood(path)
    assert caught.value.line == 1


def test_sentihood_tsv_not_utf8_raises(tmp_path):
    path = tmp_path / "train.tsv"
    path.write_bytes(b"id\tsentence1\tsentence2\tlabel\n7\tcaf\xe9\tlocation - 1 - price\tNone\n")
    with raises("DataError: :2: is not UTF-8 (byte 6"):
        read_sentihood(path)


@pytest.mark.parametrize("content", ["", "id\tsentence1\tsentence2\tlabel\n"])
def test_sentihood_tsv_empty_file_raises(tmp_path, content):
    path = tmp_path / "train.tsv"
    path.write_text(content)
    with raises("DataError: has no rows"):
        read_sentihood(path)


def test_load_data_bad_folder_raises(tmp_path, write_split):
    with raises("DataError: no such folder"):
        load_data(tmp_path / "nowhere")
    with raises("DataError: expected data in a known format"):
        load_data(tmp_path)
    write_split(FOUR + group("8", "another"), "train.tsv")
    with pytest.raises(DataError, match=re.escape("has no test.tsv or test_NLI_M.tsv")):
        load_data(tmp_path, ("train", "test"))
    (tmp_path / "train.csv").write_text("text,aspect,label\n")
    with raises("DataError: has sentihood-tsv and columns; select one by --format"):
        load_data(tmp_path, ("train",))
    write_split(FOUR, "train_NLI_M.tsv")
    with raises("DataError: has both train.tsv and train_NLI_M.tsv"):
        load_data(tmp_path, ("train",))


def test_contexts_are_those_of_training_in_order(tmp_path, write_split):
    rows = group("1", target="location - 10") + group("2", target="location - 2")
    write_split(rows[::-1], "train_NLI_M.tsv")
    dev = write_split(group("3", target="location - 2"), "dev.tsv")
    dataset = load_data(tmp_path, ("train", "dev"))
    targets = ("location - 2", "location - 10")
    assert dataset.contexts == tuple(f"{target} - {name}" for target in targets for name in SENTIHOOD.aspects)

    write_split(group("3", target="location - 3"), "dev.tsv")
    with raises("DataError: expected one of the training contexts (...), got 'location - 3 - general'") as caught:
        load_data(tmp_path, ("train", "dev"))
    assert (caught.value.path, caught.value.line) == (dev, 2)
    check_contexts(dataset.splits["dev"], dataset.contexts, dev)


def test_count_overlap_counts_distinct_sentences(write_split):
    train = read_sentihood(write_split(group("1", "a") + group("2", "b") + group("3", "b", "location - 2")))
    test = read_sentihood(write_split(group("1", "b") + group("2", "c"), "test.tsv"))
    assert count_overlap({"train": train, "dev": test[4:], "test": test}) == {
        ("train", "dev"): 0,
        ("train", "test"): 1,
        ("dev", "test"): 1,
    }


def test_sample_resembles_sentihood():
    dataset = load_data(sample_directory())
    sentences = {row.sentence for rows in dataset.splits.values() for row in rows}
    assert len(sentences) >= 400
    assert set(dataset.overlap.values()) == {0}
    assert "sentences shared between splits: none" in describe(dataset)
    assert len(dataset.contexts) == 8
    for split, rows in dataset.splits.items():
        assert 0.75 < label_shares(rows, dataset.task)[0] < 0.85, split
        assert all(row.target in row.sentence for row in rows), split
    labels = Counter((row.aspect, row.label) for row in dataset.splits["test"])
    assert min(labels[aspect, label] for aspect in SENTIHOOD.aspects for label in (1, 2)) >= 8


def test_sample_has_no_sentence_of_sentihood(sentihood):
    def key(sentence):
        return re.sub(r"[^a-z0-9]", "", sentence.lower())

    real = {key(row.sentence) for rows in load_data(sentihood).splits.values() for row in rows}
    own = {row.sentence for rows in load_data(sample_directory()).splits.values() for row in rows}
    assert not [sentence for sentence in own if key(sentence) in real]


def test_sentihood_has_its_published_sizes(sentihood):
    dataset = load_data(sentihood)
    sizes = {split: len(rows) for split, rows in dataset.splits.items()}
    assert sizes == {"train": 15008, "dev": 3748, "test": 7516}
    assert Counter(row.label for row in dataset.splits["test"]) == {0: 6300, 1: 810, 2: 406}
    assert dataset.overlap["train", "test"] == 36
    assert len(dataset.contexts) == 8
