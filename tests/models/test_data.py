"""Data formats: SentiHood, SemEval, tables of your own; bad rows, splits and the bundled sample."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from errors import error_cases, raises
from qacg_models.sentiment.dataset import (
    check_contexts,
    describe,
    label_shares,
    load_data,
    load_file,
    sample_reviews,
    split_dev,
)
from qacg_models.sentiment.example import SEMEVAL, SENTIHOOD
from qacg_models.sentiment.formats import find_format, sentihood_tokens
from qacg_models.sentiment.options import DataOptions


def read_sentihood(path):
    return load_file(path, SENTIHOOD)


def group(row_id="7", sentence="location - 1 is cheap", target="location - 1", **labels):
    """The four rows of a group; labels by aspect (_ for a space), the label None by default."""
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
BAD_ROWS = {
    "4: label: expected one of None, Positive, ...got 'none'": replaced(FOUR, 2, 3, "none"),
    "5: context: expected ...got ...parking": replaced(FOUR, 3, 2, "location - 1 - parking"),
    "2: context: expected ..., got 'price'": replaced(FOUR, 0, 2, "price"),
    "5: expected 4 tab-separated fields as in the header, got 5": [*FOUR[:3], [*FOUR[3], "x"]],
    "3: expected 4 tab-separated fields as in the header, got 3": [FOUR[0], FOUR[1][:3]],
    "3: has an empty id": replaced(FOUR, 1, 0, ""),
    "3: has an empty sentence1": replaced(FOUR, 1, 1, "  "),
    "6: ...a row for 'location - 1 - price' on line 3": [*FOUR, FOUR[1]],
    "4: ...a different sentence on line 2": replaced(FOUR, 2, 1, "other"),
    "6: ...a row for each of 4 aspects, got 3 (the first on this line); add rows for transit location": [
        *group("6"),
        *FOUR[:3],
    ],
}


@error_cases(BAD_ROWS)
def test_sentihood_tsv_bad_row_raises(write_split, error, given):
    path = write_split(given)
    with raises(f"DataError: {path}:{error}"):
        read_sentihood(path)


def test_sentihood_tsv_bad_header_raises(write_split):
    with raises("DataError: tsv:1: header: expected id, ..., got id, sentence1, sentence2, label, note; or pass"):
        read_sentihood(write_split(FOUR, header=("id", "sentence1", "sentence2", "label", "note")))


def test_load_data_bad_folder_raises(tmp_path, write_split):
    with raises("DataError: no such folder"):
        load_data(tmp_path / "nowhere")
    with raises("DataError: expected data in a known format"):
        load_data(tmp_path)
    write_split(FOUR + group("8", "another"), "train.tsv")
    with raises("DataError: has no test.tsv or test_NLI_M.tsv"):
        load_data(tmp_path, ("train", "test"))
    (tmp_path / "train.csv").write_text("text,aspect,label\n")
    with raises("DataError: has data in the formats sentihood-tsv and columns; select one with --format"):
        load_data(tmp_path, ("train",))
    write_split(FOUR, "train_NLI_M.tsv")
    with raises("DataError: expected one file for train, got train.tsv and train_NLI_M.tsv"):
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


def test_sentihood_has_its_published_sizes(sentihood):
    dataset = load_data(sentihood)
    sizes = {split: len(rows) for split, rows in dataset.splits.items()}
    assert sizes == {"train": 15008, "dev": 3748, "test": 7516}
    assert Counter(row.label for row in dataset.splits["test"]) == {0: 6300, 1: 810, 2: 406}
    assert dataset.overlap == {("train", "dev"): 25, ("train", "test"): 36, ("dev", "test"): 5}
    assert len(dataset.contexts) == 8
    # The original texts differ in capitals and spaces, so fewer are equal.
    texts = {
        split: {item["text"] for item in json.loads((sentihood / f"sentihood-{split}.json").read_text())}
        for split in ("train", "dev", "test")
    }
    assert len(texts["train"] & texts["test"]) == 21
    assert len(texts["train"] & texts["dev"]) == 13


def content(rows):
    """Counts examples without their line numbers; several spaces count as one."""
    return Counter((row.id, " ".join(row.sentence.split()), row.context, row.label) for row in rows)


def test_sentihood_json_and_pairs_give_the_same_examples(sentihood):
    pairs, original = (
        load_data(sentihood, options=DataOptions(format=f"sentihood-{form}")) for form in ("tsv", "json")
    )
    assert original.contexts == pairs.contexts
    assert original.overlap == pairs.overlap
    for split in ("train", "dev", "test"):
        assert content(original.splits[split]) == content(pairs.splits[split])
    assert load_data(sentihood, ("dev",)).files["dev"] == (sentihood / "dev_NLI_M.tsv",)


def test_semeval_xml_and_pairs_give_the_same_examples(semeval):
    pairs, original = (load_data(semeval, options=DataOptions(format=f"semeval-{form}")) for form in ("csv", "xml"))
    assert {split: len(rows) for split, rows in pairs.splits.items()} == {"train": 13685, "dev": 1535, "test": 4000}
    for split in ("train", "dev", "test"):
        got, expected = ([replace(row, line=0) for row in data.splits[split]] for data in (original, pairs))
        assert got == expected
    assert pairs.overlap["train", "dev"] == 0
    labels = Counter(SEMEVAL.labels[row.label] for row in pairs.splits["test"])
    assert labels == {"none": 2975, "positive": 657, "negative": 222, "neutral": 94, "conflict": 52}
    assert any("3- and 2-class accuracy" in line for line in describe(pairs))


def write_json(path, items):
    path.write_text(json.dumps(items, indent=1), encoding="utf-8")
    return path


def opinion(sentiment="Positive", aspect="price", target="LOCATION1"):
    return {"sentiment": sentiment, "aspect": aspect, "target_entity": target}


NOT_OURS = opinion("Negative", "live")


def test_sentihood_json_reads_a_worked_example(tmp_path):
    items = [
        {"id": 3, "text": "LOCATION2 isn't LOCATION1's match (cheap)", "opinions": [opinion(), NOT_OURS]},
        {"id": 4, "text": "Quiet .", "opinions": [opinion("Negative", "transit-location", "LOCATION2")]},
    ]
    write_json(tmp_path / "sentihood-test.json", items)
    rows = load_data(tmp_path, ("test",)).splits["test"]
    assert [(row.id, row.target) for row in rows[::4]] == [
        ("3", "location - 1"),
        ("3", "location - 2"),
        ("4", "location - 2"),
    ]
    assert [row.label for row in rows] == [0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    assert rows[0].sentence == "location - 2 is n't location - 1 ' s match ( cheap )"
    assert [row.line for row in rows[::4]] == [2, 2, 18]


@pytest.mark.parametrize(
    "text,expected",
    [
        ('He said "go", twice', "he said `` go ' ' , twice"),
        ("It's 9:30... I cannot", "it ' s 9:30 ... i can not"),
        ("SE11. Near the O'Neills'", "se11 . near the o'neills '"),
        ("LOCATION1/LOCATION2 cost 450,000.", "location1/location2 cost 450,000 ."),
    ],
)
def test_sentihood_json_text_is_tokenised_like_the_pairs(text, expected):
    assert sentihood_tokens(text) == expected


TWO = {"id": 1, "text": "x", "opinions": [opinion(), opinion("Negative")]}
NO_CONTENT = {"id": 1, "text": "x", "opinions": [{"aspect": "price"}]}
BAD_JSON = {
    "sentihood-test.json:2: expected an object with id, text and opinions, ...got {'id': 1}": '[\n{"id": 1}]',
    "2: expected an object with id, text": '[\n{"id": 1, "text": " ", "opinions": []}]',
    "2: expected an object ... each with target_entity, aspect, sentiment, got": f"[\n{json.dumps(NO_CONTENT)}]",
    "1: expected an object ... got {'id': 1, 'text': 'x', 'opinions': ''}": '[{"id": 1, "text": "x", "opinions": ""}]',
    "2: ...aspect and sentiment of SentiHood": json.dumps([TWO | {"opinions": [opinion(aspect="parking")]}], indent=1),
    "2: ...expected one sentiment for 'price' of LOCATION1, got two": f"[\n{json.dumps(TWO)}]",
    "3: ...expected , or ] after an item": '[\n{"id": 1, "text": "LOCATION1", "opinions": []}\n{"a": 2}]',
    "2: is not JSON": '[\n{"a": }]',
    "2: expected the end of the file after the array": "[]\n[]",
    "sentihood-test.json: has no rows": "[]",
}


@error_cases(BAD_JSON)
def test_sentihood_json_bad_content_raises(tmp_path, error, given):
    (tmp_path / "sentihood-test.json").write_text(given)
    with raises(f"DataError: {error}"):
        load_data(tmp_path, ("test",))


XML = """<?xml version="1.0" encoding="UTF-8"?>
<sentences>
  <sentence id="7"><text>Great sushi &amp; rude staff.</text>
    <aspectTerms><aspectTerm term="sushi" polarity="positive" from="6" to="11"/></aspectTerms>
    <aspectCategories>
      <aspectCategory category="food" polarity="positive"/>
      <aspectCategory category="anecdotes/miscellaneous" polarity="conflict"/>
    </aspectCategories>
  </sentence>
