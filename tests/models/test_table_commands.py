"""Commands on tables: empty cells, column names of training, every table format, several files."""

import csv
import io
import json
import os
import re
import shutil
import threading
from pathlib import Path

import pytest
from commands import error_of, fails
from interrupted_runs import interrupt_at
from model_sizes import SMALL_FLAGS
from qacg_models.cli.program import main
from qacg_models.sentiment import training
from qacg_models.sentiment.record import RECORD_NAME
from table_files import WIDE, half_filled, write_table


@pytest.fixture
def trained_on(model, tmp_path):
    """Makes copies of the model with other data options in its record."""

    def changed(**options):
        folder = Path(shutil.copytree(model, tmp_path / "trained"))
        record = json.loads((folder / RECORD_NAME).read_text())
        record["data_options"] |= options
        (folder / RECORD_NAME).write_text(json.dumps(record))
        return folder

    return changed


def predict(capsys, model, *arguments):
    capsys.readouterr()
    assert main(["predict", str(model), *map(str, arguments)]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# Pairs of a target and an aspect: names with dashes, and two pairs that are equal when they are joined by " - ".
DASHES = {
    "aspect with a dash": (("hotel", "garden"), ("room - size", "staff")),
    "one target begins with another": (("hotel", "hotel - room"), ("room - size", "size")),
    "dash at an edge": (("hotel", "hotel -"), ("- size", "size")),
    "quotation marks": (("hotel", 'hotel - "room'), ('"room - size"', "room - size", 'size"', "size")),
}


@pytest.mark.parametrize(("targets", "aspects"), DASHES.values(), ids=DASHES)
def test_targets_and_aspects_with_dashes_stay_apart(targets, aspects, tmp_path, capsys, monkeypatch):
    pairs = [(target, aspect) for target in targets for aspect in aspects]
    rows = [
        (f"{target} , day {day}", target, aspect, ("good", "bad")[number % 2])
        for day in range(20)
        for number, (target, aspect) in enumerate(pairs)
    ]
    data = str(write_table(tmp_path / "rows.csv", [("text", "target", "aspect", "label"), *rows]))
    model, columns = str(tmp_path / "m"), ["--target-column", "target"]
    command = ["train", "--data", data, "--output", model, *columns, *SMALL_FLAGS, "--max-steps", "2"]
    with monkeypatch.context() as patch, pytest.raises(TypeError):
        patch.setattr(
            "qacg_models.sentiment.training._write_model", None
        )  # the training stops after its last checkpoint
        main(command)
    assert main([*command, "--resume"]) == 0
    found = predict(capsys, model, "--input", data, *columns, "--aspect-column", "aspect")
    assert [(one["text"], one["target"], one["aspect"]) for one in found] == [row[:3] for row in rows]
    assert main(["predict", model, "--text", "anything", "--targets", *targets]) == 0
    table = [re.split(" {2,}", line)[1:3] for line in capsys.readouterr().out.splitlines()]
    assert table[0] == ["target", "aspect"] and sorted(table[2:]) == sorted(map(list, pairs))
    assert main(["evaluate", model, "--data", data, "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)["breakdown"]["errors"]
    assert errors and {(one["text"], one["target"], one["aspect"]) for one in errors} <= {row[:3] for row in rows}


def test_predict_lists_unusable_rows_before_it_predicts(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("qacg_models.sentiment.trained_model.predict_logits", None)
    path = write_table(tmp_path / "in.csv", [("text", "n"), *(("" if n % 9 == 8 else "fine", n) for n in range(40))])
    reason = "has an empty 'text' (also lines 19, 28, 37); fill in empty cells, or pass --skip-empty"
    fails(capsys, ["predict", model, "--input", path], f"{path}:10: {reason}")
    write_table(path, [("text", "about"), *(("fine", "view" if n in (30, 32) else "food") for n in range(40))])
    reason = "aspect: expected one of the model's aspects (food, price, service), got 'view'"
    command = ["predict", model, "--input", path, "--aspect-column", "about"]
    fails(capsys, command, f"{path}:32: {reason}", "(also line 34); correct or remove these rows")


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_predict_skip_empty_keeps_rows_in_place(model, tmp_path, capsys, form):
    rows = [("n", "text", "about"), (1, "fine", "food"), (2, "", "food"), (3, "slow", ""), (4, "dear", "price")]
    path, output = write_table(tmp_path / "in.csv", rows), tmp_path / f"out.{form}"
    flags = ["--aspect-column=about", "--skip-empty", "--min-confidence=0.99", "--output", str(output)]
    assert main(["predict", str(model), "--input", str(path), *flags]) == 0
    out = capsys.readouterr().out
    assert "skipped 2 rows (1 with an empty 'text', 1 with an empty 'about')" in out
    assert "of 2 predictions are uncertain" in out
    if form == "csv":
        found = list(csv.DictReader(io.StringIO(output.read_text())))
        nothing = {"label": "", "certainty": "", "p(none)": "", "p(good)": "", "p(bad)": ""}
        assert [row["n"] for row in found] == ["1", "2", "3", "4"]
    else:
        found = [json.loads(line) for line in output.read_text().splitlines()]
        nothing = {"label": None, "certainty": None, "probabilities": None}
        assert found[1]["text"] is None and found[2]["aspect"] is None
    assert [row["line"] for row in found] == (["2", "3", "4", "5"] if form == "csv" else [2, 3, 4, 5])
    for row in found[1:3]:
        assert {name: row[name] for name in nothing} == nothing
    assert found[0]["label"] and found[3]["label"]


def test_predict_takes_names_and_encoding_of_training(trained_on, tmp_path, capsys):
    trained = trained_on(text_column="review", delimiter=";", encoding="cp1252")
    path = write_table(tmp_path / "in.csv", [("n", "review"), (1, "Café")], ";", "cp1252")
    found = predict(capsys, trained, "--input", path, "--aspects", "food")
    assert [(row["text"], row["columns"]) for row in found] == [("Café", {"n": "1"})]
    other = write_table(tmp_path / "other.csv", [("printed", "n"), ("Café", 1)], "|")
    flags = ["--text-column", "printed", "--delimiter", "auto", "--encoding", "utf-8", "--aspects", "food"]
    assert predict(capsys, trained, "--input", other, *flags)[0]["text"] == "Café"
    assert "columns: expected 'review', got" in error_of(capsys, "predict", trained, "--input", other, *flags[2:])


def test_evaluate_wide_files_as_the_long_one(model, tmp_path, capsys):
    paths = [
        write_table(tmp_path / "a.csv", WIDE),
        write_table(tmp_path / "b.csv", [WIDE[0], ("", "good", "bad"), *WIDE[1:3]], ";"),
    ]
    long = [("text", "aspect", "label")]
    long += [(row[0], name, label) for row in WIDE[1:] + WIDE[1:3] for name, label in zip(WIDE[0][1:], row[1:])]
    whole = write_table(tmp_path / "long.csv", long)
    figures = []
    for given in ([*paths, "--wide", "--skip-empty"], [whole]):
        capsys.readouterr()
        assert main(["evaluate", str(model), "--data", *map(str, given), "--json"]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert [one["rows"] for one in figures] == [10, 10] and "a.csv, b.csv" in figures[0]["split"]
    wide, long = (next(one[name] for name in one if name.startswith("QACG-BERT")) for one in figures)
    assert wide == long


def test_evaluate_of_a_wide_model_reads_a_long_table(trained_on, tmp_path, capsys):
    trained = trained_on(aspect_columns=["food", "price"])
    path = write_table(tmp_path / "long.csv", [("text", "topic", "label"), ("fine", "food", "good")])
    flags = ["--data", path, "--aspect-column", "topic"]
    assert "aspect_column: expected none for a wide table" in error_of(capsys, "evaluate", trained, *flags)
    assert main(["evaluate", str(trained), *map(str, flags), "--set", "wide=false"]) == 0


def test_suggest_with_a_model_takes_its_names(trained_on, tmp_path, capsys):
    trained = trained_on(text_column="review", encoding="cp1252")
    path = write_table(tmp_path / "in.csv", [("review", "n"), ("Das Café ist gut", 1), ("", 2)], ";", "cp1252")
    header = ("review", "aspect", "label")
    labelled = write_table(tmp_path / "old.csv", [header, ("Der Tee war kalt", "food", "bad")], ";", "cp1252")
    flags = ["suggest", "--input", path, "--with", trained, "--labelled", labelled]
    flags += ["--output", tmp_path / "sheet.csv", "--by", "text"]
    assert f"{path}:3: has an empty 'review'; fill in empty cells, or pass --skip-empty" in error_of(capsys, *flags)
    assert main([*map(str, flags), "--skip-empty"]) == 0
    assert "skipped 1 row (1 with an empty 'review')" in capsys.readouterr().err
    with (tmp_path / "sheet.csv").open(encoding="utf-8") as handle:
        assert {row["review"] for row in csv.DictReader(handle)} == {"Das Café ist gut", "Der Tee war kalt"}


@pytest.fixture
def unquoted(tmp_path):
    """A TSV of 60 rows whose quotation marks are ordinary characters; those of lines 9 and 21 enclose 13 rows."""
    texts = [f"the {('fish', 'bill', 'staff')[n % 3]} of day {n}" for n in range(60)]
    texts[7], texts[19] = f'"{texts[7]}', f'{texts[19]}"'
    aspects, labels = ("food", "price", "service"), ("good", "bad", "none", "bad")
    rows = [(text, aspects[n % 3], labels[n % 4]) for n, text in enumerate(texts)]
    path = tmp_path / "unquoted.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in [("text", "aspect", "label"), *rows]))
    return path


def test_predict_refuses_marks_that_join_rows_or_reads_them(unquoted, model, capsys):
    printed = error_of(capsys, "predict", model, "--input", unquoted)
    assert f"{unquoted}:9: expected one row in a field in quotation marks, got lines 9 to 21" in printed
    assert "pass --quoting none if quotation marks are ordinary characters" in printed
    assert len({row["line"] for row in predict(capsys, model, "--input", unquoted, "--quoting", "none")}) == 60


def test_warnings_about_reading_are_one_line(model, tmp_path, capsys):
    """A file is read twice; its warnings are printed once."""
    ids = [f'{{"ImportId":"{name}"}}' for name in ("QID1_TEXT", "QID2", "_recordId")]
    path = tmp_path / "survey.csv"
    write_table(path, [("text", "n", "m", "k"), ("Your meal?", "?", "?", "?"), [*ids, ""], ("fine", 1, 2, 3)])
    path.write_text(path.read_text() + "slow,1,2\n")
    assert main(["predict", str(model), "--input", str(path), "--aspects", "food"]) == 0
    out, error = capsys.readouterr()
    assert [json.loads(line)["line"] for line in out.splitlines()] == [4, 5]
    assert error.splitlines()[:2] == [
        f"warning: {path}: 1 row has fewer fields than the header (line 5); missing ones are read as empty",
        f"warning: {path}: left out lines 2 and 3, which are header rows of a survey tool (ImportId)",
    ]
    assert len(error.splitlines()) == 3, error


def test_predict_reads_json_lines_of_standard_input(model, tmp_path, capsys, monkeypatch):
    path = tmp_path / "in.json"
    path.write_text('\n{"text": "fine"}\n{"text": "slow"}\n')
    assert [one["line"] for one in predict(capsys, model, "--input", path, "--aspects", "food")] == [2, 3]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_bytes, args=[path.read_bytes()], daemon=True).start()
    flags = ["--input", pipe, "--format", "json", "--aspects", "food"]
    assert [one["text"] for one in predict(capsys, model, *flags)] == ["fine", "slow"]


def test_train_takes_several_files_and_prints_what_it_skipped(tmp_path, monkeypatch, capsys):
    first, second = half_filled(tmp_path / "a.csv", 30), half_filled(tmp_path / "b.csv", 30)
    interrupt_at(monkeypatch, training, "train_seeds", error=KeyboardInterrupt)
    flags = ["--text-column=review", "--aspect-column=topic", "--label-column=verdict", "--skip-empty"]
    assert main(["train", "--data", str(first), "--data", str(second), "--output", str(tmp_path / "m"), *flags]) == 130
    out = capsys.readouterr().out
    assert "left out of a.csv: 11 rows (10 with an empty 'verdict', 1 with an empty 'review')" in out
    assert "left out of b.csv: 11 rows" in out
