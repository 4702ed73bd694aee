"""Pages, tables and the demo."""

import itertools
import json

import numpy as np
import pytest
from errors import raises
from html_tree import Tree
from qacg_models.cli.program import main
from qacg_models.sentiment import demo
from qacg_models.sentiment.calibration import read_calibration
from qacg_models.sentiment.dataset import sample_reviews
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.report import Markup, Report, html_table
from qacg_models.sentiment.report.analysis import example_maps
from qacg_models.sentiment.report.tables import text_table
from qacg_models.sentiment.trained_model import load_trained
from untrained import TEXTS, write_model

TINY = TrainingOptions(epochs=1, hidden_size=16, layers=2, heads=2, intermediate_size=32)


@pytest.mark.full
def test_example_maps_sum_as_defined(tmp_path):
    trained, row = load_trained(write_model(tmp_path / "model")), Example("", TEXTS[0], "food", "", "food", 1, 1)
    maps = example_maps(trained, row)
    length = len(maps.tokens)
    assert maps.softmax.shape == maps.quasi.shape == maps.combined.shape == (2, 2, length, length)
    np.testing.assert_allclose(maps.combined, maps.softmax + maps.quasi, atol=1e-6)
    np.testing.assert_allclose(maps.softmax.sum(-1), 1, atol=1e-5)
    # lambda * G has the sign of lambda, and G stays below 1.
    assert (np.abs(maps.quasi) <= np.abs(maps.lambdas)[..., None] + 1e-6).all()
    np.testing.assert_allclose(maps.probabilities, trained.probabilities([row])[0], atol=1e-5)


def test_report_page_is_offline_and_accessible(tmp_path):
    report = Report(tmp_path / "report", "Title <b>", "lead & more")
    for number in range(2):
        section = report.section(f"Part {number}")
        section.add("h3", 'a < b & "c"')
        section.add("blockquote", "<script>alert(1)</script>")
        section.add("pre", "x  <y>")
        section.table("numbers", (["name", "%"], [["<i>", "1.5"]]))
        section.picture(Markup("<svg></svg>"), "caption <u>", "reading <u>")
    page = Tree(report.write().read_text(encoding="utf-8"))
    assert page.fetched == []
    assert len(page.all("script")) == 1, "page/report.js"
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "h1")] == [1] * 4
    assert page.all("html")[0]["lang"] == "en" and page.all("nav")[0]["aria-label"]
    levels = [int(one["tag"][1]) for one in page.all("h1", "h2", "h3")]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(one["aria-labelledby"] in [part.get("id") for part in page.found] for one in page.all("section"))
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    assert page.all("i", "u", "y") == []
    links = [one["href"] for one in page.all("a")]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= {one.get("id") for one in page.found}


def test_report_replaces_its_page_only(tmp_path):
    folder = tmp_path / "report"
    Report(folder, "first", "").write()
    (folder / "notes.txt").write_text("mine")
    Report(folder, "second", "").write()
    assert "second" in (folder / "index.html").read_text()
    assert {path.name for path in folder.iterdir()} == {"index.html", "notes.txt"}


def test_report_over_other_files_raises(tmp_path):
    (tmp_path / "index.html").write_text("mine")
    with raises("InputError: got a file; choose another folder"):
        Report(tmp_path / "index.html", "", "")
    with raises("InputError: index.html: expected a page that qacg wrote, got another file; choose another folder"):
        Report(tmp_path, "title", "")


def test_tables_align_numbers_to_the_right():
    header, body = ["case", "ms"], [["short", "1.25"], ["a longer one", "n/a"], ["x", "10.5"]]
    lines = [
        "case            ms",
        "------------  ----",
        "short         1.25",
        "a longer one   n/a",
        "x             10.5",
    ]
    assert text_table(header, body).splitlines() == lines
    assert text_table(header, []).splitlines() == ["case  ms", "----  --"]
    assert '<th scope="col">ms</th>' in html_table(header, [])
    assert '<td class="number">10.5</td>' in html_table(header, body)
    assert '<th scope="row">a longer one</th>' in html_table(header, body)


def test_text_table_of_chinese_cells_is_aligned():
    _, _, chinese, latin = text_table(["text", "label"], [["汤是冷的", "bad"], ["the soup", "good"]]).splitlines()
    assert chinese == "汤是冷的  bad"
    assert latin == "the soup  good"


@pytest.mark.parametrize("backward", [False, True])
def test_demo_measures_two_equal_attentions(backward):
    import torch

    eager, fused = (call() for call in demo.attention_calls((1, 2, 20, 16), backward).values())
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_demo_small_run_writes_its_page(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "_speed", lambda section: None)
    header, *lines = sample_reviews().read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "reviews.csv").write_text("".join([header, *lines[:1469:10]]), encoding="utf-8")
    monkeypatch.setattr(demo, "sample_reviews", lambda: tmp_path / "reviews.csv")
    asked = []
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
    monkeypatch.setattr(demo, "answer_sentences", lambda ask, intro: asked.append(intro))
    status = demo.run(tmp_path / "report", tmp_path / "model", TINY)
    out = capsys.readouterr().out
    assert status == 1  # one epoch of a tiny model does not beat the majority baseline by the margin
    assert "DOES NOT BEAT that of the majority baseline by at least 15 points" in out
    page = Tree((tmp_path / "report" / "index.html").read_text(encoding="utf-8"))
    assert page.fetched == []
    assert len([one for one in page.all("div") if one.get("class") == "viewer"]) == 1
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert len(asked) == 1
    assert f"for {record['metrics']['test']['strict_accuracy']:.0%} of the test reviews" in asked[0]
    cells = [one["text"] for one in page.all("th", "td")]
    assert f"{100 * record['metrics']['test']['strict_accuracy']:.1f}" in cells
    kept = read_calibration(tmp_path / "model")
    assert kept.describe() in out
    assert "yes" in cells and "NO" not in cells, "agreement with the reference"


@pytest.mark.parametrize(("installed", "frozen"), [(True, 2), (False, 0)])
def test_demo_trains_the_upper_layers_of_an_installed_minilm(tmp_path, monkeypatch, installed, frozen):
    given = []
    monkeypatch.setattr(demo, "is_installed", lambda name: installed)
    monkeypatch.setattr(demo, "run", lambda report, output, options: given.append(options) or 0)
    assert main(["demo", "--report", str(tmp_path / "r"), "--output", str(tmp_path / "m")]) == 0
    assert given[0].frozen_layers == frozen


def test_demo_reports_a_disabled_operator(monkeypatch, tmp_path, capsys):
    from qacg_kernels import testing

    row = testing.ParityRow("cpu", "float32", "a case", "grad key", 2.0, 1.0, False)
    monkeypatch.setattr(testing, "parity_report", lambda: [row])
    section = Report(tmp_path / "r", "", "").section("s")
    assert demo._agreement(section) is False
    assert "1 tensors, 1 outside the budget" in capsys.readouterr().out
    assert ">NO<" in "".join(section.parts)
