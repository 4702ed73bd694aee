"""`qacg predict --summary`: shares, intervals, groups, months, sentences; the page in a browser; constant memory."""

import csv
import json
import re
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from browser import CHECKS
from html_tree import Tree
from interrupted_runs import interrupted
from qacg_models.cli import main
from qacg_models.inference.prediction_format import PredictionFormat
from qacg_models.inference.predictor import Predictor
from qacg_models.metrics.wilson import wilson_interval
from qacg_models.reporting.prediction_summary import (
    MOST_GROUPS,
    NO_DATE,
    OTHER,
    Prediction,
    Summary,
    month_of,
    summarize,
)
from qacg_models.reporting.summary_page import write_summary
from untrained import OWN, TEXTS

HOTELS = ["Alpha", "Beta <b>", "Gamma"]


@pytest.fixture
def reviews(tmp_path, monkeypatch):
    """A CSV of 30 texts with a group and a date, in the current folder."""
    monkeypatch.chdir(tmp_path)
    with open("in.csv", "w", encoding="utf-8", newline="") as handle:
        rows = csv.writer(handle)
        rows.writerow(["text", "hotel", "day", "label"])
        for number in range(30):
            day = f"2024-{number % 4 + 1:02}-09" if number else "yesterday"
            rows.writerow([f"{TEXTS[number % 3]} {number}", HOTELS[number % 3], day, "x"])
    return Path("in.csv")


def predict(model, *more):
    return main(["predict", str(model), "--input", "in.csv", *more])


@pytest.mark.parametrize("output", ["out.csv", "out.jsonl"])
def test_summary_counts_the_output(model, reviews, output, capsys):
    assert predict(model, "--output", output, "--summary", "page.html", "--group-column", "hotel") == 0
    assert "summary in page.html" in capsys.readouterr().out
    if output == "out.csv":
        with open(output, encoding="utf-8", newline="") as handle:
            found = [(row["aspect"], row["label"], row["hotel"]) for row in csv.DictReader(handle)]
    else:
        lines = [json.loads(line) for line in Path(output).read_text(encoding="utf-8").splitlines()]
        found = [(row["aspect"], row["label"], row["columns"]["hotel"]) for row in lines]
    page = Path("page.html").read_text(encoding="utf-8")
    rows = Tree(page).rows
    for aspect, table in zip(OWN.aspects, rows_by_table(rows, "label")):
        counts = Counter(label for name, label, _ in found if name == aspect)
        expected = []
        for label in OWN.labels:
            lower, upper = (f"{100 * bound:.1f}" for bound in wilson_interval(counts[label], 30))
            expected.append([label, str(counts[label]), f"{100 * counts[label] / 30:.1f}", f"{lower}–{upper}", ""])
        assert table == expected
    for aspect, table in zip(OWN.aspects, rows_by_table(rows, "hotel")):
        assert [row[:2] for row in table] == [[hotel, "10"] for hotel in HOTELS]
        alpha = Counter(label for name, label, hotel in found if (name, hotel) == (aspect, "Alpha"))
        assert [cell.split(" ")[0] for cell in table[0][2:]] == [f"{10 * alpha[label]:.1f}" for label in OWN.labels]


def rows_by_table(rows, corner):
    """The body rows of the tables whose header begins with `corner`."""
    tables, current = [], None
    for row in rows:
        if row[0] in ("label", "hotel", "month"):
            current = [] if row[0] == corner else None
            tables += [] if current is None else [current]
        elif current is not None:
            current.append(row)
    return tables


def test_summary_months_are_in_order(model, reviews, capsys):
    assert predict(model, "--output", "out.csv", "--summary", "page.html", "--date-column", "day") == 0
    page = Path("page.html").read_text(encoding="utf-8")
    months = [row[0] for row in rows_by_table(Tree(page).rows, "month")[0]]
    assert months == ["2024-01", "2024-02", "2024-03", "2024-04", NO_DATE]
    assert "3 predictions have a date that could not be read" in page
    assert "no readable date in the column 'day': 3 of 90 predictions, such as 'yesterday';" in capsys.readouterr().out


def test_summary_readable_dates_print_no_notice(model, reviews, capsys):
    reviews.write_text(reviews.read_text(encoding="utf-8").replace("yesterday", "9.1.2024"), encoding="utf-8")
    assert predict(model, "--output", "out.csv", "--summary", "page.html", "--date-column", "day") == 0
    assert "no readable date" not in capsys.readouterr().out


def test_summary_of_many_months_counts_unreadable_dates():
    months = [f"{2000 + number // 12}-{number % 12 + 1:02}" for number in range(MOST_GROUPS)]
    summary = Summary(OWN.labels, date_column="day")
    for day in (*months, "", "soon", "later"):
        summary.add(Prediction("text", "food", "good", 0.9, False, {"day": day}))
    assert (summary.undated, summary.first_undated) == (3, "soon")