</sentences>"""


def test_semeval_xml_reads_a_worked_example(tmp_path):
    (tmp_path / "Restaurants_Test_Gold.xml").write_text(XML)
    rows = load_data(tmp_path, ("test",)).splits["test"]
    assert [(row.aspect, SEMEVAL.labels[row.label]) for row in rows] == [
        ("price", "none"),
        ("anecdotes", "conflict"),
        ("food", "positive"),
        ("ambience", "none"),
        ("service", "none"),
    ]
    assert {(row.sentence, row.line) for row in rows} == {("Great sushi & rude staff.", 3)}


@pytest.mark.parametrize(
    "old,new,reason",
    [
        ('category="food"', 'category="decor"', "6: context: expected ..., got 'decor'"),
        ('polarity="conflict"', 'polarity="mixed"', "7: label: expected ..., got 'mixed'"),
        ("anecdotes/miscellaneous", "food", "7: sentence '7': expected one polarity for 'food', got two"),
        ("Great sushi &amp; rude staff.", " ", "3: id '7' has no text"),
        ("</sentences>", "", "10: is not XML"),
        ("UTF-8", "shift_jis", " expected XML in UTF-8, got another encoding"),
    ],
)
def test_semeval_xml_bad_content_raises(tmp_path, old, new, reason):
    (tmp_path / "test.xml").write_text(XML.replace(old, new))
    with raises(f"DataError: test.xml:{reason}"):
        load_data(tmp_path, ("test",))


ROWS = [
    ("The pasta was superb, the waiter rude", "food", "good"),
    ("The pasta was superb, the waiter rude", "service", "bad"),
    ("Fine", "food", "good"),
    ("Fine", "food", "None"),
    ('He said "no"\nand left', "service 10", "bad"),
    ('He said "no"\nand left', "service 2", "None"),
]


def write_own(folder, form, rows=ROWS, names=("text", "aspect", "label"), split="train"):
    records = [dict(zip(names, row)) for row in rows]
    path = folder / f"{split}.{form}"
    if form == "csv":
        quoted = [",".join('"' + str(cell).replace('"', '""') + '"' for cell in row) for row in (names, *rows)]
        path.write_text("\n".join(quoted) + "\n", encoding="utf-8")
    elif form == "json":
        write_json(path, records)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "form,lines", [("csv", [2, 3, 4, 5, 6, 8]), ("json", [2, 7, 12, 17, 22, 27]), ("jsonl", [1, 2, 3, 4, 5, 6])]
)
def test_own_tables_give_their_rows(tmp_path, form, lines):
    dataset = load_data(write_own(tmp_path, form), ("train",), DataOptions(dev_fraction=0.34))
    assert dataset.task.labels == ("None", "bad", "good")
    assert dataset.task.has_absent
    assert dataset.contexts == ("food", "service", "service 2", "service 10")
    whole = load_file(tmp_path / f"train.{form}", dataset.task)
    assert [row.line for row in whole] == lines
    assert [(row.sentence, row.aspect, dataset.task.labels[row.label]) for row in whole] == ROWS
    # Rows with the same text are one sentence until an aspect repeats.
    assert [row.id for row in whole].count(whole[0].id) == 2
    assert len({row.id for row in whole}) == 4


def test_own_table_options_set_columns_and_labels(tmp_path):
    names = ("nr", "review", "place", "topic", "stars")
    rows = [
        (1, "The lake is fine", "lake", "view", 5),
        (1, "The lake is fine", "lake", "noise", 1),
        (2, "Loud", "bar", "noise", 1),
    ]
    write_own(tmp_path, "jsonl", rows, names)
    write_own(tmp_path, "jsonl", rows[2:], names, split="dev")
    options = DataOptions(
        text_column="review",
        aspect_column="topic",
        label_column="stars",
        id_column="nr",
        target_column="place",
        aspects=["noise", "view"],
        labels=("1", "3", "5"),
        absent_label="3",
    )
    dataset = load_data(tmp_path, ("train", "dev"), options)
    assert dataset.task.labels == ("3", "1", "5")
    assert dataset.contexts == ("bar - noise", "bar - view", "lake - noise", "lake - view")
    assert [row.group for row in dataset.splits["train"]] == [("1", "lake"), ("1", "lake"), ("2", "bar")]
    for unknown in ("4", ""):
        with raises(f"InputError: absent_label: expected one of 1, 3, 5, got {unknown!r}"):
            load_data(tmp_path, ("train",), replace(options, absent_label=unknown))
    with raises("InputError: columns: expected distinct names"):
        DataOptions(text_column="label")


@pytest.mark.parametrize("name", ["train.csv.gz", "train.jsonl.GZ", "train.csv.zip"])
def test_find_format_compressed_file_raises(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x1f\x8b")
    for given, chosen in ((path, "auto"), (path, "columns"), (tmp_path, "auto")):
        with raises(f"DataError: {name}: expected a file that is not compressed, got {path.suffix}; decompress it"):
            find_format(given, chosen)


BAD_CSV = {
    "csv: has no rows": "",
    "csv:1: columns: expected 'label', got 'text', 'aspect'; pass another name with --label-column": "text,aspect\n",
    "train.csv: has no rows": "text;aspect;label\n",
    "csv:1: columns: expected 'aspect', got 'text', 'topic', 'label'": "text;topic;label\n",
    "csv:1: columns: expected each name once, got 'label' more than once": "text,aspect,label,label\n",
    "csv:2: expected 3 fields as in the header, got 4; put fields that contain ','": "text,aspect,label\na,b,c,d\n",
    "csv:3: has an empty 'label'": "text,aspect,label\nx,food,good\nx,service,\n",
    "csv:2: is not CSV": 'text,aspect,label\n"x,food,good\n',
    "csv: labels: expected at least 2, got 1": "text,aspect,label\nx,food,good\ny,food,good\n",
}


@error_cases(BAD_CSV)
def test_own_csv_bad_content_raises(tmp_path, error, given):
    (tmp_path / "train.csv").write_text(given)
    with raises(f"DataError: {error}"):
        load_data(tmp_path, ("train",))


@pytest.mark.parametrize("typed", ["\t", "\\t"])
def test_own_csv_from_a_spreadsheet_is_read(tmp_path, typed):
    """The file has a byte order mark, CRLF, tabs, quoted line ends and quotes, and blank lines."""
    text = '\ufefftext\taspect\tlabel\r\n"He said ""no""\r\nand left"\tfood\tbad\r\n\r\nFine\tfood\tgood\r\n'
    (tmp_path / "train.csv").write_bytes(text.encode())
    options = DataOptions(delimiter=typed, dev_fraction=0.5)
    splits = load_data(tmp_path, ("train", "dev"), options).splits
    rows = sorted([*splits["train"], *splits["dev"]], key=lambda row: row.line)
    assert [(row.sentence, row.aspect, row.label, row.line) for row in rows] == [
        ('He said "no"\nand left', "food", 0, 2),
        ("Fine", "food", 1, 5),
    ]


def test_own_csv_wrong_delimiter_names_the_flag(tmp_path):
    (tmp_path / "train.csv").write_text("text\taspect\tlabel\n")
    with raises("DataError: pass the delimiter with --delimiter '\\t'"):
        load_data(tmp_path, ("train",), DataOptions(delimiter=","))


def test_other_splits_unknown_label_or_aspect_raises(tmp_path):
    write_own(tmp_path, "csv")
    for row, reason in (("x,food,great", "label: ...got 'great'"), ("x,decor,good", "aspect: ...got 'decor'")):
        (tmp_path / "test.csv").write_text(f"text,aspect,label\n{row}\n")
        with raises(f"DataError: test.csv:2: {reason}"):
            load_data(tmp_path, ("train", "test"))


def test_split_dev_divides_by_sentence_reproducibly(small_data):
    rows = load_data(small_data, ("train",)).splits["train"]
    train, dev = split_dev(rows, 0.25, seed=3)
    assert not {row.sentence for row in train} & {row.sentence for row in dev}
    place = {row: n for n, row in enumerate(rows)}
    assert sorted([*train, *dev], key=place.get) == [*rows]
    assert len({row.sentence for row in dev}) == round(0.25 * len({row.sentence for row in rows}))
    # Independent of the order of the rows, and different for another seed.
    assert content(split_dev(rows[::-1], 0.25, seed=3)[1]) == content(dev)
    assert content(split_dev(rows, 0.25, seed=4)[1]) != content(dev)
    with raises("InputError: a share that leaves sentences for ..., got 0.01 of 2 ... Set dev_fraction=0.5"):
        split_dev(rows[:8], 0.01, seed=0)
    assert [len(part) for part in split_dev(rows[:8], 0.5, seed=0)] == [4, 4]


def test_load_data_without_dev_divides_the_same_way(small_data, tmp_path):
    (tmp_path / "train.tsv").write_bytes((small_data / "train.tsv").read_bytes())
    whole = load_data(tmp_path, optional=("test",))
    assert list(whole.splits) == ["train", "dev"]
    assert whole.overlap["train", "dev"] == 0
    assert any("no dev file: 10% of the training sentences" in line for line in describe(whole))
    for split, rows in whole.splits.items():
        assert [*load_data(tmp_path, (split,)).splits[split]] == [*rows]


def write_marked(path, rows, header="text,aspect,label,split"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def marks(dataset):
    return {name: [row.line for row in part] for name, part in dataset.splits.items()}


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_split_column_divides_a_file(tmp_path, form):
    labels, cells = ("good", "bad", "good", "bad", "bad"), ("train", "Dev ", "", "test", "train")
    rows = [(text, "food", label, mark) for text, label, mark in zip("abcde", labels, cells)]
    path = write_own(tmp_path, form, rows, ("text", "aspect", "label", "split"), "own")
    first = 2 if form == "csv" else 1
    dataset = load_data(path, optional=("test",))
    lines = {"train": [0, 2, 4], "dev": [1], "test": [3]}
    assert marks(dataset) == {name: [first + place for place in places] for name, places in lines.items()}
    assert "the column 'split' divides the rows: 3 train, 1 dev, 1 test" in describe(dataset)
    assert dataset.dev_origin.startswith("rows that the column 'split' marks as dev")
    assert marks(load_data(path, ("test",))) == {"test": [first + 3]}
    assert set(marks(load_data(path, ("train", "dev")))) == {"train", "dev"}


def test_split_column_drops_training_rows_of_dev_texts(tmp_path):
    rows = ["The soup,food,good,dev", "the  Soup,price,good,train", "Fine,food,bad,", "The soup,price,bad,dev"]
    dataset = load_data(write_marked(tmp_path / "own.csv", rows), ("train", "dev"))
    assert marks(dataset) == {"train": [4], "dev": [2, 5]}
    assert dataset.overlap["train", "dev"] == 0
    assert any(
        "1 training rows left out, because their text is also in dev or test" in line for line in describe(dataset)
    )


def test_split_column_dev_only_target_raises(tmp_path):
    rows = ["a,food,good,,x", "b,food,bad,train,x", "c,food,good,dev,y", "d,food,bad,dev,x"]
    path = write_marked(tmp_path / "own.csv", rows, "text,aspect,label,split,who")
    options = DataOptions(target_column="who")
    with raises("DataError: own.csv:4: context: expected one of the training contexts (x - food), got 'y - food'"):
        load_data(path, ("train", "dev"), options)
    write_marked(path, [row for row in rows if not row.startswith("c")], "text,aspect,label,split,who")
    assert load_data(path, ("train", "dev"), options).contexts == ("x - food",)


NO_TRAIN = "csv: split: expected training rows with texts that are not in dev or test, got none"


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (["x,food,good,", "y,food,bad,validation"], "csv:3: split: expected train, dev or test, got 'validation'"),
        (["x,food,good,dev", "y,food,bad,dev"], NO_TRAIN),
        (["x,a,good,dev", "X,a,good,", "X,a,bad,"], NO_TRAIN),
    ],
)
def test_split_column_bad_values_raise(tmp_path, rows, reason):
    with raises(f"DataError: {reason}"):
        load_data(write_marked(tmp_path / "own.csv", rows), ("train", "dev"))


@pytest.mark.parametrize("marked", ["train", "dev"])
def test_split_column_that_contradicts_the_file_raises(tmp_path, marked):
    for name in ("train", "dev"):
        rows = [f"x,food,good,{name}", "y,food,bad,", f"z,food,bad,{'test' if name == marked else name}"]
        write_marked(tmp_path / f"{name}.csv", rows)
    with raises(f"DataError: {marked}.csv: expected rows of the split {marked}, got rows marked as test in the column"):
        load_data(tmp_path, ("train", "dev"))


def test_split_column_and_dev_options_raise(tmp_path):
    path = write_marked(tmp_path / "own.csv", ["x,food,good,dev", "y,food,bad,train", "z,food,good,train"])
    for choice in ({"dev_fraction": 0.2}, {"dev_seed": 1}):
        with raises("InputError: dev_fraction, dev_seed: expected the defaults"):
            load_data(path, ("train", "dev"), DataOptions(**choice))


def test_split_column_of_a_wide_table_is_no_aspect(tmp_path):
    path = write_marked(
        tmp_path / "wide.csv", ["x,good,bad,dev", "y,bad,good,train", "z,good,bad,train"], "text,food,price,split"
    )
    dataset = load_data(path, ("train", "dev"), DataOptions(wide=True))
    assert dataset.task.aspects == ("food", "price")
    assert {name: len(part) for name, part in dataset.splits.items()} == {"train": 4, "dev": 2}


def runs_of_words(rows, length=5):
    words = [row.sentence.lower().split() for row in rows]
    return {tuple(each[start : start + length]) for each in words for start in range(len(each) - length + 1)}


def test_sample_reviews_have_every_aspect_and_no_overlap():
    dataset = load_data(sample_reviews(), ("train", "dev", "test"), DataOptions(wide=True))
    aspects, splits = ("food", "service", "price", "atmosphere", "design", "reliability"), dataset.splits
    assert set(dataset.task.aspects) == set(aspects)
    texts = {name: len(rows) // len(aspects) for name, rows in splits.items()}
    assert texts == {"train": 2281, "dev": 125, "test": 241}
    assert not runs_of_words(splits["train"]) & runs_of_words([*splits["dev"], *splits["test"]])
    for rows in splits.values():
        assert {(row.aspect, row.label) for row in rows} == {
            (aspect, label) for aspect in aspects for label in range(3)
        }
