"""Rows in, rows out: each row of a generated table is read with its text, or reported."""

import csv
import io
import json
import random
import re
import warnings
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from full_members import member
from pyarrow import parquet
from qacg_models.cli.program import main
from qacg_models.sentiment.dataset import load_data, load_file
from qacg_models.sentiment.example import DataError
from qacg_models.sentiment.options import DataOptions
from untrained import OWN

FORMATS = ("csv", "tsv", "jsonl", "json", "lines.json", "xlsx", "parquet")
SEEDS = [member(seed, id=str(seed), fast=seed < 36) for seed in range(200)]
WORDS = ("soup", 'a cake of 7"', '"kind" waiter', "it's", "Käse", "👍", "so-so", "#1", "1,5", "x;y", "a|b", "c\td")
BREAKS = (" ", " ", ", ", "\n", "\n\n", ",", "; ", '"')
LABELS = OWN.labels
REPORTED = re.compile(r": ([0-9,]+) rows? \(")


@dataclass
class Table:
    """A generated table: dictionaries of cells in the order of the file, and how it is written."""

    form: str
    wide: bool
    mark: str
    rows: list[dict] = field(default_factory=list)

    def records(self):
        """Text, aspect and label of every record that the table must give; None for an empty cell."""
        for row in self.rows:
            if not self.wide:
                yield row["text"], row["aspect"], row["label"]
            else:  # a row without a text is one record
                aspects = OWN.aspects if row["text"] is not None else OWN.aspects[:1]
                yield from ((row["text"], aspect, row[aspect]) for aspect in aspects)

    def columns(self):
        return {"aspect_columns": OWN.aspects} if self.wide else {}

    def whole(self):
        """The records without an empty cell."""
        return [record for record in self.records() if None not in record]


def random_text(draw, number):
    """A text with quotation marks, delimiters and line ends."""
    words = [draw.choice(WORDS) for _ in range(draw.randint(1, 5))]
    breaks = [draw.choice(BREAKS) for _ in words]
    return f"{''.join(map(''.join, zip(words, breaks))).strip()} {number}"


def random_table(draw, form=None, wide=None, empty=0.1):
    table = Table(form or draw.choice(FORMATS), draw.random() < 0.3 if wide is None else wide, draw.choice(",;\t|"))
    table.mark = "\t" if table.form == "tsv" else table.mark
    for number in range(draw.choice((8, 15, 16, 40))):
        row = {"id": f"r{number}", "text": random_text(draw, number)}
        names = OWN.aspects if table.wide else ("label",)
        row |= {} if table.wide else {"aspect": draw.choice(OWN.aspects)}
        row |= {name: draw.choice(LABELS) for name in names}
        row |= {name: None for name in row if name != "id" and draw.random() < empty}
        table.rows.append(row)
    for label, row in zip(LABELS[1:], table.rows):  # a task has two labels
        row |= {name: label if name in (*OWN.aspects, "label") else row[name] or "food" for name in row}
    return table


def cell_of(draw, form, value):
    """An empty cell as the format can store it; other values unchanged."""
    if value is not None:
        return value
    return draw.choice({"xlsx": (None, "", "#N/A"), "csv": ("", "  "), "tsv": ("", "  ")}.get(form, (None, "", "  ")))


def written(draw, table, path):
    rows = [{name: cell_of(draw, table.form, value) for name, value in row.items()} for row in table.rows]
    if table.form in ("csv", "tsv"):
        stream = io.StringIO()
        end = draw.choice(("\n", "\r\n"))
        lines = csv.writer(stream, delimiter=table.mark, lineterminator=end, quoting=draw.choice((0, 1)))
        lines.writerows([list(rows[0]), *(list(row.values()) for row in rows)])
        path.write_bytes(stream.getvalue().encode())
    elif table.form == "xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in [list(rows[0]), *(list(row.values()) for row in rows)]:
            book.active.append(row)
        book.save(path)
    elif table.form == "parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        text = (
            json.dumps(rows, indent=draw.choice((None, 1)))
            if table.form == "json"
            else "\n".join(map(json.dumps, rows))
        )
        path.write_text(text + draw.choice(("", "\n")))
    return path


def read(paths, by, **options):
    """Texts, aspects and labels of the rows that a public function reads, and the number of rows that it reports."""
    chosen, notes = DataOptions(dev_fraction=0.3, **options), []
    if by is load_file:  # qacg evaluate
        rows, labels = load_file(paths, OWN, chosen, notes=notes), LABELS
    else:  # qacg check, qacg train
        data = load_data(paths, ("train", "dev"), chosen)
        rows, labels, notes = [row for part in data.splits.values() for row in part], data.task.labels, data.skipped
    found = [(row.sentence, row.aspect, labels[row.label]) for row in rows]
    return found, sum(int(REPORTED.search(note)[1].replace(",", "")) for note in notes)


