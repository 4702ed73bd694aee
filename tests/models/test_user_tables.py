"""Your own tables: encodings, delimiters, empty cells, wide tables, several files, Excel and Parquet."""

import json
import sys
import warnings
import zipfile
from dataclasses import replace
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest
from errors import error_cases, raises
from pyarrow import parquet
from qacg_models.sentiment.columns import Columns
from qacg_models.sentiment.dataset import (
    describe,
    file_digest,
    load_data,
    load_file,
)
from qacg_models.sentiment.example import ReadingWarning
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.record import read_run_file, write_run_file
from qacg_models.sentiment.tables import read_texts
from table_files import WIDE, half_filled, write_table
from untrained import OWN

GERMAN = [("text", "aspect", "label")] + [
    (f"Das Café Nr. {number} – „toll“", "Essen", ("gut", "schlecht")[number % 2]) for number in range(12)
]


def rows_of(path, **options):
    """Text, aspect and label of every row, in the order of the file."""
    data = load_data(path, ("train", "dev"), DataOptions(dev_fraction=0.4, **options))
    rows = sorted([*data.splits["train"], *data.splits["dev"]], key=lambda row: row.line)
    return [(row.sentence, row.aspect, data.task.labels[row.label]) for row in rows]


# Delimiters and encodings


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_csv_without_delimiter_flag_is_read_by_its_header(tmp_path, mark):
    path = write_table(tmp_path / "train.csv", GERMAN, mark)
    assert rows_of(path) == GERMAN[1:]


def test_csv_with_line_for_excel_keeps_line_numbers(tmp_path):
    path = write_table(tmp_path / "train.csv", [*GERMAN, ("Neu", "Essen", "")], ";", end="\r\n")
    path.write_bytes(b"sep=;\r\n" + path.read_bytes())
    with raises("DataError: :15: has an empty 'label'"):
        rows_of(path)


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-16-be", "utf-8-sig", "UTF8"])
def test_encoding_given_reads_the_same_rows(tmp_path, encoding):
    path = write_table(tmp_path / "train.csv", GERMAN, ";", encoding, end="\r\n")
    assert rows_of(path, encoding=encoding) == GERMAN[1:]


def saved(text, encoding):
    return f"text,aspect,label\n{text},food,good\n".encode(encoding)


CAFE = "ein Café"
# A file, the encoding with which it is read, and the advice.
ENCODINGS = [
    (saved(CAFE, "cp1252"), "utf-8", ":2: is not UTF-8 (byte 8 of the line is 0xe9); this looks like Windows-1252: "),
    (saved("Всё вкусно", "cp1251"), "utf-8", "pass the encoding that the file was saved in, such as --encoding cp1251"),
    (saved(CAFE, "utf-8") + "Müsli".encode("cp1252") + CAFE.encode(), "utf-8", "characters, so the file is damaged"),
    (saved(CAFE, "utf-16"), "utf-8", ":1: ...looks like UTF-16...: pass --encoding utf-16"),
    (saved(CAFE, "utf-16-le"), "utf-8", ":1: ...looks like UTF-16...: pass --encoding utf-16-le"),
    (saved(CAFE, "utf-16-be"), "utf-8", ":1: ...looks like UTF-16...: pass --encoding utf-16-be"),
    (saved(CAFE, "utf-8"), "cp1252", "looks like UTF-8, not cp1252: pass --encoding utf-8"),
    (saved(CAFE, "utf-16"), "latin-1", "looks like UTF-16, not latin-1: pass --encoding utf-16"),
    (saved(CAFE, "utf-8"), "utf-16", "does not begin with a byte order mark"),
    (saved(CAFE, "cp1252"), "ascii", ":2: is not ascii (byte 26 of the file is 0xe9)"),
    (b"\x1f\x8b\x08\xff rest", "utf-8", "this looks like a gzip file: decompress it"),
    (b"\xff\xfe\0\0\xff rest", "utf-8", "this looks like UTF-32: pass --encoding utf-32"),
    (b"PK\x03\x04\xff rest", "utf-8", "this looks like an Excel workbook"),
]


@pytest.mark.parametrize(("content", "encoding", "advice"), ENCODINGS)
def test_encoding_wrong_one_names_the_likely_one(tmp_path, content, encoding, advice):
    (tmp_path / "train.csv").write_bytes(content)
    with raises(f"DataError: {advice}"):
        rows_of(tmp_path / "train.csv", encoding=encoding)


