"""`qacg predict`: input and output formats, windows, resuming killed runs, constant memory."""

import csv
import dataclasses
import functools
import io
import json
import os
import shutil
import signal
import sys
import tracemalloc
from pathlib import Path
from typing import ClassVar

import pytest
from errors import raises
from interrupted_runs import interrupted
from processes import run_python
from qacg_models.cli import main
from qacg_models.data.columns import Columns
from qacg_models.data.requests import Request, check_requests, read_requests
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError
from qacg_models.inference import bulk_prediction
from qacg_models.inference.aspect_predictor import AspectPredictor
from qacg_models.inference.bulk_prediction import BulkPrediction
from qacg_models.inference.prediction_format import PredictionLines
from qacg_models.utils import progress
from qacg_models.utils.output_lock import lock_output
from qacg_models.utils.progress import TextBar
from untrained import OWN, TEXTS, write_model

MANY = [f"{TEXTS[number % 3]} {'very ' * (number % 7)}" for number in range(23)]


@pytest.fixture(scope="module")
def ask(model):
    return AspectPredictor.from_pretrained(model)


def bulk(ask, window=4, form="jsonl", **asked):
    return BulkPrediction(ask, ask.questions(**asked), PredictionLines(form, OWN, False), Path("texts"), window)


def requests(texts=MANY):
    return [Request(number, text) for number, text in enumerate(texts, 1)]


def read_jsonl(text):
    return [json.loads(line) for line in text.splitlines()]


