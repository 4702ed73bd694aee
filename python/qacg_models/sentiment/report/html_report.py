"""Offline HTML pages: sections, tables, and plots as SVG."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from qacg_models.errors import InputError
from qacg_models.sentiment.calibration import Reliability
from qacg_models.sentiment.report.tables import html_table
from qacg_models.utils.files import atomic_write

_LEFT, _BELOW = 46, 34  # pixels for the labels of the axes


@dataclass(frozen=True)
class _Panel:
    """A plotting area; data range from 0 to `most_x` and from 0 to `most_y`, other values are pixels.

    The kinds of marks are the CSS classes of `.plot` in `page/report.css`.
    """

    above: int
    width: int
    height: int
    most_x: float = 1.0
    most_y: float = 1.0

    def x(self, value: float) -> str:
        return f"{_LEFT + self.width * value / self.most_x:.1f}"

    def y(self, value: float) -> str:
        return f"{self.above + self.height * (1 - value / self.most_y):.1f}"

    def axes(self, across: str, up: str, ticks_x: Sequence[float] = (), ticks_y: Sequence[float] = ()) -> str:
        """Returns both axes, the numbers beside them, and their titles (`across` for x, `up` for y)."""
        bottom, left = self.above + self.height, _LEFT
        parts = [f'<path class="axis" d="M{left} {self.above}V{bottom}H{left + self.width}"/>']
        parts += [_text(self.x(value), bottom + 14, f"{value:g}", "middle") for value in ticks_x]
        parts += [_text(left - 5, float(self.y(value)) + 4, f"{value:g}", "end") for value in ticks_y]
        if across:
            parts.append(_text(left + self.width / 2, bottom + 30, across, "middle"))
        middle = self.above + self.height / 2
        parts.append(
            f'<text transform="translate(11 {middle:g}) rotate(-90)" text-anchor="middle">{html.escape(up)}</text>'
        )
        return "".join(parts)

    def line(self, kind: str, points: Sequence[Sequence[float]]) -> str:
        places = " ".join(f"{self.x(x)},{self.y(y)}" for x, y in points)
        return f'<polyline class="{kind}" points="{places}"/>'

    def bar(self, kind: str, low: float, high: float, value: float) -> str:
        width, top = float(self.x(high)) - float(self.x(low)) - 1, self.y(value)
        height = self.above + self.height - float(top)
        return f'<rect class="{kind}" x="{self.x(low)}" y="{top}" width="{width:.1f}" height="{height:.1f}"/>'

    def dot(self, x: float, y: float) -> str:
        return f'<circle class="dot" cx="{self.x(x)}" cy="{self.y(y)}" r="4"/>'


def _text(x: float | str, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y:g}" text-anchor="{anchor}">{html.escape(text)}</text>'


def _picture(width: int, height: int, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {width} {height}" style="width:{width}px"'
    return f'<svg class="plot" {size} xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def loss_plot(points: Sequence[Sequence[float]]) -> str:
    """Returns a plot of the training loss.

    Args:
        points: (step, loss) pairs, at least one.
    """
    steps, losses = zip(*points)
    panel = _Panel(10, 440, 170, max(*steps, 1), max(*losses, 1e-12))
    ticks = [round(panel.most_y * share, 2) for share in (0, 0.5, 1)]
    axes = panel.axes("step", "cross-entropy", [0, steps[-1]], ticks)
    return _picture(_LEFT + 460, 10 + 170 + _BELOW, [axes, panel.line("line", points)])


def reliability_plot(panels: Mapping[str, Reliability]) -> str:
    """Returns a reliability diagram for each title in `panels`.

    Upper bars are the accuracy of the rows in a bin of confidence, dots the mean confidence, and lower bars the shares
    of the rows. On the dashed line, accuracy equals confidence.
    """
    return "\n".join(_reliability(title, found) for title, found in panels.items())


def _reliability(title: str, found: Reliability) -> str:
    filled = [one for one in found.bins if one.rows]
    total = sum(one.rows for one in filled)
    upper, lower = _Panel(24, 250, 170), _Panel(204, 250, 50)
    parts = [_text(_LEFT + 125, 14, f"{title}: {100 * found.error:.1f} points", "middle")]
    parts.append(upper.axes("", "accuracy", ticks_y=(0, 0.5, 1)))
    parts += [upper.bar("fill", one.low, one.high, one.accuracy) for one in filled]
    parts.append(upper.line("diagonal", [(0, 0), (1, 1)]))
    parts += [upper.dot(one.confidence, one.accuracy) for one in filled]
    parts.append(lower.axes("confidence", "rows", (0, 0.5, 1), (0, 1)))
    parts += [lower.bar("share", one.low, one.high, one.rows / total) for one in filled]
    return _picture(_LEFT + 260, 204 + 50 + _BELOW, parts)


PAGE_NAME, TABLES_NAME = "index.html", "tables.json"
FOLDER = Path(__file__).with_name("page")  # styles and scripts of the pages
# Every page has this element; a page without it was not written by qacg, and is not replaced.
_GENERATOR = '<meta name="generator" content="qacg">'
# With this policy browsers block everything that is not in the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def page_file(name: str) -> str:
    """Returns the text of a style or script of the folder `page`."""
    return (FOLDER / name).read_text(encoding="utf-8")


def json_script(name: str, value: object) -> str:
    """Returns a script element with the id `name` and JSON data, or without an id if `name` is empty."""
    # An unescaped "<" in a text could end the element.
    text = json.dumps(value, ensure_ascii=False).replace("<", "\\u003c")
    identity = f' id="{name}"' if name else ""
    return f'<script type="application/json"{identity}>{text}</script>'


@dataclass
class Section:
    """A section of the page.

    Attributes:
        title: heading, and entry in the table of contents.
        parts: pieces of HTML, in order.
        data: content of this section in tables.json.
    """

    title: str
    parts: list[str] = field(default_factory=list)
    data: dict = field(default_factory=dict)

    def text(self, text: str, kind: str = "") -> None:
        """Adds a paragraph; `kind` is its CSS class, or empty for none."""
        self.parts.append(f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>")

    def quote(self, text: str) -> None:
        """Adds a quoted sentence."""
        self.parts.append(f"<blockquote>{html.escape(text)}</blockquote>")

    def markup(self, markup: str) -> None:
        """Adds HTML without escaping."""
        self.parts.append(markup)

    def heading(self, text: str) -> None:
        """Adds a heading inside the section."""
        self.parts.append(f"<h3>{html.escape(text)}</h3>")

    def preformatted(self, text: str) -> None:
        """Adds preformatted text."""
        self.parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, name: str, cells: tuple[list[str], list[list[str]]]) -> None:
        """Adds a table to the page, and its rows to tables.json as `name`.

        Args:
            name: accessible name of the table.
            cells: header and rows.
        """
        header, rows = cells
        self.parts.append(framed(html_table(header, rows), name))
        self.data[name] = [dict(zip(header, row)) for row in rows]

    def picture(self, markup: str, caption: str, reading: str = "") -> None:
        """Adds a figure.

        Args:
            markup: the figure as HTML; pass it through `framed` if it can be wider than the page.
            caption: title or result of the figure, shown above.
            reading: meaning of symbols, colours and scales, shown below.
        """
        below = f'\n<p class="note">{html.escape(reading)}</p>' if reading else ""
        self.parts.append(f"<figure>\n<figcaption>{html.escape(caption)}</figcaption>\n{markup}{below}\n</figure>")


def framed(markup: str, name: str, role: str = "group") -> str:
    """Returns HTML in a frame that scrolls horizontally, also by keyboard.

    Args:
        markup: the HTML.
        name: accessible name of the frame.
        role: ARIA role of the frame.
    """
    return f'<div class="frame" role="{role}" aria-label="{html.escape(name)}" tabindex="0">{markup}</div>'


class Report:
    """A page in a folder of its own: `write` writes `index.html`, and `tables.json` with the numbers of its tables.

    Args:
        folder: folder of the page, which is created; an earlier page is replaced, other files stay.
        title: title of the page.
        lead: one line below the title.
        style, script: additional CSS and JavaScript.

    Raises:
        InputError: `folder` is a file, or has an `index.html` or `tables.json` that is not of such a page.
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
        """Writes both files, and returns the page's path.

        Raises:
            InputError: a file cannot be written, or the folder now has a page that qacg did not write.
            OSError: the folder cannot be created.
        """
        _check_replaceable(self.folder)  # the folder may have changed while the page was made
        self.folder.mkdir(parents=True, exist_ok=True)
        tables = {section.title: section.data for section in self.sections if section.data}
        content = {
            PAGE_NAME: page_html(self.title, self.lead, self.sections, style=self.style, script=self.script),
            TABLES_NAME: json.dumps(tables, indent=1, ensure_ascii=False) + "\n",
        }
        for name, text in content.items():
            with atomic_write(self.folder / name) as handle:
                handle.write(text)
        return self.folder / PAGE_NAME