def test_summary_sentences_are_the_most_probable(model, reviews):
    assert predict(model, "--output", "out.csv", "--summary", "page.html") == 0
    with open("out.csv", encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["label"] != "none"]
    best = max(rows, key=lambda row: float(row[f"p({row['label']})"]))
    quotes = re.findall(r"<blockquote>(.*?) \(\d\.\d\d\)</blockquote>", Path("page.html").read_text(encoding="utf-8"))
    assert best["text"].replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in quotes


def test_summary_skipped_and_uncertain_are_counted(model, reviews):
    with reviews.open("a", encoding="utf-8") as handle:
        handle.write(",Alpha,2024-01-01,x\n")
    more = ["--skip-empty", "--min-confidence", "1", "--escape-formulas"]
    assert predict(model, "--output", "out.csv", "--summary", "page.html", *more) == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "1 text was skipped" in page and "90 of the predictions are uncertain" in page


def test_summary_of_a_resumed_run_is_whole(model, reviews):
    flags = ["--output", "out.csv", "--window", "5", "--summary", "page.html"]
    with interrupted(Predictor, "predict", 3):
        predict(model, *flags)
    assert not Path("page.html").exists()
    assert predict(model, *flags, "--resume") == 0
    assert "90 predictions, one for each text" in Path("page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--summary", "page.html"], "summary: expected --output FILE with --summary, got none"),
        (
            ["--output", "out.csv", "--group-column", "hotel"],
            "group-column: expected --summary FILE with --group-column",
        ),
        (
            ["--output", "out.csv", "--summary", "page.html", "--date-column", "when"],
            "date-column: expected a column that is copied to the output ('hotel', 'day', 'label'), got 'when'",
        ),
        (
            ["--output", "out.csv", "--summary", "page.html", "--columns", "none", "--group-column", "hotel"],
            "a table and --columns all are required), got 'hotel'",
        ),
        (["--output", "out.csv", "--summary", "out.csv"], "summary: expected a file other than --output"),
    ],
)
def test_summary_bad_flags_raise(model, reviews, flags, message, capsys):
    assert predict(model, *flags) == 2
    assert message in capsys.readouterr().err
    assert not Path("out.csv").exists()


@pytest.mark.parametrize(
    ("text", "month"),
    [
        ("2024-05-31", "2024-05"),
        ("2024/05/31 10:00", "2024-05"),
        (" 2024-05-31T10:00:00Z", "2024-05"),
        ("1.5.2024", "2024-05"),
        ("2024-05", "2024-05"),
        ("2024/5/3", "2024-05"),
        ("2024-5T", "2024-05"),
        ("2024-05-31/2024-06-01", "2024-05"),
        ("2024-05-311", None),
        ("2024-05/31", None),
        ("20240531", "2024-05"),
        ("05/31/2024", None),
        ("2024-13-01", None),
        ("", None),
    ],
)
def test_month_of_reads_dates(text, month):
    assert month_of(text) == month


def test_wilson_interval_equals_published_values():
    """The values are those of Newcombe (1998), table I: 81 of 263, and 0 of 20."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)


def predictions(count):
    for number in range(count):
        yield Prediction(f"text {number}", "food", "good", number / count, False, {"id": str(number)})


def test_summary_many_groups_become_one():
    summary = Summary(("none", "good"), group_column="id")
    for one in predictions(MOST_GROUPS + 50):
        summary.add(one)
    assert len(summary.by_group) == MOST_GROUPS + 1 and summary.by_group[OTHER]["food"]["good"] == 50


def test_summary_memory_does_not_grow(tmp_path):
    form, peaks = PredictionFormat("csv", OWN, others=("id",)), []
    for count in (5_000, 50_000):
        path = tmp_path / f"{count}.csv"
        with path.open("w", encoding="utf-8") as handle:
            handle.write("line,text,aspect,label,p(none),p(good),p(bad),id\n")
            handle.writelines(
                f"{n},{'long ' * 40}{n},food,good,0.1,{n / count:.6f},0.1,{n % 5000}\n" for n in range(count)
            )
        tracemalloc.start()
        summary = summarize(path, form, group_column="id")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert summary.total == count
    assert peaks[1] < 1.2 * peaks[0]


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (390, "light"), (1280, "light")])
def test_summary_page_fits_its_window(browser, tmp_path, width, scheme):
    summary = Summary(OWN.labels, True, "hotel with a long name", "day")
    for number in range(200):
        others = {"hotel with a long name": f"a long name of a hotel, number {number % 40}", "day": "2024-01-01"}
        label = OWN.labels[number % 3]
        summary.add(Prediction("w" * 300 if number < 3 else f"text {number}", "food", label, 0.9, False, others))
    write_summary(tmp_path / "page.html", summary, "reviews.csv")
    browser.show((tmp_path / "page.html").as_uri(), width, scheme)
    browser.value(CHECKS)
    assert browser.messages == [], "no script error, and nothing that the page's policy refuses"
    assert browser.value("beyondThePage()") == []
    assert browser.value("paleTexts()") == []
