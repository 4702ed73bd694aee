"""Reports: attention maps, the page, replacing an old report, tables and the demo."""

import errno
import itertools
import json
import os
import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import qacg_models.demos.speed
from errors import raises
from html_tree import Tree
from matplotlib.figure import Figure
from processes import set_process_status
from qacg_models.cli import main
from qacg_models.data import DataOptions, load_data, sample_directory, sample_reviews
from qacg_models.demos import sample_demo as demo
from qacg_models.reporting import heatmaps
from qacg_models.reporting.attention_maps import ExampleMaps, example_maps, mean_lambda
from qacg_models.reporting.html_report import Report
from qacg_models.reporting.tables import html_table, text_table
from qacg_models.runs.calibration import read_calibration
from qacg_models.runs.options import TrainingOptions
from qacg_models.training import train

TINY = TrainingOptions(epochs=1, hidden_size=16, layers=2, heads=2, intermediate_size=32)


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    return train(load_data(small_data), tmp_path_factory.mktemp("maps") / "model", TINY)


@pytest.fixture(scope="module")
def rows():
    return load_data(sample_directory(), ("test",)).splits["test"]


def small_figure():
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1], [0, 1])
    return figure


@pytest.mark.full
def test_example_maps_sum_as_defined(trained, rows):
    maps = example_maps(trained, rows[0])
    length = len(maps.tokens)
    assert maps.softmax.shape == (2, 2, length, length)
    assert maps.quasi.shape == (2, 2, length, length)
    assert maps.combined.shape == (2, 2, length, length)
    np.testing.assert_allclose(maps.combined, maps.softmax + maps.quasi, atol=1e-6)
    np.testing.assert_allclose(maps.softmax.sum(-1), 1, atol=1e-5)
    # lambda * G has the sign of lambda, and G stays below 1.
    assert (np.abs(maps.quasi) <= np.abs(maps.lambdas)[..., None] + 1e-6).all()
    np.testing.assert_allclose(maps.probabilities, trained.probabilities(rows[:1])[0], atol=1e-5)


def test_mean_lambda_ignores_padding(trained, rows):
    some = sorted(rows[:40], key=lambda row: len(row.sentence))[::13]
    single = [example_maps(trained, row) for row in some]
    assert len({len(maps.tokens) for maps in single}) > 1
    total = sum(maps.lambdas.sum(-1) for maps in single)
    expected = total / sum(len(maps.tokens) for maps in single)
    np.testing.assert_allclose(mean_lambda(trained, some), expected, atol=1e-6)


def test_layer_figure_has_shared_scales_and_no_markers(trained, rows):
    maps = example_maps(trained, rows[0])
    figure = heatmaps.layer_figure(maps, 1)
    kept = slice(1, maps.tokens.index("[SEP]"))
    assert maps.tokens[kept] == [token for token in maps.tokens if token not in ("[CLS]", "[SEP]")]
    panels = [axis.images[0] for axis in figure.axes if axis.images and axis.get_label() != "<colorbar>"]
    assert len(panels) == 3 * 2
    for line, field in enumerate(("softmax", "quasi", "combined")):
        values = getattr(maps, field)[1][:, kept, kept]
        largest = np.abs(values).max()
        for head in range(2):
            panel = panels[2 * line + head]
            assert panel.get_clim() == pytest.approx((0, 1) if field == "softmax" else (-largest, largest))
            np.testing.assert_array_equal(panel.get_array(), values[head])


def test_report_page_is_offline_and_well_formed(tmp_path):
    report = Report(tmp_path / "report", "Title <b>", "lead & more")
    for number in range(2):
        section = report.section(f"Part {number}")
        section.text('a < b & "c"')
        section.quote("<script>alert(1)</script>")
        section.preformatted("x  <y>")
        section.table("numbers", (["name", "%"], [["<i>", "1.5"]]))
        report.figure(section, f"figure-{number}", small_figure(), "caption <u>", "reading <u>")
    text = report.write().read_text(encoding="utf-8")
    page = Tree(text)
    assert page.fetched == []
    assert len(page.all("svg")) == 2
    assert len(page.all("script")) == 1, "page/report.js"
    assert page.all("i", "u", "y") == []
    links = [one["href"] for one in page.all("a")]
    assert len(links) == 2
    assert {link.removeprefix("#") for link in links} <= page.ids
    # With a repeated id one figure would use the clip paths of another.
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"(?:url\(|href=\")#([^\")]+)", text)) <= set(ids)
    assert json.loads((tmp_path / "report" / "tables.json").read_text())["Part 0"] == {
        "numbers": [{"name": "<i>", "%": "1.5"}]
    }
    assert {path.name for path in (tmp_path / "report" / "figures").iterdir()} == {
        f"figure-{number}.{kind}" for number in range(2) for kind in ("svg", "png")
    }