@pytest.mark.parametrize("text", ["text,aspect,label\ra,b,c\r", "text,aspect,label\na,b,c\rd,e,f\n"])
def test_csv_carriage_return_as_line_end_is_explained(tmp_path, text):
    (tmp_path / "train.csv").write_bytes(text.encode())
    with raises("DataError: expected line feeds as line ends, got a carriage return"):
        rows_of(tmp_path / "train.csv")


# Quotation marks, and rows with other numbers of fields


def texts_of(path, **options):
    """The texts that `qacg predict` reads from a table, which must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_texts(path, Columns("text", None, None, **options))["text"].tolist()


def workbook(path, *sheets):
    """Writes rows as the sheets of a workbook, and returns openpyxl's book."""
    book = pytest.importorskip("openpyxl", reason="openpyxl, which reads .xlsx, is not installed").Workbook()
    for number, rows in enumerate(sheets):
        sheet = book.create_sheet() if number else book.active
        for row in rows:
            sheet.append(list(row))
    book.save(path)
    return book


MARKS = [
    ("\t", "n\ttext", ['1\t"the waiter was kind', "2\tthe bill", '3\ta cake of 7"', "4\tthe fish"], 4),
    (",", "text,n", ['"the waiter was kind,1', "the bill,2", 'a cake of 7",3', "the fish,4"], 4),
    (";", "n;text;m", ['1;"kind;x', '2;a cake of 7";x', "3;the fish;x"], 3),
    ("|", "a|text", ['1|"kind', "", "2|x", '3|a cake of 7"', "4|the fish"], 5),
]


@pytest.mark.parametrize(("mark", "header", "rows", "last"), MARKS, ids=[mark for mark, *_ in MARKS])
def test_marks_that_join_rows_name_their_lines(tmp_path, mark, header, rows, last):
    path = tmp_path / "in.csv"
    path.write_text("\n".join([header, *rows]))
    with raises(
        f"DataError: in.csv:2: ...got lines 2 to {last}, ...; pass --quoting none if ..., or --quoting minimal"
    ):
        texts_of(path)
    place = header.split(mark).index("text")
    expected = [row.split(mark)[place] for row in rows if row]
    assert texts_of(path, quoting="none", delimiter=mark) == expected
    assert len(texts_of(path, quoting="minimal")) == len(rows) - last + 2


@pytest.mark.parametrize("text", ["nice, good, great\nI would come again", "kind\n\nstaff", "a\nb, c\nd", "a\n,b\nc"])
def test_text_of_several_lines_in_marks_is_read(tmp_path, text):
    rows = [("text", "aspect", "label"), (text, "food", "good"), ("x", "food", "bad")]
    assert rows_of(write_table(tmp_path / "train.csv", rows)) == rows[1:]


@pytest.mark.parametrize(
    ("texts", "labels", "found"),
    [
        (["kind\nstaff", "slow", "a\nb\nc"], None, "2 texts"),  # a table of one column
        (["I paid 1,500 for it\nnot worth it", "kind, quick", "a\n\nb"], ["bad", "good", "bad"], "1 text"),
    ],
)
def test_text_of_lines_that_look_like_rows_is_read_and_warns(tmp_path, texts, labels, found):
    rows = [("text", "label"), *zip(texts, labels)] if labels else [("text",), *((text,) for text in texts)]
    path = write_table(tmp_path / "in.csv", rows)
    message = rf"in.csv: {found} in quotation marks on several lines, .* lines 2 to 3; if"
    with pytest.warns(ReadingWarning, match=message):
        read = read_texts(path, Columns("text", None, None))["text"].tolist()
    assert read == texts == texts_of(path, quoting="minimal")


