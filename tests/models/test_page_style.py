"""Static checks of the pages: contrast, frames, accessible names, one caption per figure."""

import colorsys
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest
import qacg_models.sentiment.report
from html_tree import Tree
from qacg_models.sentiment.report import Report, framed, loss_plot
from qacg_models.sentiment.report.analysis import signed_table, token_strip

FOLDER = Path(qacg_models.sentiment.report.__file__).with_name("page")
STYLES = {name: (FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "viewer.css", "summary.css")}
SCRIPT = (FOLDER / "viewer.js").read_text(encoding="utf-8")
SCHEMES = ("light", "dark")
TEXT, PART = 4.5, 3.0  # WCAG 2.2: contrast of text, and of meaningful parts


def variables(scheme):
    """The colours of the page by name; the dark scheme overrides the light one."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLES["report.css"], re.DOTALL)
    return dict(re.findall(r"--([a-z]+): ([^;]+);", light + (dark if scheme == "dark" else "")))


def colour(value):
    """Red, green and blue between 0 and 1 from #rrggbb or from three numbers."""
    parts = [int(value[i : i + 2], 16) for i in (1, 3, 5)] if value.startswith("#") else map(int, value.split())
    return np.array([part / 255 for part in parts])


def turned(rgb, scheme):
    """The colour of a picture in a colour scheme: invert(.9) hue-rotate(180deg) of the Filter Effects specification."""
    if scheme == "light":
        return np.asarray(rgb)
    assert variables("dark")["turn"] == "invert(.9) hue-rotate(180deg)"
    grey = np.array([0.213, 0.715, 0.072])
    inverted = 0.1 * np.asarray(rgb) + 0.9 * (1 - np.asarray(rgb))
    return np.clip(2 * grey @ inverted - inverted, 0, 1)


def contrast(one, other):
    def luminance(rgb):
        return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722]

    low, high = sorted((luminance(np.asarray(one)), luminance(np.asarray(other))))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_contrasts_with_the_background(scheme):
    named = {name: colour(value) for name, value in variables(scheme).items() if value[0] in "#0123456789"}
    for text in ("ink", "quiet", "link"):
        for ground in ("ground", "panel"):
            assert contrast(named[text], named[ground]) >= TEXT, (text, ground)
    assert contrast(named["ground"], named["ink"]) >= TEXT, "a selected button has these colours swapped"
    for part in ("edge", "link"):
        assert contrast(named[part], named["ground"]) >= PART, part
    # Shades lie between the ground and these two.
    for shade in ("plus", "minus"):
        for share in np.linspace(0, 1, 21):
            behind = share * named[shade] + (1 - share) * named["ground"]
            assert contrast(named["ink"], behind) >= TEXT, (shade, share)


def shade(share):
    """The colour of a map at a share of the scale, from 0 (most negative) to 1."""
    colours = json.loads(re.search(r"COLOURS = (\[.*?\],?\n\]);", SCRIPT, re.DOTALL)[1].replace("],\n]", "]]"))
    places = np.linspace(0, 1, len(colours))
    return np.array([np.interp(share, places, part) for part in zip(*colours)]) / 255


@pytest.mark.parametrize("scheme", SCHEMES)
def test_maps_have_the_colours_of_texts(scheme):
    ground = colour(variables(scheme)["ground"])
    blue, orange = (turned(shade(share), scheme) for share in (0.8, 0.2))
    assert blue[2] > blue[0] and orange[0] > orange[2], "signs keep their colours"
    assert contrast(turned(shade(0.5), scheme), ground) < 1.15, "0 has the colour of the page"
    hue = [colorsys.rgb_to_hsv(*rgb)[0] for rgb in (blue, orange)]
    assert 0.5 < hue[0] < 0.7
    assert 0.05 < hue[1] < 0.15, "red, which reads as bad, would be near 0"
    for name, share in (("plus", 0.8), ("minus", 0.2)):
        text = colorsys.rgb_to_hsv(*colour(variables(scheme)[name]))[0]
        drawn = colorsys.rgb_to_hsv(*shade(share))[0]
        assert abs(text - drawn) < 0.06, "texts and maps have the same colours"


@pytest.fixture
def page(tmp_path):
    report = Report(tmp_path / "report", "Title", "Lead")
    section = report.section("A & B")
    section.add("h3", "Heading")
    section.table("numbers", (["name", "%"], [["a", "1.5"]]))
    plot = framed(loss_plot([[1, 1.0], [2, 0.5]]), "training loss", role="img")
    section.picture(plot, "It fell <at> last.", "Cross-entropy.")
    table = signed_table("layer", ["head 1", "head 2"], ["layer 2"], np.array([[0.5, -0.25]]), 0.5)
    section.picture(framed(table, "lambda by layer and head of food"), "food")
    section.picture(token_strip(["a", "##b"], [1.0, 1.0]), "food: good")
    return Tree(report.write().read_text(encoding="utf-8"))


def test_frames_are_named_and_focusable(page):
    for element in page.all("table", "svg"):
        (frame,) = [one for one in element["around"] if one.get("class") == "frame"]
        assert frame["tabindex"] == "0" and frame["aria-label"].strip()
        assert frame["role"] == ("img" if element["tag"] == "svg" else "group")
    assert len(page.all("table")) == 2 and len(page.all("svg")) == 1


def test_page_has_landmarks_and_ordered_headings(page):
    assert [len(page.all(tag)) for tag in ("header", "nav", "main", "h1")] == [1] * 4
    assert page.all("html")[0]["lang"] == "en" and page.all("nav")[0]["aria-label"]
    levels = [int(one["tag"][1]) for one in page.all("h1", "h2", "h3")]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert all(one["aria-labelledby"] in [part.get("id") for part in page.found] for one in page.all("section"))
    assert all(one["scope"] in ("row", "col") for one in page.all("th"))
    schemes = [one["content"] for one in page.all("meta") if one.get("name") == "color-scheme"]
    assert schemes == ["light dark"]


def test_signed_table_has_numbers_as_text():
    table = Tree(signed_table("layer", ["head <1>", "head 2"], ["layer 1"], np.array([[0.5, -0.25]]), 0.5))
    assert [(one["text"], one["class"], one["style"]) for one in table.all("td") if "class" in one] == [
        ("+0.500", "number plus", "--v:1.00"),
        ("−0.250", "number minus", "--v:0.50"),
    ]
    titles = [(one["text"], one["scope"]) for one in table.all("th")]
    assert titles == [("head <1>", "col"), ("head 2", "col"), ("layer 1", "row")]
