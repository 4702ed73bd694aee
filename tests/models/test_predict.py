"""`qacg predict`: input and output formats, chunks, resumed runs, memory, progress."""

import csv
import io
import json
import os
import tracemalloc

import numpy as np
import pytest
from errors import raises
from interrupted_runs import interrupted
from qacg_models import AspectSentiment
from qacg_models.cli.commands import predict as command
from qacg_models.cli.commands.predict import PartialFile
from qacg_models.cli.program import main
from qacg_models.sentiment import trained_model
from qacg_models.sentiment.example import SENTIHOOD
from qacg_models.sentiment.predictor import Predictor
from qacg_models.utils.files import lock_output, partial_path
from untrained import OWN, TEXTS, write_model

MANY = [f"{TEXTS[number % 3]} {'very ' * (number % 7)}" for number in range(23)]


@pytest.fixture(scope="module")
def ask(model):
    return AspectSentiment.from_pretrained(model)


@pytest.fixture
def source(tmp_path):
    """A file of MANY texts, in a folder of its own."""
    path = tmp_path / "source" / "in.txt"
    path.parent.mkdir()
    path.write_text("\n".join(MANY) + "\n", encoding="utf-8")
    return path


def read_jsonl(text):
    return [json.loads(line) for line in text.splitlines()]


def run(*arguments):
    return main(["predict", *map(str, arguments)])


