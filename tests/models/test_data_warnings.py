"""Warnings about data: count and lines of each finding, and none for clean data."""

import json
from dataclasses import replace

import pytest
from qacg_models.cli.program import main
from qacg_models.sentiment.data_warnings import evaluation_warnings, training_warnings
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.example import Example, ExampleTable, Task, frame_of
from untrained import OWN, write_model

TASK = Task("own", ("none", "good", "bad"), ("food", "room"), has_absent=True)
NONE, GOOD, BAD = range(3)


def row(line, text, label, aspect="food"):
    return Example(f"line {line}", text, aspect, "", aspect, label, line)


def clean(count=90, first=2):
    """Rows of `count` different sentences, with every label."""
    return [row(first + n, f"sentence {first + n}", n % 3, TASK.aspects[n % 2]) for n in range(count)]


def found(splits, task=TASK):
    """The warnings by code; each code must occur once."""
    warnings = training_warnings(splits, task)
    assert len({(one.code, one.split) for one in warnings}) == len(warnings)
    return {one.code: one for one in warnings}


def test_training_warnings_of_clean_data_are_none():
    assert found({"train": clean(), "dev": clean(first=1000), "test": clean(first=2000)}) == {}


def test_no_absent_rows_warn_with_and_without_an_absent_label():
    warnings = found({"train": [one for one in clean() if one.label != NONE]})
    assert warnings.keys() == {"no_absent_rows"}, "the missing label is not reported as a rare class too"
    warning = warnings["no_absent_rows"]
    assert warning.count == 60 and "the model predicts a sentiment for every text" in warning.message
    assert "add rows with the label 'none'" in warning.message
    task = replace(TASK, labels=("awful", "good", "bad"), has_absent=False)
    assert "--absent-label" in found({"train": clean()}, task)["no_absent_rows"].message


def test_names_that_differ_in_case_or_spaces_warn():
    task = replace(TASK, labels=("none", "Good", "good "), aspects=("food", "room", "Food"))
    warning = found({"train": clean()}, task)["similar_names"]
    assert warning.count == 2 and "written in several ways" in warning.message
    assert warning.examples == ("labels 'Good', 'good '", "aspects 'food', 'Food'")
    task = replace(TASK, labels=("1", "1.0", "01", "nan", "2", "0", "0.0"))  # equal as numbers
    warning = found({"train": clean()}, task)["similar_names"]
    assert warning.examples == ("labels '1', '1.0', '01'", "labels '0', '0.0'")


@pytest.mark.parametrize("kept", [0, 9, 10])
def test_rare_class_or_aspect_below_ten_rows_warns(kept):
    rows = [one for one in clean() if one.label != BAD or one.line < 2 + 3 * kept]
    warnings = found({"train": rows})
    assert warnings["rare_class"].examples == (f"'bad': {kept} rows",) if kept < 10 else "rare_class" not in warnings
    rows = [replace(one, context="food", aspect="food") for one in clean(90)]
    rows += [row(1000 + n, f"room {n}", n % 3, "room") for n in range(kept)]
    assert ("rare_aspect" in found({"train": rows})) == (kept < 10)


