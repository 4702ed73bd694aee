"""`qacg predict`: every form in, both forms out, the same whatever the window; killed and gone on; constant memory."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import ClassVar

import pytest
from qacg_models import AspectSentiment
from qacg_models.cli import main
from qacg_models.data import DataError
from qacg_models.data.requests import Request, count_lines, read_requests
from qacg_models.data.task import SENTIHOOD
from qacg_models.errors import InputError
from qacg_models.inference.bulk_prediction import BulkPrediction
from qacg_models.inference.prediction_format import PredictionLines
from untrained import OWN, TEXTS, write_model

MANY = [f"{TEXTS[number % 3]} {'very ' * (number % 7)}" for number in range(23)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("predict") / "model", layers=1)


@pytest.fixture(scope="module")
def ask(model):
    return AspectSentiment.from_pretrained(model)


def bulk(ask, window=4, form="jsonl", **asked):
    return BulkPrediction(ask, ask.questions(**asked), PredictionLines(form, OWN, False), Path("texts"), window)


def requests(texts=MANY):
    return [Request(number, text) for number, text in enumerate(texts, 1)]


def read_jsonl(text):
    return [json.loads(line) for line in text.splitlines()]


def run(*arguments):
    return main(["predict", *map(str, arguments)])


@pytest.mark.parametrize("form", ["txt", "csv", "jsonl"])
def test_a_file_gives_what_its_texts_give_one_by_one(model, ask, tmp_path, form):
    source = tmp_path / f"texts.{form}"
    if form == "txt":
        source.write_text("\n\n".join(MANY) + "\n", encoding="utf-8")
        lines = range(1, 2 * len(MANY), 2)
    elif form == "csv":
        with source.open("w", newline="") as handle:
            csv.writer(handle).writerows([["text", "other"], *([text, "x"] for text in MANY)])
        lines = range(2, len(MANY) + 2)
    else:
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in MANY), encoding="utf-8")
        lines = range(1, len(MANY) + 1)
    output = tmp_path / "out.jsonl"
    assert run(model, "--input", source, "--output", output, "--window", 5, "--aspects", "price", "food") == 0
    found = read_jsonl(output.read_text(encoding="utf-8"))
    assert [one["line"] for one in found] == [line for line in lines for _ in range(2)]
    assert [one["aspect"] for one in found] == ["price", "food"] * len(MANY)
    for text, (price, food) in zip(MANY, zip(found[::2], found[1::2])):
        for mine, wanted in zip((price, food), ask(text, aspects=["price", "food"])):
            assert (mine["text"].strip(), mine["label"]) == (text.strip(), wanted.label)
            assert mine["probabilities"] == pytest.approx(wanted.probabilities, abs=2e-6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", source.name], "nothing is left behind"


def test_csv_out_holds_texts_as_they_are(ask):
    hard = ['comma, "quote"', "line\nend", "ümlaut 'café'"]
    text = "".join(bulk(ask, form="csv").stream(requests(hard)))
    header, *rows = csv.reader(io.StringIO(text, newline=""))
    assert header == ["line", "text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    assert [row[1] for row in rows] == [one for one in hard for _ in OWN.aspects]
    for row in rows:
        shares = [float(cell) for cell in row[4:]]
        assert sum(shares) == pytest.approx(1, abs=3e-6)
        assert row[3] == OWN.labels[shares.index(max(shares))]


def test_records_may_bring_ids_aspects_and_targets(tmp_path, capsys):
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
    assert f"{source}:3: aspect: got 'view', wanted one of general, price" in capsys.readouterr().err


def test_texts_given_here_are_a_table_and_standard_input_is_a_file(model, tmp_path, capsys):
    assert run(model, "--text", TEXTS[0], TEXTS[1], "--aspects", "food") == 0
    header, _, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    assert first.startswith(TEXTS[0]) and second.startswith(TEXTS[1]) and " food " in first
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


def test_an_unfinished_run_goes_on_and_makes_again_what_changed(ask, tmp_path, monkeypatch):
    output = tmp_path / "out.jsonl"
    wanted = "".join(bulk(ask).stream(requests()))
    calls = []
    predict = AspectSentiment.predict

    def failing(self, rows, batch_size=64):
        calls.append(len(rows))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return predict(self, rows, batch_size)

    monkeypatch.setattr(AspectSentiment, "predict", failing)
    with pytest.raises(KeyboardInterrupt):
        bulk(ask).write(requests(), output, model_digest="m")
    parts = tmp_path / "out.jsonl.parts"
    assert not output.exists()
    assert sorted(path.name for path in parts.iterdir()) == [*(f"{n:08}" for n in range(3)), "plan.json"]
    with pytest.raises(InputError, match=r"holds an unfinished run; --resume goes on with it"):
        bulk(ask).write(requests(), output, model_digest="m")
    for other, name in (({"window": 5}, "window"), ({"form": "csv"}, "written as"), ({"aspects": ["food"]}, "aspects")):
        with pytest.raises(InputError, match=f"holds a run of another {name}; --overwrite"):
            bulk(ask, **other).write(requests(), output, model_digest="m", resume=True)
    with pytest.raises(InputError, match="holds a run of another model"):
        bulk(ask).write(requests(), output, model_digest="n", resume=True)
    plan = (parts / "plan.json").read_text()
    (parts / "plan.json").write_text("{")
    with pytest.raises(InputError, match=r"plan\.json: is not JSON .*; --overwrite begins anew"):
        bulk(ask).write(requests(), output, model_digest="m", resume=True)
    (parts / "plan.json").write_text(plan)
    (parts / ".00000003.999").write_text("half a part")
    # The second window changed meanwhile: it is made again, and the two others are taken.
    changed = requests([*MANY[:5], TEXTS[1], *MANY[6:]])
    assert bulk(ask).write(changed, output, model_digest="m", resume=True) == 2
    assert len(calls) == 4 + 4
    lines, before = output.read_text().splitlines(), wanted.splitlines()
    assert [n for n, pair in enumerate(zip(lines, before, strict=True)) if pair[0] != pair[1]] == [15, 16, 17]
    assert not parts.exists()
    with pytest.raises(InputError, match="is already there; --overwrite replaces it"):
        bulk(ask).write(requests(), output, model_digest="m")
    assert bulk(ask).write(requests(), output, model_digest="m", overwrite=True) == 0
    assert output.read_text() == wanted


@pytest.mark.matrix
def test_killed_it_goes_on_with_another_number_of_processes(model, ask, tmp_path):
    source, output = tmp_path / "in.txt", tmp_path / "out.csv"
    source.write_text("\n".join(MANY) + "\n", encoding="utf-8")
    flags = [str(model), "--input", str(source), "--output", str(output), "--window", "4"]
    child = os.fork()
    if not child:
        predict, calls = AspectSentiment.predict, []

        def dying(self, rows, batch_size=64):
            calls.append(1)
            if len(calls) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return predict(self, rows, batch_size)

        AspectSentiment.predict = dying
        main(["predict", *flags])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(list((tmp_path / "out.csv.parts").iterdir())) == 3 and not output.exists()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m"]
    two = subprocess.run(
        [*launcher, "qacg_models.cli", "predict", *flags, "--resume"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert two.returncode == 0, two.stderr[-3000:]
    assert two.stdout.count("predictions in") == 1, "one process speaks"
    texts = [Request(number, text) for number, text in enumerate(source.read_text().splitlines(), 1)]
    assert output.read_text() == "".join(bulk(ask, form="csv").stream(texts))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.csv"]


def test_memory_does_not_grow_with_the_file(ask, tmp_path, monkeypatch):
    """The model is left out: what is read, windowed, digested, written and joined is bounded by the window."""

    class Answer:
        text, target, aspect, label = TEXTS[0], "", "food", "good"
        probabilities: ClassVar = {"none": 0.1, "good": 0.8, "bad": 0.1}

    monkeypatch.setattr(AspectSentiment, "predict", lambda self, rows, batch_size=64: [Answer] * len(rows))
    peaks = {}
    for count in (1_000, 6_000):
        source, output = tmp_path / f"{count}.txt", tmp_path / f"{count}.jsonl"
        source.write_text("".join(f"{TEXTS[0]} number {n}\n" for n in range(count)))
        tracemalloc.start()
        bulk(ask, window=200, aspects=["food"]).write(read_requests(source, "txt", None), output, model_digest="m")
        peaks[count] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert count_lines(output) == count_lines(source) == count
    assert peaks[6_000] < 1.2 * peaks[1_000], peaks


def test_bad_input_is_named(model, ask, tmp_path, capsys):
    text, empty, broken = tmp_path / "in.txt", tmp_path / "empty.txt", tmp_path / "in.jsonl"
    text.write_text("fine\n")
    empty.write_text("\n\n")
    broken.write_text('{"text": "fine"}\n{"words": "no"}\n')
    given = ["--input", text]
    for arguments, wanted in (
        ([*given, "--aspects", "view"], "aspects: got 'view', wanted one of food, price, service"),
        ([*given, "--targets", "x"], "targets: got some, but this model's contexts are aspects alone"),
        ([*given, "--output", "out.txt"], "output: got out.txt, wanted a name that ends in .csv or .jsonl"),
        ([*given, "--resume"], "resume: got it without an output file, wanted --output FILE"),
        ([*given, "--aspect-column", "a"], "aspect_column: got one, but these texts have no columns"),
        ([*given, "--window", "0"], "window: got 0, wanted at least 1"),
        ([*given, "--device", "abacus"], "device: got 'abacus'"),
        ([*given, "--output", tmp_path / "o.csv", "--resume", "--overwrite"], "resume: got it beside overwrite"),
        (["--text", " "], "text: got an empty one"),
        (["--input", empty], f"{empty}: has no texts"),
        (["--input", broken], f"{broken}:2: lacks 'text'; it has 'words'"),
        (["--input", broken, "--aspect-column=a", "--aspects=food"], "aspects: got some beside --aspect-column"),
        (["--input", broken, "--target-column=a"], "target-column: got one, but this model's contexts are aspects"),
        (["--input", tmp_path / "in.pdf"], "has no suffix of a known format; say which by --input-format"),
        (["--input", tmp_path / "none.txt"], "cannot be read"),
    ):
        assert run(model, *arguments) == 2
        captured = capsys.readouterr()
        assert wanted in captured.err and captured.err.count("\n") == 1, captured.err
    with pytest.raises(SystemExit):
        run(model, "--text", "a", "--input", text)
    with pytest.raises(DataError, match=r"texts:2: text: got an empty one"):
        list(bulk(ask).stream([Request(1, "fine"), Request(2, " ")]))