def read_or_refused(paths, by, **options):
    """Reads like `read`; the second time with trusted quotation marks, if the first time they are in doubt."""
    try:
        return read(paths, by, **options)
    except DataError as error:
        if "--quoting minimal" not in str(error):
            raise
        return read(paths, by, quoting="minimal", **options)


@pytest.mark.parametrize("by", [load_data, load_file])
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_read_or_reported(seed, by, tmp_path):
    draw = random.Random(seed)
    first = random_table(draw)
    tables = [first, *(random_table(draw, first.form, first.wide) for _ in range(draw.choice((0, 0, 1, 2))))]
    paths = [written(draw, table, tmp_path / f"rows{n}.{table.form}") for n, table in enumerate(tables)]
    found, reported = read_or_refused(paths, by, **first.columns(), skip_empty=True)
    expected = [record for table in tables for record in table.whole()]
    assert sorted(found) == sorted(expected)
    assert len(found) + reported == sum(len(list(table.records())) for table in tables)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_with_empty_cells_are_an_error_unless_skipped(seed, tmp_path):
    draw = random.Random(f"empty {seed}")
    table = random_table(draw, empty=draw.choice((0, 0.02)))
    path = written(draw, table, tmp_path / f"rows.{table.form}")
    if len(table.whole()) == len(list(table.records())):
        assert sorted(read_or_refused([path], load_file, **table.columns())[0]) == sorted(table.whole())
        return
    with pytest.raises(DataError, match="has an empty '"):
        read_or_refused([path], load_file, **table.columns())


@pytest.mark.parametrize("seed", SEEDS)
def test_unquoted_rows_joined_by_marks_are_refused(seed, tmp_path):
    """Quotation marks are ordinary characters in the file; two of them look like those around a field."""
    draw = random.Random(f"unquoted {seed}")
    count, names = draw.randint(6, 40), ["id", "text", "aspect", "label"]
    first, last = sorted(draw.sample(range(count), 2))
    rows = [(f"r{n}", " ".join(draw.choices(WORDS[3:7], k=4)), "food", LABELS[n % 3]) for n in range(count)]
    rows[first] = (rows[first][0], f'"{rows[first][1]}', *rows[first][2:])
    rows[last] = (rows[last][0], f'{rows[last][1]}"', *rows[last][2:])
    order, mark = draw.sample(range(4), 4), draw.choice(",;\t|")
    path = tmp_path / "rows.csv"
    path.write_text("".join(mark.join(cells[place] for place in order) + "\n" for cells in (names, *rows)))
    assert sorted(read([path], load_data, quoting="none")[0]) == sorted(row[1:] for row in rows)
    with pytest.raises(DataError, match=f"csv:{first + 2}: .* lines {first + 2} to {last + 2}, .* --quoting none"):
        read([path], load_data)


@pytest.mark.parametrize("seed", [member(seed, id=str(seed), fast=seed < 8) for seed in range(60)])
def test_predict_writes_a_line_for_every_text(seed, model, tmp_path, capsys):
    draw = random.Random(f"predict {seed}")
    table = random_table(draw)
    path = written(draw, table, tmp_path / f"rows.{table.form}")
    for quoting in ("auto", "minimal"):
        flags = ["--aspects", "food", "--skip-empty", "--quoting", quoting]
        flags = flags if table.form in ("csv", "tsv", "xlsx", "parquet") else flags[:-2]
        capsys.readouterr()
        status = main(["predict", str(model), "--input", str(path), *flags])
        out, error = capsys.readouterr()
        if status == 0 or "--quoting minimal" not in error:
            break
    assert status == 0, error
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["text"] for line in lines] == [row["text"] for row in table.rows]
    empty = sum(row["text"] is None for row in table.rows)
    assert (f"skipped {empty} row" in error) == (empty > 0)


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_split_by_a_line_end_are_refused(seed, tmp_path, model, capsys):
    """A raw line end in a column that others follow makes two rows of one record."""
    draw = random.Random(f"split {seed}")
    width, rows, mark = draw.randint(3, 6), draw.choice((4, 14, 15, 16, 17, 31, 50)), draw.choice(",;\t")
    place, row = draw.randint(1, width - 2), draw.randrange(rows)
    cells = [[f"c{n}-{column}" for column in range(width)] for n in range(rows)]
    cells[row][place] = "the bill was\na shock"
    header = ["text" if column == place else f"n{column}" for column in range(width)]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(map(mark.join, [header, *cells])) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["predict", str(model), "--input", str(path)]) == 2
    assert f"rows.csv:{row + 2}: expected {width} fields as in the header" in capsys.readouterr().err