class Steps:
    """Records the calls of a `TextProgress`."""

    def __init__(self):
        self.calls = []

    @property
    def done(self):
        return round(sum(texts for _, texts in self.calls), 6)

    def begin(self):
        self.calls.append(("begin", 0))

    def advance(self, texts):
        self.calls.append(("advance", texts))

    def skip(self, texts):
        self.calls.append(("skip", texts))


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
    assert run(model, "--input", source, "--output", output, "--window", 5, "--aspects", "price", "food") == 0
    found = read_jsonl(output.read_text(encoding="utf-8"))
    assert [one["line"] for one in found] == [line for line in lines for _ in range(2)]
    assert [one["aspect"] for one in found] == ["price", "food"] * len(MANY)
    for text, (price, food) in zip(MANY, zip(found[::2], found[1::2])):
        for mine, expected in zip((price, food), ask(text, aspects=["price", "food"])):
            assert (mine["text"].strip(), mine["label"]) == (text.strip(), expected.label)
            assert mine["probabilities"] == pytest.approx(expected.probabilities, abs=2e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", source.name], "no temporary file remains"


def test_predict_csv_keeps_texts_unchanged(ask):
    hard = ['comma, "quote"', "line\nend", "ümlaut 'café'"]
    text = "".join(bulk(ask, form="csv").stream(requests(hard)))
    header, *rows = csv.reader(io.StringIO(text, newline=""))
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


def test_predict_resume_remakes_changed_parts(ask, tmp_path, monkeypatch):
    output = tmp_path / "out.jsonl"
    expected = "".join(bulk(ask).stream(requests()))
    calls = []
    predict = AspectPredictor.predict_rows

    def failing(self, rows, *more):
        calls.append(len(rows))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return predict(self, rows, *more)

    monkeypatch.setattr(AspectPredictor, "predict_rows", failing)
    with pytest.raises(KeyboardInterrupt):
        bulk(ask).write(requests(), output, model_digest="m")
    parts = tmp_path / "out.jsonl.parts"
    assert not output.exists()
    assert sorted(path.name for path in parts.iterdir()) == [*(f"{n:08}" for n in range(3)), "plan.json"]
    with raises("InputError: has an unfinished run; pass --resume to continue it"):
        bulk(ask).write(requests(), output, model_digest="m")
    for other, name in (
        ({"window": 5}, "window"),
        ({"form": "csv"}, "output format"),
        ({"aspects": ["food"]}, "aspects"),
    ):
        with raises(
            "InputError: expected an unfinished run with the same options, "
            f"got one that differs in {name}; pass --overwrite"
        ):
            bulk(ask, **other).write(requests(), output, model_digest="m", resume=True)
    with raises("InputError: expected an unfinished run with the same options, got one that differs in model"):
        bulk(ask).write(requests(), output, model_digest="n", resume=True)
    (parts / ".00000003.999").write_text("half a part")
    # The second window changed meanwhile: it is computed again, and the two others are kept.
    changed = requests([*MANY[:5], TEXTS[1], *MANY[6:]])
    assert bulk(ask).write(changed, output, model_digest="m", resume=True) == 2
    assert len(calls) == 4 + 4
    lines, before = output.read_text().splitlines(), expected.splitlines()
    assert [n for n, pair in enumerate(zip(lines, before, strict=True)) if pair[0] != pair[1]] == [15, 16, 17]
    assert not parts.exists()
    with raises("InputError: which exists. Set --overwrite to replace it"):
        bulk(ask).write(requests(), output, model_digest="m")
    assert bulk(ask).write(requests(), output, model_digest="m", overwrite=True) == 0
    assert output.read_text() == expected


def _damages(content):
    """Yields damaged versions of a part: truncated, empty, not UTF-8, or with one changed bit."""
    yield content[: len(content) // 2]
    yield b""
    yield content.replace(b"0.", b"\xff.", 1)
    for place in (3, 70, content.rindex(b"0.") + 3):
        yield content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_predict_resume_remakes_damaged_parts(ask, tmp_path):
    output, parts = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    expected = "".join(bulk(ask).stream(requests()))
    with interrupted(bulk_prediction, "_join"):
        bulk(ask).write(requests(), output, model_digest="m")
    kept = {path.name: path.read_bytes() for path in parts.iterdir()}
    for damaged in _damages(kept["00000001"]):
        shutil.rmtree(parts, ignore_errors=True)
        parts.mkdir()
        for name, content in kept.items():
            (parts / name).write_bytes(damaged if name == "00000001" else content)
        printed = []
        taken = bulk(ask).write(requests(), output, model_digest="m", resume=True, say=printed.append)
        damage = f"{parts / '00000001'}: is damaged: its digest does not match its content"
        assert printed == [f"{damage}; the part is predicted again"]
        assert taken == len(kept) - 2, "all but the plan and the damaged one"
        assert output.read_text(encoding="utf-8") == expected
        output.unlink()


def test_predict_part_damaged_before_joining_raises(ask, tmp_path):
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts" / "00000000"

    class Damaging(Steps):
        def advance(self, texts):
            super().advance(texts)
            if self.done == len(MANY):
                part.write_bytes(part.read_bytes()[:-1])

    with raises("InputError: 00000000: is damaged...; pass --resume"):
        bulk(ask).write(requests(), output, model_digest="m", progress=Damaging())
    assert not output.exists()
    bulk(ask).write(requests(), output, model_digest="m", resume=True)
    assert output.read_text(encoding="utf-8") == "".join(bulk(ask).stream(requests()))


def test_predict_resume_after_publishing_deletes_parts(ask, tmp_path):
    output, expected = tmp_path / "out.jsonl", "".join(bulk(ask).stream(requests()))
    with interrupted(os, "rename"):  # of the folder of parts, which deletes it atomically
        bulk(ask).write(requests(), output, model_digest="m")
    assert output.read_text(encoding="utf-8") == expected and (tmp_path / "out.jsonl.parts").is_dir()
    assert bulk(ask).write(requests(), output, model_digest="m", resume=True) == 6
    assert output.read_text(encoding="utf-8") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]


def test_predict_half_deleted_parts_are_ignored(ask, tmp_path):
    output, parts = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts"
    output.write_text("old")
    with interrupted(bulk_prediction, "_join"):
        bulk(ask).write(requests(), output, model_digest="m", overwrite=True)
    with interrupted(shutil, "rmtree", 2):  # the first call has nothing to delete
        bulk(ask).write(requests(), output, model_digest="n", overwrite=True)
    assert not parts.exists()
    with raises("InputError: got a complete file. Set --overwrite to replace it"):
        bulk(ask).write(requests(), output, model_digest="n", resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    parts.mkdir()
    (parts / "00000000").write_text("0 0\n")
    with raises("InputError: plan.json: cannot be read (No such file or directory); pass --overwrite"):
        bulk(ask).write(requests(), output, model_digest="n", resume=True)


@pytest.mark.parametrize("flags", [[], ["--input-format", "csv"]])
def test_predict_compressed_input_raises(model, tmp_path, capsys, flags):
    source = tmp_path / "texts.csv.gz"
    source.write_bytes(b"\x1f\x8b")
    assert run(model, "--input", source, *flags, "--text-column", "text") == 2
    assert "expected a file that is not compressed, got .gz; decompress it" in capsys.readouterr().err


@pytest.mark.parametrize("choice", [{}, {"resume": True}, {"overwrite": True}])
def test_predict_second_run_raises(ask, tmp_path, choice):
    output, part = tmp_path / "out.jsonl", tmp_path / "out.jsonl.parts" / "00000000"
    part.parent.mkdir()
    part.write_bytes(b"begun")
    with lock_output(output, print), raises("InputError: out.jsonl: another run is writing to it"):
        bulk(ask).write(requests(), output, model_digest="m", **choice)
    assert part.read_bytes() == b"begun"
    assert len([*part.parent.iterdir()]) == 1
    assert not output.exists()


def test_predict_resume_of_overwrite_replaces(ask, tmp_path):
    output, expected = tmp_path / "out.jsonl", "".join(bulk(ask).stream(requests()))
    output.write_text("old")
    with interrupted(bulk_prediction, "_join"):
        bulk(ask).write(requests(), output, model_digest="m", overwrite=True)
    assert output.read_text() == "old"
    assert bulk(ask).write(requests(), output, model_digest="m", resume=True) == 6
    assert output.read_text(encoding="utf-8") == expected
    with raises("InputError: resume: expected an unfinished run of ...out.jsonl, got a complete file. Set --overwrite"):
        bulk(ask).write(requests(), output, model_digest="m", resume=True)
    output.unlink()
    with interrupted(bulk_prediction, "_join"):
        bulk(ask).write(requests(), output, model_digest="m")
    output.write_text("somebody else's")
    with raises("InputError: which exists. Set --overwrite to replace it"):
        bulk(ask).write(requests(), output, model_digest="m", resume=True)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (b"{", "is not JSON"),
        (b"[" * 100_000, "is not JSON ...nested too deep"),
        (b'{"format": ' + b"1" * 5000 + b"}", "is not JSON ...a number has more than 4300 digits"),
        (b"\xff", "is not JSON"),
        (b"[]", "plan.json: expected an object, got []"),
        (b'{"format": 1, "model": "m"}', "lacks the fields attention, aspects,"),
        (b'{"format": 2, "model": "m"}', "differs in format"),
    ],
    ids=["cut", "deep", "digits", "bytes", "list", "lacking", "other"],
)
def test_predict_damaged_plan_raises(ask, tmp_path, plan, message):
    parts = tmp_path / "out.jsonl.parts"
    parts.mkdir()
    (parts / "plan.json").write_bytes(plan)
    with raises(f"InputError: out.jsonl.parts...{message}...; pass --overwrite"):
        bulk(ask).write(requests(), tmp_path / "out.jsonl", model_digest="m", resume=True)