def test_hundreds_of_aspects_with_two_rows_are_counted():
    task = replace(TASK, aspects=tuple(f"term {n}" for n in range(300)))
    rows = [row(n, f"sentence {n}", n % 3, task.aspects[n // 2]) for n in range(600)]
    warning = found({"train": rows}, task)["rare_aspect"]
    assert warning.count == 300
    assert warning.message.startswith("300 aspects have fewer than 10 rows, too few for training; ")
    assert warning.examples == ("'term 0': 2 rows", "'term 1': 2 rows", "'term 2': 2 rows")


def test_contradictory_labels_are_counted_with_their_lines():
    rows = clean()
    rows += [
        row(200, "The  SOUP was cold", BAD),
        row(201, "the soup was cold", BAD),
        row(202, "the soup was cold", GOOD),
    ]
    rows += [row(203, "the soup was cold", GOOD, "room"), row(204, "twice", NONE), row(205, "twice", GOOD)]
    warning = found({"train": rows})["contradictory_labels"]
    assert warning.count == 2 and warning.split == "train"
    assert warning.message.startswith("2 pairs of text and aspect have different labels")
    assert warning.examples == (
        "'food' of 'The SOUP was cold': line 200 'bad', line 202 'good'",
        "'food' of 'twice': line 204 'none', line 205 'good'",
    )


def test_opposed_targets_are_counted_where_no_rows_contradict():
    def on(line, target, label, text="soup hot, wine sour"):
        return replace(row(line, text, label), target=target)

    rows = [on(200, "soup", GOOD), on(200, "wine", BAD), on(200, "tea", BAD), on(201, "soup", NONE, "fine")]
    rows += [on(202, "soup", GOOD, "x"), on(202, "soup", BAD, "x"), on(202, "wine", BAD, "x")]
    warnings = found({"train": [*clean(), *rows]})
    assert warnings["contradictory_labels"].count == 1
    assert warnings["opposed_targets"].examples == ("'food' of 'soup hot, wine sour': line 200 'good', line 200 'bad'",)


def test_duplicate_rows_are_counted_with_their_lines():
    rows = [row(100 + n, f"copied {n // 3}", GOOD) for n in range(15)]
    warning = found({"train": [*clean(), *rows]})["duplicate_rows"]
    assert warning.count == 10 and warning.message.startswith("10 rows repeat")
    assert warning.examples[0] == "'food' of 'copied 0': line 100 'good', line 101 'good', line 102 'good'"
    assert len(warning.examples) == 3 and warning.describe().endswith("; ...)")


def test_few_dev_sentences_are_counted_as_texts_not_rows():
    rows = [row(n, f"sentence {n // 3}", n % 3, f"aspect {n % 3}") for n in range(87)]
    warnings = found({"train": clean(), "dev": rows})
    assert warnings["few_dev_sentences"].count == 29 and "few_rows" not in warnings
    rows += [row(100, "one more", GOOD)]
    assert found({"train": clean(), "dev": rows}) == {}


@pytest.mark.parametrize(("count", "warned"), [(49, True), (50, False)])
def test_few_rows_of_test_or_of_an_evaluation_warn(count, warned):
    rows = clean(count)
    for warnings in (training_warnings({"test": rows}, TASK), evaluation_warnings("new.csv", rows, TASK)):
        assert ([one.code for one in warnings] == ["few_rows"]) == warned
        assert not warned or "up to 7 percentage points" in warnings[0].message


def test_warnings_of_a_table_are_those_of_a_list():
    rows = [*clean(40), row(200, "cold", BAD), row(201, "cold", GOOD), row(202, "COLD ", GOOD)]
    splits = {"train": rows, "dev": rows[:20], "test": rows}
    tables = {name: ExampleTable(frame_of(part)) for name, part in splits.items()}
    assert training_warnings(tables, TASK) == training_warnings(splits, TASK)


def write_csv(path, rows):
    path.write_text("text,aspect,label\n" + "".join(f"{text},{aspect},{label}\n" for text, aspect, label in rows))


def test_warning_examples_have_line_numbers_of_the_file(tmp_path):
    rows = [(f"sentence {n}", "food", ("none", "good", "bad")[n % 3]) for n in range(60)]
    write_csv(tmp_path / "train.csv", [*rows, ("sentence 7", "food", "none")])
    (warning,) = load_data(tmp_path, ("train",)).warnings
    assert warning.examples == ("'food' of 'sentence 7': line 9 'good', line 62 'none'",)


SIZES = ["hidden_size=8", "layers=1", "heads=2", "intermediate_size=16", "vocab_size=60"]
FLAGS = ["--max-steps=1", *(f"--set={size}" for size in SIZES)]


def test_train_prints_warnings_once_and_records_them(tmp_path, capsys):
    rows = [(f"sentence {n}", "food", ("good", "bad")[n % 2]) for n in range(30)]
    write_csv(tmp_path / "train.csv", [*rows, ("sentence 0", "food", "bad")])
    write_csv(tmp_path / "dev.csv", rows[:10])
    folder = tmp_path / "model"
    assert main(["train", "--data", str(tmp_path), "--output", str(folder), "--seeds", "0", "1", *FLAGS]) == 0
    output = capsys.readouterr().out
    warnings = load_data(tmp_path, ("train", "dev")).warnings
    assert [one.code for one in warnings] == ["no_absent_rows", "contradictory_labels", "few_dev_sentences"]
    for one in warnings:
        assert output.count(one.describe()) == 1
    for seed in (0, 1):
        content = json.loads((folder / f"seed-{seed}" / "training.json").read_text())
        assert [one["code"] for one in content["warnings"]] == [one.code for one in warnings]
    card = (folder / "seed-0" / "README.md").read_text()
    assert all(one.message in card for one in warnings)


def test_evaluate_warns_of_few_rows(tmp_path, capsys):
    folder = write_model(tmp_path / "model", layers=1)
    write_csv(tmp_path / "new.csv", [(f"slow {n}", OWN.aspects[n % 3], OWN.labels[n % 3]) for n in range(6)])
    flags = ["evaluate", str(folder), "--data", str(tmp_path / "new.csv")]
    assert main([*flags, "--report", str(tmp_path / "page")]) == 0
    assert "warning: new.csv: metrics on 6 rows are imprecise" in capsys.readouterr().out
    assert "metrics on 6 rows are imprecise" in (tmp_path / "page" / "index.html").read_text()
    assert main([*flags, "--json"]) == 0
    assert [one["code"] for one in json.loads(capsys.readouterr().out)["warnings"]] == ["few_rows"]