def test_quoting_none_keeps_marks_in_names_and_cells(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('text,"aspect,label\n"fine",food,good\n"",food,bad\n')
    found = rows_of(path, quoting="none", aspect_column='"aspect')
    assert found == [('"fine"', "food", "good"), ('""', "food", "bad")]


SPLIT = {
    "n\ttext\tday\n1\tthe bill was\na shock\t2026\n2\tfine\t2026\n": ":2: expected 3 fields ... got 2 (also line 3)",
    "a,text,b,c\n0,x,1,2\n1,x\ny,1\n\nz,2\n": ":3: expected 4 fields ... got 2 (also lines 4, 6)",
    "a;text;b;\n1;x\ny;2;\n": ":2: expected 4 fields ... got 2; line 3: expected 4 fields ... got 3",
    "text,b\n" + "x,1\n" * 20 + "x,1,2\n" * 30: ":22: expected 2 fields ... got 3 (also lines 23, ...; and 10 more",
}


@pytest.mark.parametrize("content", SPLIT)
def test_rows_that_do_not_fit_the_header_are_listed(tmp_path, content):
    (tmp_path / "in.csv").write_text(content)
    error = f"DataError: {SPLIT[content]}...; put fields that contain ... or a line end into quotation marks"
    with raises(error):
        read_texts(tmp_path / "in.csv", Columns("text", None, None))


def test_short_rows_are_read_and_listed(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("text,b,c,d\nx,1,2,3\n" + "y,1,2\n" * 25 + "z,1,2,3\n")
    with pytest.warns(
        ReadingWarning, match=r"25 rows have fewer fields than the header \(lines 3, .*, 22 and 5 more\)"
    ):
        found = read_texts(path, Columns("text", None, None))
    assert found["d"].tolist() == ["3", *[""] * 25, "3"]


def test_cells_that_excel_omits_are_empty(tmp_path):
    """Excel omits the delimiters of empty cells at the end of 16 rows; the header is in the first block."""
    full, short = [f"x{n},1," for n in range(15)], [f"y{n},2" for n in range(16 + 5)]
    path = tmp_path / "in.csv"
    path.write_text("\n".join(["text,n,hint", *full, *short]) + "\n")
    assert texts_of(path) == [line.split(",")[0] for line in (*full, *short)]
    path.write_text("\n".join(["text,n,hint", *full[1:], *short]) + "\n")
    with raises("DataError: :16: expected 3 fields as in the header, got 2 (also lines 17, "):
        texts_of(path)


# Header rows


QUALTRICS = [
    ("StartDate", "text", "n"),
    ("Start Date", "How was it?\nWrite, please", "Number"),
    *[tuple(f'{{"ImportId":"{name}","timeZone":"Z"}}' for name in ("startDate", "QID1_TEXT", "QID2"))],
    ("2026-03-01", "fine", "1"),
    ("2026-03-02", '{"ImportId" is a name', "2"),
]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".xlsx"])
@pytest.mark.parametrize("questions", [True, False])
def test_header_rows_of_a_survey_tool_are_left_out(tmp_path, suffix, questions):
    rows, path = [row for place, row in enumerate(QUALTRICS) if place != 1 or questions], tmp_path / f"in{suffix}"
    if suffix == ".xlsx":
        workbook(path, rows)
    else:
        write_table(path, rows, "\t" if suffix == ".tsv" else ",", "utf-8-sig", "\r\n")
    second = 3 if suffix == ".xlsx" else 4  # the question has two lines in a CSV
    left_out = f"lines 2 and {second}, which are header rows" if questions else "line 2, which is a header row"
    with pytest.warns(ReadingWarning, match=f"left out {left_out} of a survey tool"):
        found = read_texts(path, Columns("text", None, None))["text"].tolist()
    assert found == ["fine", '{"ImportId" is a name']


def test_table_without_a_header_is_explained(tmp_path):
    path = write_table(tmp_path / "train.csv", GERMAN[1:])
    with raises("DataError: :1: columns: expected 'text', ...; the first row must be the header, with the names of"):
        rows_of(path)


# Empty cells


NAMES = {"text_column": "review", "aspect_column": "topic", "label_column": "verdict"}


def test_empty_cells_are_listed_up_to_twenty_or_counted(tmp_path):
    path = half_filled(tmp_path / "half.csv")
    lines = ", ".join(str(line) for line in range(7, 59, 3))
    advice = "fill in empty cells (the label 'none' means no opinion), or pass --skip-empty to leave such rows out"
    verdicts = f"half.csv:4: has an empty 'verdict' (also lines {lines})"
    with raises(f"DataError: {verdicts}; line 9: has an empty 'review'; and 14 more; {advice}"):
        rows_of(path, **NAMES)
    data = load_data(path, options=DataOptions(skip_empty=True, **NAMES), optional=("test",))
    assert sum(len(rows) for rows in data.splits.values()) == 66
    note = "left out of half.csv: 34 rows (33 with an empty 'verdict', 1 with an empty 'review')"
    assert data.skipped == (note,) and note in describe(data)
    assert data.task.labels == ("bad", "good")