def _check_replaceable(folder: Path) -> None:
    """Raises InputError if a page in `folder` would replace files that qacg did not write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: expected a folder for the page, got a file; choose another folder")
    page = folder / PAGE_NAME
    own = page.is_file() and _GENERATOR.encode() in page.read_bytes()[:1000]
    for path in (page, folder / TABLES_NAME):
        if path.exists() and not own:
            raise InputError(f"{path}: expected a file of a page that qacg wrote, got another; choose another folder")


def page_html(
    title: str, lead: str, sections: Sequence[Section], *, style: str = "", script: str = "", policy: str = _POLICY
) -> str:
    """Returns the HTML of a page that loads no other file.

    Args:
        title: title of the page.
        lead: one line below the title.
        sections: sections of the page, in their order.
        style, script: additional CSS and JavaScript.
        policy: Content-Security-Policy, without double quotes.
    """
    titles = [html.escape(section.title) for section in sections]
    links = "\n".join(f'<li><a href="#part-{number}">{name}</a></li>' for number, name in enumerate(titles, 1))
    body = "\n".join(
        f'<section aria-labelledby="part-{number}">\n<h2 id="part-{number}">{name}</h2>\n'
        + "\n".join(section.parts)
        + "\n</section>"
        for number, (name, section) in enumerate(zip(titles, sections), 1)
    )
    title, lead = html.escape(title), html.escape(lead)
    style = page_file("report.css") + style
    script = f"<script>\n{page_file('report.js')}{script}</script>\n"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n{_GENERATOR}\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{lead}</p>\n'
        f'<nav aria-label="Parts of this page">\n<ul>\n{links}\n</ul>\n</nav>\n</header>\n'
        f"<main>\n{body}\n</main>\n{script}</body>\n</html>\n"
    )