def test_report_replaces_a_report_and_nothing_else(tmp_path):
    folder = tmp_path / "report"
    for title in ("first", "second"):
        Report(folder, title, "").write()
    assert "second" in (folder / "index.html").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["report"]

    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("text")
    with raises("InputError: got other files; choose another folder"):
        Report(tmp_path / "papers", "", "")
    with raises("InputError: got a file"):
        Report(tmp_path / "papers" / "thesis.txt", "", "")


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_report_over_other_files_raises(tmp_path):
    folder = tmp_path / "site"
    (folder / "photos").mkdir(parents=True)
    for name in ("index.html", "thesis.docx", "photos/cat.jpg"):
        (folder / name).write_text(f"my {name}")
    before = contents(folder)
    with raises("InputError: site: expected ... qacg-report.json, got other files; choose another"):
        Report(folder, "title", "")
    assert contents(folder) == before


def test_report_with_an_added_file_raises_and_names_it(tmp_path):
    folder = tmp_path / "report"
    Report(folder, "first", "").write()
    (folder / "figures" / "notes.docx").write_text("my notes")
    with raises("InputError: got figures/notes.docx too, ...; move it away"):
        Report(folder, "second", "")
    (folder / "figures" / "notes.docx").unlink()
    Report(folder, "second", "").write()


def test_report_at_a_link_replaces_the_target(tmp_path):
    Report(tmp_path / "disk", "first", "").write()
    (tmp_path / "report").symlink_to(tmp_path / "disk")
    Report(tmp_path / "report", "second", "").write()
    assert "second" in (tmp_path / "disk" / "index.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "report"]


def test_report_checks_the_folder_again_before_it_replaces(tmp_path):
    folder = tmp_path / "report"
    report = Report(folder, "title", "")
    folder.mkdir()
    (folder / "index.html").write_text("made while the report was")
    with raises("InputError: got other files"):
        report.write()
    assert contents(tmp_path) == {"report/index.html": b"made while the report was"}


def failing_renames(monkeypatch, *numbers):
    """Makes renames fail, by their numbers from 1."""
    rename, count = os.rename, itertools.count(1)

    def fail(source, target):
        if next(count) in numbers:
            raise OSError(errno.EIO, "Input/output error", str(source), None, str(target))
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail)


def test_report_failed_rename_restores_the_old_report(tmp_path, monkeypatch):
    Report(tmp_path / "report", "first", "").write()
    before = contents(tmp_path)
    failing_renames(monkeypatch, 2)
    with raises("OSError: Input/output error"):
        Report(tmp_path / "report", "second", "").write()
    assert contents(tmp_path) == before


def test_report_failed_restore_names_the_old_report(tmp_path, monkeypatch):
    Report(tmp_path / "report", "first", "").write()
    before = contents(tmp_path / "report")
    failing_renames(monkeypatch, 2, 3)
    with raises("InputError: Its content is in ...old; rename that folder to") as caught:
        Report(tmp_path / "report", "second", "").write()
    (kept,) = re.findall(r"is in (\S+);", str(caught.value))
    assert contents(Path(kept)) == before


NAMES = ["$\\frac$", "_price", "a$b$", "50 % & <b>"]  # matplotlib cannot parse the first as a formula


def figures_with_names():
    """A figure of every kind that shows names or tokens of the user."""
    maps = np.linspace(-1, 1, len(NAMES) ** 2).reshape(1, 1, len(NAMES), len(NAMES))
    example = ExampleMaps(None, NAMES, np.ones(1), maps, maps, maps, maps[..., 0])
    yield "layer", heatmaps.layer_figure(example, 0)
    yield "tokens", heatmaps.token_figure({name: (NAMES, np.arange(len(NAMES))) for name in NAMES}, "Score")
    yield "histograms", heatmaps.lambda_histograms({name: maps[..., 0] for name in NAMES})


def test_figures_show_dollars_and_underscores_literally(tmp_path):
    report = Report(tmp_path / "report", "title", "")
    for name, figure in figures_with_names():
        report.keep(name, figure)
    report.write()
    for name in report.figures:
        shown = ElementTree.parse(tmp_path / "report" / "figures" / f"{name}.svg").iter(
            "{http://www.w3.org/2000/svg}text"
        )
        texts = " ".join(element.text or "" for element in shown)
        assert [one for one in NAMES if one not in texts] == [], name


def test_demo_rows_are_picked_by_label():
    dataset = load_data(sample_reviews(), ("train", "test"), DataOptions(wide=True))
    rows, labels = dataset.splits["test"], dataset.task.labels
    picked = demo.pick_rows(rows, labels)
    assert [labels[row.label] for row in picked] == ["positive", "negative"] * 2
    assert picked[0].sentence == picked[1].sentence
    assert picked[2].sentence == picked[3].sentence
    assert len(picked[0].sentence) < len(picked[2].sentence)
    assert demo.pick_rows(rows[::-1], labels) == picked
    assert demo.pick_rows([row for row in rows if row.label == 0], labels) == []


def test_tables_align_numbers_to_the_right():
    header, body = ["case", "ms"], [["short", "1.25"], ["a longer one", "n/a"], ["x", "10.5"]]
    assert text_table(header, body).splitlines() == [
        "case            ms",
        "------------  ----",
        "short         1.25",
        "a longer one   n/a",
        "x             10.5",
    ]
    assert text_table(header, []).splitlines() == ["case  ms", "----  --"]
    assert '<th scope="col">ms</th>' in html_table(header, [])
    assert '<td class="number">10.5</td>' in html_table(header, body)
    assert '<th scope="row">a longer one</th>' in html_table(header, body)
    assert '<td class="number">1</td>' in html_table(["step", "loss"], [["1", "2"]]), (
        "rows without words have no row header"
    )