def test_rows_sorted_by_aspect_are_grouped_by_text(tmp_path):
    pairs = [("a", "food", "bad"), ("b", "food", "good"), ("a", "price", "bad"), ("b", "price", "bad")]
    path = write_table(tmp_path / "train.csv", [GERMAN[0], *pairs, ("a", "food", "bad")])
    data = load_data(path, ("train", "dev"), DataOptions(dev_fraction=0.5))
    rows = sorted((row for split in data.splits.values() for row in split), key=lambda row: row.line)
    assert [row.id for row in rows] == ["line 2", "line 3", "line 2", "line 3", "line 6"]


@pytest.mark.parametrize("start", ["", "\n \n"])
def test_json_file_of_lines_is_read(tmp_path, start):
    path = tmp_path / "train.json"
    path.write_text(start + "\n".join(json.dumps(dict(zip(GERMAN[0], row))) for row in GERMAN[1:]))
    assert rows_of(path) == GERMAN[1:]
    with path.open("a") as handle:
        handle.write('\n{"text": \n')
    with raises(f"DataError: :{len(GERMAN) + start.count(chr(10))}: is not JSON"):
        rows_of(path)


@pytest.mark.parametrize("form", ["[{}]", "[{}\n]"])
def test_json_items_on_one_line_are_separate_sentences(tmp_path, form):
    records = [dict(zip(GERMAN[0], row)) for row in [*GERMAN[1:], *GERMAN[1:3]]]
    path = tmp_path / "train.json"
    path.write_text(form.format(", ".join(map(json.dumps, records))))
    assert sorted(rows_of(path)) == sorted([*GERMAN[1:], *GERMAN[1:3]])


def test_jsonl_whole_floats_are_read_as_integers(tmp_path):
    path = tmp_path / "train.jsonl"
    records = [{"text": f"t{n}", "aspect": 3.0, "label": (0.0, 1.0, 0.5)[n % 3]} for n in range(9)]
    path.write_text("\n".join(map(json.dumps, records)))
    assert {row[1:] for row in rows_of(path)} == {("3", "0"), ("3", "1"), ("3", "0.5")}


@pytest.mark.parametrize("value", ["null", "NaN", '"  "'])
def test_jsonl_null_is_an_empty_cell(tmp_path, value):
    path = tmp_path / "train.jsonl"
    lines = [f'{{"text": "t{n}", "aspect": "food", "label": {v}}}' for n, v in enumerate(('"a"', '"b"', '"b"', value))]
    path.write_text("\n".join(lines))
    with raises("DataError: :4: has an empty 'label'"):
        rows_of(path)
    assert len(rows_of(path, skip_empty=True)) == 3


def test_skip_empty_without_any_whole_row_is_an_error(tmp_path):
    path = write_table(tmp_path / "train.csv", [GERMAN[0], ("a", "food", ""), ("", "food", "good")])
    counts = "(1 with an empty 'label', 1 with an empty 'text')"
    with raises(f"DataError: csv: expected at least one row without an empty cell, got none {counts}"):
        rows_of(path, skip_empty=True)


# Wide tables


def test_wide_table_has_a_row_for_each_aspect(tmp_path):
    path = write_table(tmp_path / "train.csv", WIDE)
    long = [(row[0], aspect, label) for row in WIDE[1:] for aspect, label in zip(WIDE[0][1:], row[1:])]
    assert rows_of(path, wide=True) == long
    assert rows_of(path, aspect_columns=["food", "price"]) == long
    rows = load_file(path, OWN, DataOptions(wide=True))
    assert [row.id for row in rows][:2] == ["line 2", "line 2"]
    assert rows_of(path, aspect_columns=["price"]) == long[1::2]
    write_table(path, [("", *row, "", "") for row in WIDE])  # columns without a name are no aspects
    assert {aspect for _, aspect, _ in rows_of(path, wide=True)} == {"food", "price"}
    write_table(path, [row[:1] for row in WIDE])
    with raises("DataError: columns: expected a column for each aspect, got only 'text'"):
        rows_of(path, wide=True)


