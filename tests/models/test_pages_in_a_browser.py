"""The pages in a browser: phone and desktop widths, both colour schemes, keyboard, accessible names."""

import base64
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from browser import CHECKS
from full_members import member
from qacg_models.sentiment import demo
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.report import Report, framed, loss_plot
from qacg_models.sentiment.report.analysis import write_analysis
from qacg_models.sentiment.report.evaluation import Prediction, Summary, write_summary
from qacg_models.sentiment.trained_model import load_trained
from untrained import OWN, TEXTS, write_model

WIDTHS, SCHEMES = (390, 1280), ("light", "dark")
OPEN_ALL = "document.querySelectorAll('details').forEach((part) => { part.open = true; })"
WINDOWS = [
    member(width, scheme, id=f"{width}-{scheme}", fast=(width, scheme) in ((390, "dark"), (1280, "light")))
    for width in WIDTHS
    for scheme in SCHEMES
]
PAGES = ("analysis", "report", "summary")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return load_trained(write_model(tmp_path_factory.mktemp("browser") / "model", context_standalone=False))


@pytest.fixture(scope="module")
def pages(trained, tmp_path_factory):
    """The page of an analysis, one with every other part of the demo's report, and a summary of predictions."""
    folder = tmp_path_factory.mktemp("pages")
    rows = [Example("", TEXTS[2], aspect, "", aspect, 1, 1) for aspect in ("food", "price")]
    analysis = write_analysis(trained, rows, folder / "analysis")
    report = Report(folder / "report", "A title that is long enough to need a second line on a telephone", "A lead")
    results, confidence, training, machine = (report.section(f"Part {number}") for number in range(4))
    columns = ["case", *(f"a long title {number}" for number in range(9))]
    results.table("figures", (columns, [[f"case {number}", *["1.25e-03"] * 9] for number in range(3)]))
    results.add("p", "a" * 200, "note")
    demo._confidence(confidence, trained, rows)
    training.picture(framed(loss_plot([[10, 1.2], [20, 0.5]]), "training loss", role="img"), "Cross-entropy.")
    demo._machine(machine)
    summary = Summary(OWN.labels, True)
    for number in range(200):
        text = "w" * 300 if number < 3 else f"text {number}"
        summary.add(Prediction(text, "food", OWN.labels[number % 3], 0.9, False))
    write_summary(folder / "summary.html", summary, "reviews.csv")
    found = {"analysis": analysis, "report": report.write(), "summary": folder / "summary.html"}
    return {name: path.as_uri() for name, path in found.items()}


@pytest.fixture(params=PAGES)
def page(request, pages):
    return pages[request.param]


@pytest.mark.parametrize(("width", "scheme"), WINDOWS)
def test_page_fits_its_window(page, browser, width, scheme):
    for chosen in ("", "choose(2, 1)"):
        browser.show(page, width, scheme)
        browser.value(f"{CHECKS}; {OPEN_ALL}; {chosen if 'analysis' in page else ''}")
        assert browser.messages == [], "no script error, and no violation of the content security policy"
        assert browser.value("beyondThePage()") == []
    ground = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground))) < 60) == (scheme == "dark")


def test_keyboard_reaches_all_controls_which_have_names(page, browser):
    for chosen in ("choose(1, 2)", ""):
        browser.show(page, 390, "dark")
        browser.value(f"{CHECKS}; {chosen if 'analysis' in page else ''}")
        found = [one for one in browser.named() if one["focusable"] and one["role"] != "RootWebArea"]
        assert len(found) == browser.value("reachable().length")
        assert [one for one in found if not one["name"].strip()] == []
    count = browser.value("reachable().length")
    visited = []
    for _ in range(count):
        browser.press("Tab")
        visited.append(browser.value("focused()"))
    assert [one["place"] for one in visited] == list(range(count))
    assert [one for one in visited if one["outline"] < 2] == []


def test_viewer_works_by_keyboard(trained, pages, browser):
    browser.show(pages["analysis"])

    def tab_to(selector):
        for _ in range(200):
            browser.press("Tab")
            if browser.value(f"document.activeElement.matches({selector!r})"):
                return
        raise AssertionError(f"{selector} is not reached")

    pressed = "[...document.querySelectorAll('[aria-pressed=true]')].map((one) => one.ariaLabel)"
    output = "document.querySelector('.readout').textContent"
    tab_to("[aria-label='Layer 2']")
    browser.press("Enter")
    assert browser.value(pressed) == ["Layer 2", "Head all"]
    assert browser.value("document.activeElement.ariaLabel") == "Layer 2", "the focus stays"
    tab_to(".heads button[aria-label^='head 2 of price']")
    browser.press(" ")
    assert browser.value(pressed) == ["Layer 2", "Head 2"]
    assert browser.value("document.activeElement.ariaLabel").startswith("price, layer 2, head 2"), (
        "the focus moves to the map"
    )
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp", "ArrowLeft", "ArrowLeft"):
        browser.press(key)
    data = json.loads(browser.value("document.querySelector('.viewer script').textContent"))["rows"][1]
    tokens, packed = data["tokens"], data["softmax"]
    steps = np.frombuffer(base64.b64decode(packed["values"]), "<i2").reshape(2, 2, len(tokens), len(tokens))
    value = packed["step"] * steps[1, 1, 1, 0]
    line = f"price, layer 2, head 2, P (softmax): “{tokens[1]}” attends to “{tokens[0]}” with +{value:.4f}"
    assert browser.value(output) == line
    assert browser.value("document.querySelector('.readout').getAttribute('role')") == "status", (
        "screen readers announce it"
    )


def test_taps_read_values(pages, browser):
    browser.show(pages["analysis"], 390)
    browser.value("choose(1, 2)")
    output = "document.querySelector('.readout').textContent"
    assert browser.value(output).startswith("To read a value, point at the map")
    browser.tap(".map canvas")
    assert " attends to " in browser.value(output)


@pytest.mark.full
def test_page_has_no_axe_violations(page, browser):
    axe = os.environ.get("AXE_CORE")
    if not axe:
        pytest.skip("AXE_CORE does not name axe.min.js of the npm package axe-core; `npm pack axe-core` brings it")
    for width in WIDTHS:
        for scheme in SCHEMES:
            browser.show(page, width, scheme)
            browser.value(Path(axe).read_text(encoding="utf-8") + f"; {OPEN_ALL}")
            found = browser.value(
                "axe.run().then((found) => found.violations.map((one) => [one.id, one.nodes[0].html]))"
            )
            assert found == [], (width, scheme)
