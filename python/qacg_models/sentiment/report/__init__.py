"""Offline HTML pages: sections, tables and SVG plots. The modules are one page each; `tables` has tables of metrics."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

from qacg_models.errors import InputError
from qacg_models.sentiment.calibration import Reliability
from qacg_models.utils.files import atomic_write

Cells = tuple[list[str], list[list[str]]]  # header and rows of a table
PAGE_NAME = "index.html"
FOLDER = Path(__file__).with_name("page")  # styles and scripts of the pages
# Every page has this element; a page without it was not written by qacg, and is not replaced.
GENERATOR = '<meta name="generator" content="qacg">'
# With this policy browsers block everything that is not in the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_NUMBER = re.compile(r"n/a|inf|[-+−]?[\d.,]*(e[-+]?\d+)?(–[\d.,]+)?")
_LEFT, _BELOW = 46, 34  # pixels for the labels of the axes


class Markup(str):
    """HTML, which is not escaped again."""


def element(tag: str, *content: str, **attributes: object) -> Markup:
    """Returns an HTML element; content that is no Markup and attributes are escaped.

    The attribute `kind` is the CSS class; an underscore in another name is a hyphen; empty texts are left out.
    """
    inner = "".join(part if isinstance(part, Markup) else html.escape(part) for part in content)
    names = {name: "class" if name == "kind" else name.replace("_", "-") for name in attributes}
    given = [f' {names[name]}="{html.escape(str(value))}"' for name, value in attributes.items() if value != ""]
    return Markup(f"<{tag}{''.join(given)}>{inner}</{tag}>")


def number_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Returns, for each column, whether there are rows and all its cells are numbers, ranges of them, empty or n/a."""
    columns = [*zip(*rows)] or [("no number",)] * len(header)
    return [all(_NUMBER.fullmatch(cell) for cell in column) for column in columns]


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> Markup:
    """Returns an HTML table; the cells of a non-numeric first column are row headers.

    A title or cell that is Markup is a whole element. `kind` is the CSS class of the table.
    """
    numbers = number_columns(header, rows)

    def cell(text: str, column: int, head: bool = False) -> Markup:
        if isinstance(text, Markup):
            return text
        scope = "col" if head else "row" if column == 0 and not numbers[0] else ""
        name, number = "th" if scope else "td", "number" if numbers[column] else ""
        return element(name, text, scope=scope, kind=number)

    heads = [cell(title, column, head=True) for column, title in enumerate(header)]
    body = [element("tr", *(cell(text, column) for column, text in enumerate(row))) for row in rows]
    head = element("thead", element("tr", *heads))
    return element("table", head, element("tbody", *body), kind=kind)


@dataclass(frozen=True)
class _Panel:
    """A plotting area for values from 0 to `most_x` and `most_y`; other numbers are pixels.

    The kinds of marks are the CSS classes of `.plot` in `page/report.css`.
    """

    above: int
    width: int
    height: int
    most_x: float = 1.0
    most_y: float = 1.0

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Returns the place of a point in the picture."""
        place = _LEFT + self.width * x / self.most_x, self.above + self.height * (1 - y / self.most_y)
        return round(place[0], 1), round(place[1], 1)

    def axes(self, across: str, up: str, ticks_x: Sequence[float] = (), ticks_y: Sequence[float] = ()) -> list[Markup]:
        """Returns both axes, the numbers beside them, and their titles (`across` for x, `up` for y)."""
        bottom, middle = self.above + self.height, self.above + self.height / 2
        turned = {"transform": f"translate(11 {middle:g}) rotate(-90)", "text_anchor": "middle"}
        return [
            element("path", kind="axis", d=f"M{_LEFT} {self.above}V{bottom}H{_LEFT + self.width}"),
            *(_text(self.at(value, 0)[0], bottom + 14, f"{value:g}") for value in ticks_x),
            *(_text(_LEFT - 5, self.at(0, value)[1] + 4, f"{value:g}", "end") for value in ticks_y),
            _text(_LEFT + self.width / 2, bottom + 30, across),
            element("text", up, **turned),
        ]

    def line(self, kind: str, points: Sequence[Sequence[float]]) -> Markup:
        """Returns a line through (x, y) points."""
        places = [",".join(map(str, self.at(x, y))) for x, y in points]
        return element("polyline", kind=kind, points=" ".join(places))

    def bar(self, kind: str, low: float, high: float, value: float) -> Markup:
        """Returns a bar from `low` to `high`."""
        left, top = self.at(low, value)
        width, height = self.at(high, 0)[0] - left - 1, self.above + self.height - top
        return element("rect", kind=kind, x=left, y=top, width=f"{width:.1f}", height=f"{height:.1f}")


def _text(x: float, y: float, text: str, anchor: str = "middle") -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _picture(width: int, height: int, parts: Sequence[Markup]) -> Markup:
    size = {"viewBox": f"0 0 {width} {height}", "style": f"width:{width}px"}
    return element("svg", *parts, kind="plot", **size, xmlns="http://www.w3.org/2000/svg")


def loss_plot(points: Sequence[Sequence[float]]) -> Markup:
    """Returns a plot of the training loss from (step, loss) pairs, at least one."""
    steps, losses = zip(*points)
    panel = _Panel(10, 440, 170, max(*steps, 1), max(*losses, 1e-12))
    ticks = [round(panel.most_y * share, 2) for share in (0, 0.5, 1)]
    axes = panel.axes("step", "cross-entropy", [0, steps[-1]], ticks)
    return _picture(_LEFT + 460, 10 + 170 + _BELOW, [*axes, panel.line("line", points)])


def reliability_plot(title: str, found: Reliability) -> Markup:
    """Returns a reliability diagram.

    Upper bars are the accuracy of the rows in a bin of confidence, dots the mean confidence, and lower bars the shares
    of the rows. On the dashed line, accuracy equals confidence.
    """
    filled = [one for one in found.bins if one.rows]
    total = sum(one.rows for one in filled)
    upper, lower = _Panel(24, 250, 170), _Panel(218, 250, 50)
    dots = [upper.at(one.confidence, one.accuracy) for one in filled]
    parts = [
        _text(_LEFT + 125, 14, f"{title}: {100 * found.error:.1f} points"),
        *upper.axes("", "accuracy", ticks_y=(0, 0.5, 1)),
        *(upper.bar("fill", one.low, one.high, one.accuracy) for one in filled),
        upper.line("diagonal", [(0, 0), (1, 1)]),
        *(element("circle", kind="dot", cx=x, cy=y, r=4) for x, y in dots),
        *lower.axes("confidence", "rows", (0, 0.5, 1), (0, 1)),
        *(lower.bar("share", one.low, one.high, one.rows / total) for one in filled),
    ]
    return _picture(_LEFT + 260, 218 + 50 + _BELOW, parts)


def page_file(name: str) -> str:
    """Returns the text of a style or script of the folder `page`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def json_script(value: object, **attributes: str) -> Markup:
    """Returns a script element with JSON data."""
    # An unescaped "<" in a text could end the element.
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    return element("script", Markup(text), type="application/json", **attributes)