@pytest.mark.parametrize("form", ["txt", "csv", "json", "jsonl"])
def test_predict_file_equals_single_texts(model, ask, tmp_path, form):
    source = tmp_path / f"texts.{form}"
    if form == "txt":
        source.write_text("\n\n".join(MANY) + "\n", encoding="utf-8")
        lines = range(1, 2 * len(MANY), 2)
    elif form == "csv":
        with source.open("w", newline="") as handle:
            csv.writer(handle).writerows([["text", "other"], *([text, "x"] for text in MANY)])
        lines = range(2, len(MANY) + 2)
    elif form == "json":
        source.write_text(json.dumps([{"text": text} for text in MANY], indent=0), encoding="utf-8")
        lines = range(2, 3 * len(MANY) + 2, 3)
    else:
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in MANY), encoding="utf-8")
        lines = range(1, len(MANY) + 1)
    output = tmp_path / "out.jsonl"
    assert run(model, "--input", source, "--output", output, "--aspects", "price", "food") == 0
    found = read_jsonl(output.read_text(encoding="utf-8"))
    assert [one["line"] for one in found] == [line for line in lines for _ in range(2)]
    assert [one["aspect"] for one in found] == ["price", "food"] * len(MANY)
    for text, (price, food) in zip(MANY, zip(found[::2], found[1::2])):
        for mine, expected in zip((price, food), ask(text, aspects=["price", "food"])):
            assert (mine["text"].strip(), mine["label"]) == (text.strip(), expected.label)
            assert mine["probabilities"] == pytest.approx(expected.probabilities, abs=2e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", source.name], "no temporary file remains"


def test_predict_csv_keeps_texts_unchanged(model, tmp_path):
    hard = ['comma, "quote"', "line\nend", "ümlaut 'café'", "'", "NA", "1.50"]
    assert run(model, "--text", *hard, "--output", tmp_path / "out.csv") == 0
    header, *rows = csv.reader(io.StringIO((tmp_path / "out.csv").read_bytes().decode(), newline=""))
    assert header == ["line", "text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    assert [row[1] for row in rows] == [one for one in hard for _ in OWN.aspects]
    for row in rows:
        shares = [float(cell) for cell in row[4:]]
        assert sum(shares) == pytest.approx(1, abs=3e-6)
        assert row[3] == OWN.labels[shares.index(max(shares))]


def test_predict_uses_ids_aspects_and_targets_of_rows(tmp_path, capsys):
    folder = write_model(tmp_path / "model", SENTIHOOD, layers=1)
    source = tmp_path / "in.csv"
    source.write_text('n;said;what;whose\n7;nice;price;location - 1\n8;"a ; b";safety;location - 2\n')
    flags = ["--text-column=said", "--aspect-column=what", "--target-column=whose", "--id-column=n", "--delimiter=;"]
    assert run(folder, "--input", source, *flags) == 0
    found = read_jsonl(capsys.readouterr().out)
    assert [(one["id"], one["text"], one["target"], one["aspect"]) for one in found] == [
        ("7", "nice", "location - 1", "price"),
        ("8", "a ; b", "location - 2", "safety"),
    ]
    source.write_text("n;said;what;whose\n7;nice;price;location - 1\n8;nice;view;location - 1\n")
    assert run(folder, "--input", source, *flags) == 2
    assert (
        f"{source}:3: aspect: expected one of the model's aspects (general, price, safety, transit location),"
        " got 'view'" in capsys.readouterr().err
    )


def test_predict_text_prints_a_table(model, tmp_path, capsys):
    assert run(model, "--text", TEXTS[0], TEXTS[1], "--aspects", "food") == 0
    header, _, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    assert first.startswith(TEXTS[0])
    assert second.startswith(TEXTS[1])
    assert " food " in first
    given = tmp_path / "given"
    given.write_text(f"{TEXTS[1]}\n{TEXTS[0]}\n")
    kept = os.dup(0)
    try:
        for _ in range(2):  # standard input stays open
            with given.open() as handle:
                os.dup2(handle.fileno(), 0)
                assert run(model, "--input", "-", "--aspects", "food") == 0
            assert [one["text"] for one in read_jsonl(capsys.readouterr().out)] == [TEXTS[1], TEXTS[0]]
    finally:
        os.dup2(kept, 0)
        os.close(kept)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("chunks", [0, 2, 5])
def test_predict_resumed_equals_undisturbed(model, source, tmp_path, capsys, monkeypatch, form, chunks):
    monkeypatch.setattr(command, "WINDOW", 4)
    output, flags = tmp_path / f"out.{form}", [model, "--input", source]
    assert run(*flags, "--output", tmp_path / f"whole.{form}") == 0
    expected = (tmp_path / f"whole.{form}").read_bytes()
    (tmp_path / f"whole.{form}").unlink()
    with interrupted(Predictor, "predict", chunks + 1):
        run(*flags, "--output", output)
    done = partial_path(output).read_bytes()
    assert expected.startswith(done) and bool(done) == bool(chunks) and not output.exists()
    for torn in (b"", b"1", expected[len(done) : -1]):
        with partial_path(output).open("ab") as handle:
            handle.write(torn)
        kept = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
        capsys.readouterr()
        assert run(*flags, "--output", output, "--resume") == 0
        assert (f"; {4 * chunks} texts of 23 by the interrupted run" in capsys.readouterr().out) == bool(chunks)
        assert output.read_bytes() == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == [output.name, "source"]
        output.unlink()
        for path, content in kept.items():
            path.write_bytes(content)


def test_predict_resume_of_another_run_raises(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "WINDOW", 1)
    other, table, changed = write_model(tmp_path / "other", heads=4), tmp_path / "in.csv", tmp_path / "changed.csv"
    table.write_text("text,other,topic\nfine,slow,food\ncheap,dear,price\n")
    changed.write_text(table.read_text().replace("cheap", "poor"))
    flags = ["--input", table, "--output", tmp_path / "out.jsonl"]
    with interrupted(Predictor, "predict", 2):
        run(model, *flags)
    kept = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for arguments, name in (
        ([model, *flags, "--by", "sentence"], "by"),
        ([model, *flags, "--min-confidence", "0.5"], "min_confidence"),
        ([model, *flags, "--aspects", "food"], "aspects"),
        ([model, *flags, "--precision", "bfloat16"], "precision"),
        ([other, *flags], "model"),
        ([model, *flags, "--input", changed], "texts"),
        ([model, *flags, "--text-column", "other"], "columns"),
        ([model, *flags, "--aspect-column", "topic"], "columns"),
        ([model, *flags, "--id-column", "topic"], "columns"),
    ):
        assert run(*arguments, "--resume") == 2
        message = f"the same model, options and texts, got one that differs in {name}; pass --overwrite"
        assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in kept} == kept
    assert run(model, *flags, "--resume") == 0


RUN = {"model": "digest", "aspects": ["food"]}


def unfinished(output, run=RUN, resume=False, overwrite=False):
    return PartialFile(output, run, resume=resume, overwrite=overwrite)


@pytest.mark.parametrize(
    ("content", "difference"),
    [*((content, "model, aspects") for content in (None, b"", b"\xff", b"[]\n1 2\n")), (b"", "the size of the file")],
)
def test_partial_file_that_does_not_fit_its_state_raises(tmp_path, content, difference):
    file = unfinished(tmp_path / "out.csv")
    file.append("a\n", 1)
    if "size" in difference:
        os.truncate(file.partial, 1)
    elif content is None:
        file.state.unlink()
    else:
        file.state.write_bytes(content)
    with raises(f"InputError: got one that differs in {difference}; pass --overwrite to start again"):
        unfinished(tmp_path / "out.csv", resume=True)


def test_partial_file_of_an_unfinished_run_needs_a_flag(tmp_path):
    unfinished(tmp_path / "out.csv").append("a\n", 1)
    with raises("InputError: has an unfinished run; pass --resume to continue it, or --overwrite to start again"):
        unfinished(tmp_path / "out.csv")
    file = unfinished(tmp_path / "out.csv", {"model": "another"}, overwrite=True)
    assert file.texts == 0 and file.partial.read_text() == ""


def test_partial_file_replaces_only_with_overwrite(tmp_path):
    output = tmp_path / "out.csv"
    output.write_text("old")
    unfinished(output, overwrite=True).append("a\n", 1)
    assert output.read_text() == "old"
    file = unfinished(output, resume=True)
    assert file.texts == 1
    with interrupted(os, "replace", after=True):
        file.publish()
    assert output.read_text() == "a\n"
    with raises("InputError: which exists. Set --overwrite to replace it"):
        unfinished(output, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]
    output.unlink()
    unfinished(output)
    output.write_text("somebody else's")
    with raises("InputError: which exists. Set --overwrite to replace it"):
        unfinished(output, resume=True)


@pytest.mark.parametrize("flag", [[], ["--resume"], ["--overwrite"]])
def test_predict_second_run_raises(model, source, tmp_path, capsys, flag):
    output = tmp_path / "out.jsonl"
    partial_path(output).write_bytes(b"begun")
    with lock_output(output, print):
        assert run(model, "--input", source, "--output", output, *flag) == 2
    assert "out.jsonl: another run is writing to it" in capsys.readouterr().err
    assert partial_path(output).read_bytes() == b"begun"


@pytest.mark.full
def test_predict_holds_the_predictions_of_a_chunk(model, tmp_path, monkeypatch):
    """The model is stubbed: only the table of texts requires more memory for more texts."""
    logits = lambda model, tokenizer, rows, *_: np.zeros((len(rows), 3))  # noqa: E731
    monkeypatch.setattr(trained_model, "predict_logits", logits)
    monkeypatch.setattr(command, "WINDOW", 200)
    peaks = {}
    for count in (1_000, 1_000, 6_000):  # the first run imports modules
        source, output = tmp_path / f"{count}.txt", tmp_path / f"{count}.jsonl"
        source.write_text("".join(f"{TEXTS[0]} number {n}\n" for n in range(count)))
        tracemalloc.start()
        assert run(model, "--input", source, "--output", output, "--overwrite") == 0
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(1 for _ in output.open()) == 3 * count
    assert (peaks[6_000] - peaks[1_000]) / 5_000 < 700, peaks


def test_predict_bad_input_prints_one_line(model, tmp_path, capsys, monkeypatch):
    text, empty, broken = tmp_path / "in.txt", tmp_path / "empty.txt", tmp_path / "in.jsonl"
    text.write_text("fine\n")
    empty.write_text("\n\n")
    broken.write_text('{"text": "fine"}\n{"words": "no"}\n')
    given = ["--input", text]
    for arguments, expected in (
        ([*given, "--aspects", "view"], "aspects: expected one of the model's aspects (food, price, service), got"),
        ([*given, "--targets", "x"], "targets: expected None, since the model has no targets, got x"),
        ([*given, "--output", "out.txt"], "output: expected a name that ends in .csv or .jsonl, got out.txt"),
        ([*given, "--summary", "a.html"], "summary: expected --output FILE with --summary, got none"),
        ([*given, "--output", "a.csv", "--summary", "a.csv"], "summary: expected a file other than --output"),
        ([*given, "--resume"], "resume: expected --output FILE with --resume, got none"),
        ([*given, "--aspect-column", "a"], "aspect-column: expected a table as --input, got lines of text"),
        ([*given, "--skip-empty"], "skip-empty: expected a table as --input, got lines of text"),
        ([*given, "--encoding", "klingon"], "encoding: expected the name of an encoding"),
        ([*given, "--device", "abacus"], "got 'abacus'"),
        ([*given, "--resume", "--overwrite"], "resume, overwrite: expected at most one of them, got both"),
        (["--text", " "], "text: expected a sentence, got an empty"),
        (["--input", empty], f"{empty}: has no texts"),
        (["--input", broken], f"{broken}:2: columns: expected 'text', got 'words'"),
        (["--input", broken, "--aspect-column=a", "--aspects=food"], "aspects: expected either --aspects or"),
        (["--input", broken, "--target-column=a"], "target-column: expected none, because this model has no targets"),
        (["--input", tmp_path / "in.pdf"], "suffix of a known format, got 'pdf'; select one with --format"),
        (["--input", tmp_path / "in.xml"], "got 'xml'; write the texts to a CSV"),
        (["--input", tmp_path / "none.txt"], "cannot be read"),
    ):
        assert run(model, *arguments) == 2
        captured = capsys.readouterr()
        assert expected in captured.err and captured.err.count("\n") == 1, captured.err
    with pytest.raises(SystemExit):
        run(model, "--text", "a", "--input", text)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(model, "--text", "a") == 2
    assert "torchrun: expected one process for a prediction, got 2. Use an engine" in capsys.readouterr().err


def test_predict_keeps_other_columns(model, tmp_path):
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('when,text,label,when\n"a\nb",nice,,1\n=2,so so,gold,3\n', encoding="utf-8")
    asked = ["--input", source, "--aspects", "food", "price", "--output"]
    assert run(model, *asked, output) == 0
    with output.open(encoding="utf-8", newline="") as handle:
        header, *rows = csv.reader(handle)
    assert header == [
        *("line", "text", "aspect", "label", "p(none)", "p(good)", "p(bad)", "when", "label (input)", "when (2)"),
    ]
    assert [row[7:] for row in rows] == [["a\nb", "", "1"]] * 2 + [["=2", "gold", "3"]] * 2
    assert [row[:2] for row in rows] == [["2", "nice"]] * 2 + [["4", "so so"]] * 2
    assert run(model, *asked, tmp_path / "out.jsonl") == 0
    kept = [one["columns"] for one in read_jsonl((tmp_path / "out.jsonl").read_text())]
    first, second = {"when": "a\nb", "label": "", "when (2)": "1"}, {"when": "=2", "label": "gold", "when (2)": "3"}
    assert kept == [first, first, second, second]


def test_predict_min_confidence_marks_uncertain_rows(model, ask, source, tmp_path, capsys):
    answers = [one for text in MANY for one in ask(text)]
    confidence = sorted(max(one.probabilities.values()) for one in answers)
    least = round((confidence[19] + confidence[20]) / 2, 6)
    marks = ["uncertain" if one.probabilities[one.label] < least else "certain" for one in answers]
    assert marks.count("uncertain") == 20
    shown = f"20 of {len(answers)} predictions are uncertain: the probability of their label is below {least:g}"
    flags = ["--min-confidence", least]
    for name in ("out.csv", "out.jsonl"):
        assert run(model, "--input", source, "--output", tmp_path / name, *flags) == 0
        assert shown in capsys.readouterr().out
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as handle:
        found = [(one["certainty"], one["label"]) for one in csv.DictReader(handle)]
    assert found == [(mark, one.label) for mark, one in zip(marks, answers)], "labels are unchanged"
    assert run(model, "--input", source, *flags) == 0
    captured = capsys.readouterr()
    for printed in (captured.out, (tmp_path / "out.jsonl").read_text()):
        assert [one["certainty"] for one in read_jsonl(printed)] == marks
    assert shown in captured.err
    assert run(model, "--text", MANY[0], *flags) == 0
    captured = capsys.readouterr()
    assert captured.out.split()[3] == "certainty"
    assert f"{marks[:3].count('uncertain')} of 3 predictions" in captured.err
    for wrong in ("0", "1.5", "nan"):
        assert run(model, "--text", "a", "--min-confidence", wrong) == 2
        assert "expected a number above 0 and at most 1" in capsys.readouterr().err