def test_wide_jsonl_with_ids_and_targets_is_read(tmp_path):
    path = tmp_path / "train.jsonl"
    records = [
        {"n": n, "who": "bar", "text": f"t{n}", "food": "good", "price": ("bad", "good")[n % 2]} for n in range(5)
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    options = DataOptions(wide=True, id_column="n", target_column="who", dev_fraction=0.3)
    data = load_data(path, ("train", "dev"), options)
    assert data.contexts == ("bar - food", "bar - price")
    assert {row.group for rows in data.splits.values() for row in rows} == {(str(n), "bar") for n in range(5)}


def test_wide_empty_cells_are_named_by_their_column(tmp_path):
    rows = [*WIDE, ("dear", "", "bad"), ("", "good", "good")]
    path = write_table(tmp_path / "train.csv", rows)
    with raises("DataError: :5: has an empty 'food'; line 6: has an empty 'text'; fill"):
        rows_of(path, wide=True)
    assert rows_of(path, wide=True, skip_empty=True)[-1] == ("dear", "price", "bad")


@pytest.mark.parametrize(
    "name,value,reason",
    [
        ("date", lambda n: f"2024-{n}", "column 'date' has more than 20 different values; name the aspect columns"),
        ("rating", lambda n: str(n % 5), "column 'rating' (0, 1, 2) shares no label with the other columns; name"),
    ],
)
def test_wide_column_that_is_no_aspect_raises(tmp_path, name, value, reason):
    rows = [(*WIDE[0], name), *((f"{WIDE[1][0]} {n}", *WIDE[1 + n % 3][1:], value(n)) for n in range(30))]
    path = write_table(tmp_path / "train.csv", rows)
    with raises(f"DataError: {reason}"):
        rows_of(path, wide=True)
    assert len(rows_of(path, aspect_columns=["food", "price"])) == 60


@error_cases(
    {
        "columns: expected 'view', got ...'price'; pass another name with --aspect-columns": {
            "aspect_columns": ["food", "view"]
        },
        "got 'text', 'food', 'price'; for a table with a column for each aspect, pass --wide; otherwise pass other"
        " names with --aspect-column and --label-column": {},
        "label_column: expected none for a wide table": {"wide": True, "label_column": "price"},
        "aspect_columns: expected at least one column, got none": {"aspect_columns": []},
        "expected 'view', ...; pass another name with --text-column": {"wide": True, "text_column": "view"},
        "pass --text-column and --wide; otherwise pass other names with --text-column, --": {"text_column": "view"},
    }
)
def test_wide_bad_options_raise(tmp_path, error, given):
    path = write_table(tmp_path / "train.csv", WIDE)
    with raises(f"InputError: {error}"):
        rows_of(path, **given)


# Several files


def test_several_files_are_read_as_one_split(tmp_path):
    first = write_table(tmp_path / "a.csv", GERMAN[:7], ";")
    second = write_table(tmp_path / "b.tsv", [GERMAN[0], *GERMAN[7:]], "\t")
    whole = rows_of(write_table(tmp_path / "all.csv", GERMAN))
    data = load_data([first, str(second)], ("train",), DataOptions(dev_fraction=0.4))
    alone = load_data(tmp_path / "all.csv", ("train",), DataOptions(dev_fraction=0.4))
    assert [row.sentence for row in data.splits["train"]] == [row.sentence for row in alone.splits["train"]]
    assert data.sources == (first, second)
    assert data.files["train"] == (first, second)
    assert file_digest(first, second) != file_digest(second, first)
    assert len(load_file([first, second], data.task)) == len(whole)


def test_ids_of_several_files_are_those_of_each(tmp_path):
    options = DataOptions(id_column="id", dev_fraction=0.5)
    paths = []
    for name in "ab":
        rows = [
            ("id", "text", "aspect", "label"),
            ("1", f"fine {name}", "food", "good"),
            ("2", f"bad {name}", "food", "bad"),
        ]
        paths.append(write_table(tmp_path / f"{name}.csv", rows))
    rows = load_file(paths, replace(OWN), options)
    assert [row.id for row in rows] == ["1/1", "1/2", "2/1", "2/2"]


@error_cases(
    {
        "b.csv:3: has an empty 'label'": ["a.csv", "b.csv"],
        "c.csv:1: columns: expected 'aspect', got 'text', 'topic', 'label'": ["a.csv", "c.csv"],
        "d.tsv: expected the format of ...a.csv, columns, got sentihood-tsv; pass files in one": ["a.csv", "d.tsv"],
        "a.csv: expected each file once": ["a.csv", "../{}/a.csv"],
        "expected files, got a folder; pass one folder alone": ["a.csv", "."],
        "none.csv: no such folder or file": ["a.csv", "none.csv"],
        "data: expected a folder or at least one file, got none": [],
    }
)
def test_several_files_errors_name_the_file(tmp_path, error, given):
    write_table(tmp_path / "a.csv", GERMAN)
    write_table(tmp_path / "b.csv", [GERMAN[0], ("neu", "Essen", "gut"), ("neuer", "Essen", "")])
    write_table(tmp_path / "c.csv", [("text", "topic", "label"), ("x", "y", "gut")])
    (tmp_path / "d.tsv").write_text("id\tsentence1\tsentence2\tlabel\n")
    with raises(f"InputError: {error}"):
        load_data([tmp_path / name.format(tmp_path.name) for name in given], ("train",))


def test_run_file_holds_several_data_files(tmp_path):
    for data, written in ((["a.csv"], "data: a.csv\n"), (["a.csv", "b.csv"], "data:\n- a.csv\n- b.csv\n")):
        write_run_file(tmp_path / "run.yaml", data, DataOptions(wide=True), TrainingOptions(), [0])
        assert written in (tmp_path / "run.yaml").read_text()
        given = read_run_file(tmp_path / "run.yaml")
        assert given["data"] == data and given["wide"] is True


# Formats


def test_tsv_of_your_own_is_not_taken_for_sentihood(tmp_path):
    path = write_table(tmp_path / "train.tsv", GERMAN, "\t")
    assert rows_of(path) == rows_of(tmp_path) == GERMAN[1:]
    assert describe(load_data(tmp_path, ("train",)))[0] == "read as columns: train.tsv"


def test_txt_of_excel_is_read_where_the_format_is_given(tmp_path):
    path = write_table(tmp_path / "unicode.txt", GERMAN, "\t", "utf-16", end="\r\n")
    assert rows_of(path, format="columns", encoding="utf-16") == GERMAN[1:]


def write_parquet(path, labels, texts=("a", "b", "c"), aspects=("x", "x", "x")):
    parquet.write_table(pa.table({"text": texts, "aspect": aspects, "label": labels}), path)
    return path


def test_parquet_gives_the_rows_of_the_csv(tmp_path):
    texts, aspects, labels = zip(*GERMAN[1:])
    write_parquet(tmp_path / "train.parquet", labels, texts, pa.array(aspects).dictionary_encode())
    assert rows_of(tmp_path) == GERMAN[1:]


def test_parquet_numbers_are_those_of_the_csv(tmp_path):
    path = write_parquet(tmp_path / "own.parquet", [1.0, float("nan"), 2.0])
    with raises("DataError: parquet:2: has an empty 'label'"):
        rows_of(path)
    assert rows_of(path, skip_empty=True) == [("a", "x", "1"), ("c", "x", "2")]
    write_parquet(path, pa.array([Decimal("1.0"), Decimal("0.5"), None], pa.decimal128(2, 1)))
    assert rows_of(path, skip_empty=True) == [("a", "x", "1"), ("b", "x", "0.5")]


@pytest.mark.parametrize("suffix", [".csv", ".json", ".jsonl", ".parquet", ".xlsx"])
def test_boolean_labels_are_equal_in_all_formats(tmp_path, suffix):
    frame = pd.DataFrame({"text": ["a", "b"], "aspect": ["x", "x"], "label": [True, False]})
    path = tmp_path / f"train{suffix}"
    if suffix == ".xlsx":
        workbook(path, [frame.columns, *frame.to_numpy()])
    else:
        write = {".csv": frame.to_csv, ".parquet": frame.to_parquet}.get(suffix, frame.to_json)
        options = {".json": {"orient": "records"}, ".jsonl": {"orient": "records", "lines": True}}
        write(path, **options.get(suffix, {"index": False}))
    assert rows_of(path) == [("a", "x", "True"), ("b", "x", "False")]


def test_excel_gives_the_rows_of_the_sheet(tmp_path):
    blank = [[" ", "\n", None, ""], ["neu", "Essen", None, " "], ["acht", "Essen", 8.0]]
    workbook(tmp_path / "train.xlsx", [[None], [*GERMAN[0], None], *GERMAN[1:], *blank])
    with raises("DataError: xlsx:16: has an empty 'label'"):
        rows_of(tmp_path / "train.xlsx")
    assert rows_of(tmp_path / "train.xlsx", skip_empty=True) == [*GERMAN[1:], ("acht", "Essen", "8")]


def test_excel_error_cells_are_empty(tmp_path):
    errors = [(f"slow {error}", "food", error) for error in ("#N/A", "#VALUE!", "#DIV/0!", "#REF!", "#NAME?", "#NULL!")]
    rows = [("text", "aspect", "label"), ("fine", "food", "good"), *errors, ("#N/A",) * 3, ("dear", "food", "bad")]
    book = workbook(tmp_path / "train.xlsx", [*rows, ("late", "food", 10**8)])
    book.active["C11"].number_format = "yyyy-mm-dd"  # no date: Excel shows #####
    book.save(tmp_path / "train.xlsx")
    with raises("DataError: xlsx:3: has an empty 'label' (also lines 4, 5, 6, 7, 8, 11); line 9: has an empty 'text'"):
        rows_of(tmp_path / "train.xlsx")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = rows_of(tmp_path / "train.xlsx", skip_empty=True)
    assert found == [("fine", "food", "good"), ("dear", "food", "bad")]


def test_excel_escapes_of_characters_are_decoded(tmp_path):
    cells = ("a_x000D_\nb", "_x005F_x000D_", "_x005f__x0041_", "_xD83D__xDC4D_", "_x00_ _X000D_", "x_x0009_", "_xD83D_")
    workbook(tmp_path / "in.xlsx", [("te_x0078_t",), *((cell,) for cell in cells)])
    assert texts_of(tmp_path / "in.xlsx") == ["a\r\nb", "_x000D_", "_A", "👍", "_x00_ _X000D_", "x\t", "\ufffd"]


def test_excel_strict_open_xml_names_the_other_form(tmp_path):
    workbook(tmp_path / "whole.xlsx", [("text",), ("fine",)])
    usual = b"schemas.openxmlformats.org/"
    forms = {usual + b"spreadsheetml/2006": b"purl.oclc.org/ooxml/spreadsheetml"}
    forms[usual + b"officeDocument/2006"] = b"purl.oclc.org/ooxml/officeDocument"
    with zipfile.ZipFile(tmp_path / "whole.xlsx") as whole, zipfile.ZipFile(tmp_path / "in.xlsx", "w") as strict:
        for name in whole.namelist():
            content = whole.read(name)
            for old, new in forms.items():
                content = content.replace(old, new)
            strict.writestr(name, content)
    with raises("DataError: in.xlsx: expected an Excel workbook (.xlsx), got ... Strict Open XML; save it as Excel"):
        texts_of(tmp_path / "in.xlsx")


def test_excel_sheets_that_are_not_read_warn(tmp_path):
    workbook(tmp_path / "in.xlsx", [("text",), ("fine",)], [("more",)], [])
    with pytest.warns(ReadingWarning, match=r"in.xlsx: only the first sheet, 'Sheet', is read; not 'Sheet1'$"):
        assert len(read_texts(tmp_path / "in.xlsx", Columns("text", None, None))) == 1


def test_excel_without_openpyxl_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    (tmp_path / "train.xlsx").write_bytes(b"PK")
    with raises("InputError: requires openpyxl: pip install openpyxl, or save the file as CSV"):
        rows_of(tmp_path / "train.xlsx")


@pytest.mark.parametrize(
    "name,reason",
    [
        ("rows.xlsx", "is damaged, or is not an Excel workbook (.xlsx)"),
        ("rows.parquet", "is damaged, or is not a Parquet file"),
        ("rows.xls", "expected .xlsx, .csv or ..., got .xls. Save it as .xlsx or .csv."),
    ],
)
def test_damaged_table_raises(tmp_path, name, reason):
    if name.endswith("xlsx"):
        pytest.importorskip("openpyxl", reason="openpyxl, which reads .xlsx, is not installed")
    (tmp_path / name).write_text("nothing of the kind")
    with raises(f"DataError: {name}: {reason}"):
        rows_of(tmp_path / name)


def test_id_column_with_an_empty_name_is_read(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(json.dumps({"text": "a", "aspect": "food", "label": "good", "": "number 7"}))
    assert load_file(path, OWN, DataOptions(id_column=""))[0].id == "number 7"