@pytest.mark.full
def test_speed_rows_have_the_measurements():
    forward, both = qacg_models.demos.speed.speed_table(shapes=((1, 2, 300, 16),), seconds=0, minimum_runs=3)
    assert (forward.backward, both.backward) == (False, True)
    assert (forward.runs, both.runs) == (3, 3)
    assert forward.eager_ms > 0
    assert both.speedup == both.eager_ms / both.fused_ms
    if both.fused_mb is not None:
        # eager stores at least three maps of 2 x 300 x 300 floats for its backward.
        assert both.eager_mb > 3 * 2 * 300 * 300 * 4 / 1e6


def test_text_table_of_chinese_cells_is_aligned():
    _, _, chinese, latin = text_table(["text", "label"], [["汤是冷的", "bad"], ["the soup", "good"]]).splitlines()
    assert chinese == "汤是冷的  bad"
    assert latin == "the soup  good"


def test_resident_is_the_field_in_bytes(monkeypatch):
    set_process_status(monkeypatch, "Name:\tpython\nVmHWM:\t  4096 kB\nVmRSS:\t    17 kB\n")
    assert qacg_models.demos.speed._resident("VmHWM") == 4096 * 1024


@pytest.mark.parametrize("text", [None, "Name:\tpython\n"])
def test_peak_growth_without_the_field_is_none(text, monkeypatch):
    set_process_status(monkeypatch, text)
    assert qacg_models.demos.speed.peak_growth("fused", (1, 1, 8, 8)) is None


@pytest.mark.full
def test_peak_growth_of_a_failed_process_raises():
    if qacg_models.demos.speed._resident("VmHWM") is None:
        pytest.skip("this system does not report the peak memory")
    with pytest.raises(subprocess.CalledProcessError):
        qacg_models.demos.speed.peak_growth("unknown", (1, 1, 8, 8))


def test_speed_table_fused_equals_eager():
    import torch

    tensors = tuple(torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(i)) for i in range(5))
    from qacg_kernels import GateParameters

    gate = GateParameters(*torch.randn(4, 16), None, None)
    fused, eager = (qacg_models.demos.speed.IMPLEMENTATIONS[name](tensors, gate) for name in ("fused", "eager"))
    torch.testing.assert_close(fused, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_demo_small_run_writes_its_page(tmp_path, monkeypatch, capsys):
    whole = qacg_models.demos.speed.speed_table
    small = {"shapes": ((1, 1, 8, 8),), "seconds": 0, "minimum_runs": 1}
    monkeypatch.setattr(qacg_models.demos.speed, "speed_table", lambda: whole(**small))
    header, *lines = sample_reviews().read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "reviews.csv").write_text("".join([header, *lines[:1469:10]]), encoding="utf-8")
    monkeypatch.setattr(demo, "sample_reviews", lambda: tmp_path / "reviews.csv")
    asked = []
    monkeypatch.setattr(demo, "is_terminal", lambda: True)
    monkeypatch.setattr(demo, "answer_sentences", lambda ask, intro: asked.append(intro))
    status = demo.run(tmp_path / "report", tmp_path / "model", TINY)
    out = capsys.readouterr().out
    assert status == 1  # one epoch of a tiny model does not beat the majority baseline by the margin
    assert "DOES NOT BEAT that of the majority baseline by at least 15 points" in out
    compared, _, _, title, *commands = out.splitlines()[-7:]
    assert compared.startswith("test, against the baseline (TF-IDF + logistic regression): ")
    assert title == "Commands to try next:"
    assert commands == demo.next_commands(tmp_path / "model"), "the last lines before the prompt"
    assert [int(number) for number in re.findall(r"^\[(\d)/6\]", out, re.MULTILINE)] == [1, 2, 3, 4, 5, 6]
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    page = Tree(text)
    assert page.fetched == []
    assert len(page.all("svg")) == 2 + 2  # the last layer of two rows; loss; reliability
    tables = json.loads((tmp_path / "report" / "tables.json").read_text())
    record = json.loads((tmp_path / "model" / "training.json").read_text())
    assert len(asked) == 1
    assert f"for {record['metrics']['test']['strict_accuracy']:.0%} of the test reviews" in asked[0]
    figure = tables["Results on the sample"]["test"][0]["strict accuracy"]
    assert figure == f"{100 * record['metrics']['test']['strict_accuracy']:.1f}"
    kept = read_calibration(tmp_path / "model")
    temperatures = list(kept.temperatures) if kept.skipped is None else None
    assert tables["Confidence"]["calibration"]["temperatures"] == temperatures
    assert kept.describe() in out
    assert all(row["within"] == "yes" for row in tables["Agreement with the reference"]["agreement"])


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
    assert section.data["agreement"][0]["within"] == "NO"
