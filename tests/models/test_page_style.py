"""Static checks of the pages: contrast of texts, and numbers as text."""

import re
from pathlib import Path

import numpy as np
import pytest
import qacg_models.sentiment.report
from html_tree import Tree
from qacg_models.sentiment.report.analysis import signed_table

FOLDER = Path(qacg_models.sentiment.report.__file__).with_name("page")
STYLES = {name: (FOLDER / name).read_text(encoding="utf-8") for name in ("report.css", "viewer.css", "summary.css")}
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


def test_signed_table_has_numbers_as_text():
    table = Tree(signed_table("layer", ["head <1>", "head 2"], ["layer 1"], np.array([[0.5, -0.25]]), 0.5))
    assert [(one["text"], one["class"], one["style"]) for one in table.all("td") if "class" in one] == [
        ("+0.500", "number plus", "--v:1.00"),
        ("−0.250", "number minus", "--v:0.50"),
    ]
    titles = [(one["text"], one["scope"]) for one in table.all("th")]
    assert titles == [("head <1>", "col"), ("head 2", "col"), ("layer 1", "row")]