@dataclass
class Section:
    """A section of the page: its title, and pieces of HTML."""

    title: str
    parts: list[str] = field(default_factory=list)

    def add(self, tag: str, text: str, kind: str = "") -> None:
        """Adds an element with a text, such as a paragraph; `kind` is its CSS class."""
        self.parts.append(element(tag, text, kind=kind))

    def table(self, name: str, cells: Cells) -> None:
        """Adds a table with an accessible name."""
        self.parts.append(framed(html_table(*cells), name))

    def picture(self, markup: Markup, caption: str, reading: str = "") -> None:
        """Adds a figure with a caption above and a note on symbols, colours and scales below.

        Markup that can be wider than the page requires `framed`.
        """
        below = element("p", reading, kind="note") if reading else ""
        self.parts.append(element("figure", element("figcaption", caption), markup, below))


def framed(markup: Markup, name: str, role: str = "group") -> Markup:
    """Returns HTML in a frame that scrolls horizontally, also by keyboard, with an accessible name and an ARIA role."""
    return element("div", markup, kind="frame", role=role, aria_label=name, tabindex=0)


class Report:
    """A page in a folder of its own, which `write` writes as `index.html`.

    An earlier page in `folder` is replaced, other files stay. `style` and `script` are additional CSS and JavaScript.
    """

    def __init__(self, folder: Path | str, title: str, lead: str, *, style: str = "", script: str = ""):
        self.folder, self.title, self.lead = Path(folder), title, lead
        self.style, self.script = style, script
        self.sections: list[Section] = []
        _check_replaceable(self.folder)

    def section(self, title: str) -> Section:
        """Adds a section to the page, and returns it."""
        self.sections.append(Section(title))
        return self.sections[-1]

    def write(self) -> Path:
        """Writes the page, and returns its path."""
        _check_replaceable(self.folder)  # the folder may have changed while the page was made
        self.folder.mkdir(parents=True, exist_ok=True)
        page = page_html(self.title, self.lead, self.sections, style=self.style, script=self.script)
        write_text(self.folder / PAGE_NAME, page)
        return self.folder / PAGE_NAME


def write_text(path: Path, text: str) -> None:
    """Writes or replaces a file."""
    with atomic_write(path) as handle:
        handle.write(text)


def _check_replaceable(folder: Path) -> None:
    """Raises InputError if a page in `folder` would replace a file that qacg did not write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder for the page, got a file; choose another folder")
    page = folder / PAGE_NAME
    if page.exists() and not (page.is_file() and GENERATOR.encode() in page.read_bytes()[:1000]):
        raise InputError(f"{page}: expected a page that qacg wrote, got another file; choose another folder")


def page_html(
    title: str, lead: str, sections: Sequence[Section], *, style: str = "", script: str = "", policy: str = _POLICY
) -> str:
    """Returns the HTML of a page that loads no other file; `policy` is its Content-Security-Policy."""
    links, body = [], []
    for number, section in enumerate(sections, 1):
        name, heading = f"part-{number}", element("h2", section.title, id=f"part-{number}")
        links.append(element("li", element("a", section.title, href=f"#{name}")))
        body.append(element("section", heading, *map(Markup, section.parts), aria_labelledby=name))
    return Template(page_file("page.html")).substitute(
        generator=GENERATOR,
        policy=policy,
        title=html.escape(title),
        lead=html.escape(lead),
        style=page_file("report.css") + style,
        links="\n".join(links),
        body="\n".join(body),
        script=page_file("report.js") + script,
    )
