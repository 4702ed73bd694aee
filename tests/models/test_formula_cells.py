"""CSV cells that a spreadsheet would run: written unchanged, or escaped on request."""

import csv
import json

import pytest
from qacg_models.cli.program import main
from qacg_models.sentiment.columns import Columns
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.tables import read_table
from qacg_models.utils.text import escape_formula, unescape_formula

FORMULAS = ["=1+1", "+49 30 1234 never answers", "-5 stars", "@home service", '=HYPERLINK("http://x","y")', "\t=1"]
OTHERS = ["'quoted' food", "5-star food", "a = b", "1+1", " plain"]


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.jsonl"
    rows = [{"text": text, "key": f"-{number}"} for number, text in enumerate(FORMULAS + OTHERS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def predict(model, texts, output, *flags):
    choices = ["--id-column", "key", "--aspects", "food", "--output", output, *flags]
    arguments = ["predict", model, "--input", texts, *choices]
    assert main([str(argument) for argument in arguments]) == 0
    with output.open(newline="", encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_predictions_are_read_back_unchanged(model, texts, tmp_path):
    predict(model, texts, tmp_path / "out.csv")
    columns = Columns(aspect="aspect", label="label", id="id")
    read = read_table(tmp_path / "out.csv", columns).to_dict("records")
    assert [record["text"] for record in read] == FORMULAS + OTHERS
    assert [record["id"] for record in read] == [f"-{number}" for number in range(len(read))]


CELLS = [*FORMULAS, *OTHERS, "'=1", "''-5", "'", "", "\tx", "\rx", "＝1", "\0@x", "'plain"]


@pytest.mark.parametrize("cell", CELLS)
def test_escape_formula_is_undone_by_unescape(cell):
    escaped = escape_formula(cell)
    is_formula = cell in (*FORMULAS, "\tx", "\rx", "＝1", "\0@x")
    assert escaped == f"'{cell}" if is_formula else escaped in (cell, f"'{cell}")
    assert unescape_formula(escaped) == cell


def test_suggest_sheet_escapes_formulas_and_trains(tmp_path):
    texts = [*FORMULAS[:5], "'quoted' food", "'=1", "''-5 stars", "plain food"] * 2
    source, sheet = tmp_path / "texts.jsonl", tmp_path / "sheet.csv"
    more = [f"the food of day {number}" for number in range(20)]
    source.write_text("".join(json.dumps({"=text": text}) + "\n" for text in texts + more))
    command = ["suggest", "--input", source, "--output", sheet, "--by", "text", "--text-column", "=text"]
    assert main([*map(str, command), "--aspects", "@food=food", "--rows", "600"]) == 0
    with sheet.open(newline="", encoding="utf-8") as handle:
        header, *rows = csv.reader(handle)
    assert header == ["'=text", "aspect", "label", "hint", "split"]
    assert {row[1] for row in rows} == {"'@food"}
    assert not any(cell.startswith(tuple("=+-@\t\r")) for row in rows for cell in row)
    assert {row[0] for row in rows} >= {"'=1+1", "'-5 stars", "''=1", "'''-5 stars", "'quoted' food"}
    with sheet.open("w", newline="", encoding="utf-8") as handle:  # as a spreadsheet writes it
        csv.writer(handle).writerows(
            [header, *([*row[:2], ("good", "bad")[n % 2], *row[3:]] for n, row in enumerate(rows))]
        )
    splits = load_data(sheet, ("train", "dev"), DataOptions(text_column="=text")).splits
    assert {row.sentence for part in splits.values() for row in part} == {*texts, *more}
    assert {row.aspect for part in splits.values() for row in part} == {"@food"}


def test_read_table_keeps_apostrophes_of_other_files(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,aspect,label,split\n'-5 stars',food,bad,dev\n")
    (record,) = read_table(path, Columns()).to_dict("records")
    assert record["text"] == "'-5 stars'"
