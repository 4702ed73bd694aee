"""`qacg predict --summary`: shares, intervals, sentences; the page in a browser; constant memory."""

import csv
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from html_tree import Tree
from interrupted_runs import interrupted
from qacg_models.cli.program import main
from qacg_models.sentiment.metrics import wilson_interval
from qacg_models.sentiment.predictor import PredictionFormat, Predictor
from qacg_models.sentiment.report.evaluation import summarize
from untrained import OWN, TEXTS


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A CSV of 30 texts with another column, in the current folder."""
    monkeypatch.chdir(tmp_path)
    with open("in.csv", "w", encoding="utf-8", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(["text", "label"])
        rows.writerows([f"{TEXTS[number % 3]} {number}", "x"] for number in range(30))
    return Path("in.csv")


def predict(model, *more):
    return main(["predict", str(model), "--input", "in.csv", *more])


@pytest.mark.parametrize("output", ["out.csv", "out.jsonl"])
def test_summary_counts_the_output(model, reviews, output, capsys):
    assert predict(model, "--output", output, "--summary", "page.html") == 0
    assert "summary in page.html" in capsys.readouterr().out
    if output == "out.csv":
        with open(output, encoding="utf-8", newline="") as handle:
            found = [(row["aspect"], row["label"]) for row in csv.DictReader(handle)]
    else:
        lines = [json.loads(line) for line in Path(output).read_text(encoding="utf-8").splitlines()]
        found = [(row["aspect"], row["label"]) for row in lines]
    expected = []
    for aspect in OWN.aspects:
        counts = Counter(label for name, label in found if name == aspect)
        for label in OWN.labels:
            lower, upper = (f"{100 * bound:.1f}" for bound in wilson_interval(counts[label], 30))
            expected.append([label, str(counts[label]), f"{100 * counts[label] / 30:.1f}", f"{lower}–{upper}", ""])
    rows = Tree(Path("page.html").read_text(encoding="utf-8")).rows
    assert [row for row in rows if row[0] != "label"] == expected


def test_summary_has_the_best_sentences_and_other_counts(model, reviews):
    with reviews.open("a", encoding="utf-8") as handle:
        handle.write(",x\n")
    more = ["--skip-empty", "--min-confidence", "1"]
    assert predict(model, "--output", "out.csv", "--summary", "page.html", *more) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "1 text was skipped" in page and "90 of the predictions are uncertain" in page
    with open("out.csv", encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["label"] not in ("none", "")]
    best = max(rows, key=lambda row: float(row[f"p({row['label']})"]))
    quotes = [one["text"] for one in Tree(page).all("blockquote")]
    assert best["text"] in [quote.rpartition(" (")[0] for quote in quotes]


def test_summary_of_a_resumed_run_is_whole(model, reviews, monkeypatch):
    monkeypatch.setattr("qacg_models.cli.commands.predict.WINDOW", 5)
    flags = ["--output", "out.csv", "--summary", "page.html"]
    with interrupted(Predictor, "predict", 3):
        predict(model, *flags)
    assert not Path("page.html").exists()
    assert predict(model, *flags, "--resume") == 0
    assert "90 predictions, one for each text" in Path("page.html").read_text(encoding="utf-8")


def test_wilson_interval_equals_published_values():
    """The values are those of Newcombe (1998), table I: 81 of 263, and 0 of 20."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_summary_memory_does_not_grow(tmp_path):
    form, peaks = PredictionFormat("csv", OWN), []
    for count in (5_000, 50_000):
        path = tmp_path / f"{count}.csv"
        with path.open("w", encoding="utf-8") as handle:
            handle.write("line,text,aspect,label,p(none),p(good),p(bad)\n")
            handle.writelines(f"{n},{'long ' * 40}{n},food,good,0.1,{n / count:.6f},0.1\n" for n in range(count))
        tracemalloc.start()
        summary = summarize(path, form)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert summary.total == count
    assert peaks[1] < 1.2 * peaks[0]