@pytest.mark.full
def test_predict_killed_resumes_with_other_processes(model, ask, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text("\n".join(MANY) + "\n", encoding="utf-8")
    flags = [str(model), "--input", str(source), "--output", str(output), "--window", "4"]
    child = os.fork()
    if not child:
        predict, calls = AspectPredictor.predict_rows, []

        def dying(self, rows, *more):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return predict(self, rows, *more)

        AspectPredictor.predict_rows = dying
        main(["predict", *flags])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(list((tmp_path / "out.csv.parts").iterdir())) == 3 and not output.exists()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
    two = run_python(*launcher, "qacg_models.cli", "predict", *flags, "--resume", OMP_NUM_THREADS="1")
    assert two.stdout.count("predictions in") == 1, "only one process prints"
    texts = [Request(number, text) for number, text in enumerate(source.read_text().splitlines(), 1)]
    assert output.read_text() == "".join(bulk(ask, form="csv").stream(texts))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.csv"]


@pytest.mark.full
def test_predict_memory_is_constant(ask, tmp_path, monkeypatch):
    """The model is stubbed: reading, hashing, writing and joining require memory for one window only."""

    class Answer:
        text, target, aspect, label = TEXTS[0], "", "food", "good"
        probabilities: ClassVar = {"none": 0.1, "good": 0.8, "bad": 0.1}

    monkeypatch.setattr(AspectPredictor, "predict_rows", lambda self, rows, *_: [Answer] * len(rows))
    peaks = {}
    for count in (1_000, 6_000):
        source, output = tmp_path / f"{count}.txt", tmp_path / f"{count}.jsonl"
        source.write_text("".join(f"{TEXTS[0]} number {n}\n" for n in range(count)))
        tracemalloc.start()
        bulk(ask, window=200, aspects=["food"]).write(
            read_requests(source, "txt", Columns(aspect=None, label=None)), output, model_digest="m"
        )
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(1 for _ in output.open()) == count
    assert peaks[6_000] < 1.2 * peaks[1_000], peaks


def test_predict_bad_input_prints_one_line(model, ask, tmp_path, capsys):
    text, empty, broken = tmp_path / "in.txt", tmp_path / "empty.txt", tmp_path / "in.jsonl"
    text.write_text("fine\n")
    empty.write_text("\n\n")
    broken.write_text('{"text": "fine"}\n{"words": "no"}\n')
    given = ["--input", text]
    for arguments, expected in (
        (
            [*given, "--aspects", "view"],
            "aspects: expected one of the model's aspects (food, price, service), got 'view'",
        ),
        ([*given, "--targets", "x"], "targets: expected None, since the model has no targets, got x"),
        ([*given, "--output", "out.txt"], "output: expected a name that ends in .csv or .jsonl, got out.txt"),
        ([*given, "--resume"], "resume: expected --output FILE with --resume, got none"),
        ([*given, "--aspect-column", "a"], "aspect-column: expected a table as --input, got lines of text"),
        ([*given, "--window", "0"], "window: expected 1 to 1,000,000, got 0"),
        ([*given, "--device", "abacus"], "got 'abacus'"),
        (
            [*given, "--output", tmp_path / "o.csv", "--resume", "--overwrite"],
            "resume, overwrite: expected at most one of them, got both",
        ),
        (["--text", " "], "text: expected a sentence, got an empty"),
        (["--input", empty], f"{empty}: has no texts"),
        (["--input", broken], f"{broken}:2: columns: expected 'text', got 'words'"),
        (["--input", broken, "--aspect-column=a", "--aspects=food"], "aspects: expected either --aspects or"),
        (["--input", broken, "--target-column=a"], "target-column: expected none, because this model has no targets"),
        (["--input", tmp_path / "in.pdf"], "suffix of a known format, got 'pdf'; select one with --input-format"),
        (["--input", tmp_path / "none.txt"], "cannot be read"),
    ):
        assert run(model, *arguments) == 2
        captured = capsys.readouterr()
        assert expected in captured.err and captured.err.count("\n") == 1, captured.err
    with pytest.raises(SystemExit):
        run(model, "--text", "a", "--input", text)
    with raises("DataError: texts:2: text: expected a sentence, got an empty"):
        list(bulk(ask).stream([Request(1, "fine"), Request(2, " ")]))


def test_predict_keeps_other_columns_by_default(model, tmp_path, capsys):
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text('when,text,label,when\n"a\nb",nice,,1\n=2,so so,gold,3\n', encoding="utf-8")
    asked = ["--input", source, "--aspects", "food", "price", "--output"]
    assert run(model, *asked, output, "--window", 1) == 0
    with output.open(encoding="utf-8", newline="") as handle:
        header, *rows = csv.reader(handle)
    assert header == [
        *("line", "text", "aspect", "label", "p(none)", "p(good)", "p(bad)", "when", "label (input)", "when (2)"),
    ]
    assert [row[7:] for row in rows] == [["a\nb", "", "1"]] * 2 + [["=2", "gold", "3"]] * 2
    assert [row[:2] for row in rows] == [["2", "nice"]] * 2 + [["4", "so so"]] * 2
    assert run(model, *asked, tmp_path / "out.jsonl") == 0
    kept = [one["columns"] for one in read_jsonl((tmp_path / "out.jsonl").read_text())]
    assert (
        kept
        == [{"when": "a\nb", "label": "", "when (2)": "1"}] * 2 + [{"when": "=2", "label": "gold", "when (2)": "3"}] * 2
    )
    assert run(model, *asked, output, "--overwrite", "--columns", "none") == 0
    assert [len(row) for row in csv.reader(output.open(newline=""))] == [7] * 5
    capsys.readouterr()
    (tmp_path / "in.txt").write_text("fine\n")
    assert run(model, "--input", tmp_path / "in.txt", "--columns", "all") == 2
    message = (
        "columns: expected an input in the format csv, tsv, xlsx or parquet with --columns all, got txt."
        " Omit --columns."
    )
    assert message in capsys.readouterr().err


def test_predict_min_confidence_marks_uncertain_rows(model, ask, tmp_path, capsys):
    source = tmp_path / "in.txt"
    source.write_text("\n".join(MANY) + "\n", encoding="utf-8")
    answers = [one for text in MANY for one in ask(text)]
    confidence = sorted(max(one.probabilities.values()) for one in answers)
    least = round((confidence[19] + confidence[20]) / 2, 6)
    marks = ["uncertain" if one.probabilities[one.label] < least else "certain" for one in answers]
    assert marks.count("uncertain") == 20
    shown_text = f"20 of {len(answers)} predictions are uncertain: the probability of their label is below {least:g}"
    flags = ["--min-confidence", least]
    for name in ("out.csv", "out.jsonl"):
        assert run(model, "--input", source, "--output", tmp_path / name, *flags, "--window", 5) == 0
        assert shown_text in capsys.readouterr().out
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as handle:
        found = list(csv.DictReader(handle))
    assert [one["certainty"] for one in found] == marks
    assert [one["label"] for one in found] == [one.label for one in answers], "labels are unchanged"
    assert [one["certainty"] for one in read_jsonl((tmp_path / "out.jsonl").read_text())] == marks
    assert run(model, "--input", source, *flags) == 0
    captured = capsys.readouterr()
    assert [one["certainty"] for one in read_jsonl(captured.out)] == marks and shown_text in captured.err
    assert run(model, "--text", MANY[0], *flags) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[3] == "certainty" and f"{marks[:3].count('uncertain')} of 3 predictions" in shown[-1]
    for wrong in ("0", "1.5", "nan"):
        assert run(model, "--text", "a", "--min-confidence", wrong) == 2
        assert "expected a number above 0 and at most 1" in capsys.readouterr().err
    lines = PredictionLines("jsonl", OWN, False, min_confidence=0.5)
    marking = BulkPrediction(ask, ask.questions(), lines, Path("texts"), 4)
    with pytest.raises(KeyboardInterrupt):
        marking.write(requests(), tmp_path / "half.jsonl", model_digest="m", progress=Interrupting())
    with raises("InputError: expected an unfinished run with the same options, got one that differs in output format"):
        bulk(ask).write(requests(), tmp_path / "half.jsonl", model_digest="m", resume=True)


class Interrupting(Steps):
    def advance(self, texts):
        raise KeyboardInterrupt


def test_progress_in_a_log_is_lines_and_counts_texts(model, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    source = tmp_path / "in.csv"
    source.write_text('text\n"one\ntext"\n\n' + "another\n" * 6, encoding="utf-8")
    flags = ["--aspects=food", "--quoting=minimal", "--window", 3]
    assert run(model, "--input", source, *flags, "--output", tmp_path / "o.csv") == 0
    printed = capfd.readouterr().err
    assert "\r" not in printed
    assert [line.split()[2] for line in printed.splitlines()[1:]] == ["3/7", "6/7", "7/7"], (
        "the first line has the batch size"
    )
    assert all(line.startswith("predicting:") and "text" in line.split()[-1] for line in printed.splitlines()[1:])


def test_progress_moves_within_a_window(ask, tmp_path):
    steps = Steps()
    small = dataclasses.replace(bulk(ask, window=20), batch_size=6)
    small.write(requests(), tmp_path / "out.jsonl", model_digest="m", progress=steps)
    assert steps.calls[0] == ("begin", 0) and {name for name, _ in steps.calls[1:]} == {"advance"}
    # Three aspects: a batch of six rows has two texts.
    assert [texts for _, texts in steps.calls[1:]] == pytest.approx([2] * 10 + [2, 1])
    assert steps.done == len(MANY)


def test_progress_skips_what_an_earlier_run_did(ask, tmp_path):
    class Stopping(Steps):
        def advance(self, texts):
            super().advance(texts)
            if self.done == 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bulk(ask).write(requests(), tmp_path / "out.jsonl", model_digest="m", progress=Stopping())
    steps = Steps()
    bulk(ask).write(requests(), tmp_path / "out.jsonl", model_digest="m", resume=True, progress=steps)
    assert steps.calls == [("begin", 0), ("skip", 4), ("skip", 4), *[("advance", 4)] * 3, ("advance", 3)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_rate_counts_this_run_alone(monkeypatch, terminal):
    """An earlier run did 40 texts, which are skipped in 8 s; this run does 10 texts in 5 s."""
    now, shown = [100.0], Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.setattr(progress, "LogLines", functools.partial(progress.LogLines, clock=lambda: now[0]))
    with TextBar(lambda: 100) as bar:
        bar.begin()
        for _ in range(4):
            now[0] += 2
            bar.skip(10)
        for _ in range(20):
            now[0] += 0.25
            bar.advance(0.5)
    last = shown.getvalue().replace("\r", "\n").split("\n")[-2 if shown.getvalue().endswith("\n") else -1]
    assert " 50/100 " in f" {last} " and "[00:05<00:25,  2.00text/s]" in last, last


def test_progress_log_lines_are_seconds_apart():
    now, log = [0.0], io.StringIO()
    bar = progress.LogLines(100, "training", "step", 10, log, clock=lambda: now[0])
    for second in range(13):
        now[0] = float(second)
        bar.set_postfix({"loss": f"{second}"}, refresh=False)
        bar.update(1)
    bar.close()
    bar.close()
    lines = log.getvalue().splitlines()
    assert [line.split()[2] for line in lines] == ["16/100", "21/100", "23/100"]
    assert [line.rpartition("loss=")[2] for line in lines] == ["5]", "10]", "12]"]


def test_check_requests_counts_texts_and_lists_bad_ones(tmp_path):
    def check(request):
        if request.text == "bad":
            raise InputError("text: got 'bad'")

    for name, content in (
        ("in.txt", "a\n\nb"),
        ("in.csv", 'text;n\n"a\n\nb";1\n\nc;2'),
        ("in.jsonl", '{"text": "a"}\n\n{"text": "b"}\n'),
    ):
        path = tmp_path / name
        path.write_text(content)
        columns = Columns(aspect=None, label=None, delimiter=";")
        assert check_requests(read_requests(path, path.suffix[1:], columns), path, check) == 2
    path.write_text('{"text": "a"}\n' + '{"text": "bad"}\n' * 30)
    listed = ", ".join(str(line) for line in range(3, 22))
    with raises(f"DataError: :2: text: got 'bad' (also lines {listed}); and 10 more; correct"):
        check_requests(read_requests(path, "jsonl", columns), path, check)
