"""Report folders: one offline HTML page, plots as SVG and PNG, and tables as JSON."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from qacg_models.errors import InputError
from qacg_models.reporting.tables import html_table
from qacg_models.utils.atomic_files import atomic_folder, explain_write_errors
from qacg_models.utils.json_fields import convert_json_fields, read_json_as

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_NAME = "index.html"
# This file lists the files of a report. A new report replaces a non-empty folder only if the folder has this file, and
# the list has all files of the folder.
MARKER_NAME = "qacg-report.json"
# With this policy browsers block everything that is not in the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

_STYLE, _SCRIPT = (Path(__file__).with_name("page") / name for name in ("report.css", "report.js"))
# Smallest height of a plot's text, in CSS pixels. Plots shrink with the page until their smallest text has this height;
# on narrower pages they scroll.
_SMALLEST = 8


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

    def picture(self, markup: str, caption: str, reading: str = "", title: str = "") -> None:
        """Adds a figure made of HTML.

        Args:
            markup: the HTML; pass it through `framed` if it can be wider than the page.
            caption: the result in one sentence, shown above.
            reading: meaning of symbols, colours and scales, shown below.
            title: title of the figure, for a section with several figures; empty for none.
        """
        above = f"<strong>{html.escape(title)}.</strong> " if title else ""
        below = f'\n<p class="note">{html.escape(reading)}</p>' if reading else ""
        caption = html.escape(caption)
        self.parts.append(f"<figure>\n<figcaption>{above}{caption}</figcaption>\n{markup}{below}\n</figure>")


def framed(markup: str, name: str, role: str = "group") -> str:
    """Returns HTML in a frame that scrolls horizontally, also by keyboard.

    Args:
        markup: the HTML.
        name: accessible name of the frame.
        role: ARIA role of the frame.
    """
    return f'<div class="frame" role="{role}" aria-label="{html.escape(name)}" tabindex="0">{markup}</div>'


class Report:
    """Collects sections and plots; `write` writes them as a report folder, atomically.

    Args:
        folder: folder of the report. A folder with `qacg-report.json` is an earlier report, which `write` replaces.
        title: title of the page.
        lead: one line below the title.
        style, script: additional CSS and JavaScript.

    Raises:
        InputError: `folder` is a file, or has files that are not part of a report.
    """

    def __init__(self, folder: Path | str, title: str, lead: str, *, style: str = "", script: str = ""):
        self.folder, self.title, self.lead = Path(folder), title, lead
        self.style, self.script = style, script
        self.sections: list[Section] = []
        self.figures: dict[str, Kept] = {}
        _check_replaceable(self.folder)

    def section(self, title: str) -> Section:
        """Adds a section to the page, and returns it."""
        self.sections.append(Section(title))
        return self.sections[-1]

    def figure(self, section: Section, name: str, figure: Figure, caption: str, reading: str = "") -> None:
        """Shows a plot in a section; `write` also writes figures/NAME.svg and figures/NAME.png.

        Args:
            section: section in which the plot is shown.
            name: name of the files.
            figure: the plot.
            caption: the result in one sentence (`captions.py`), which is also the text for screen readers.
            reading: meaning of symbols, colours and scales.
        """
        self.keep(name, figure)
        svg = _inline(self.figures[name].svg, figure)
        section.picture(framed(svg, caption, role="img"), caption, reading)

    def keep(self, name: str, figure: Figure) -> None:
        """Adds a plot that the page does not show; `write` writes figures/NAME.svg and figures/NAME.png."""
        _show_dollars(figure)
        # The layout takes most of the time, and matplotlib would repeat it for every output format.
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        self.figures[name] = Kept(figure, _svg(figure, name))

    def write(self) -> Path:
        """Writes the report folder atomically, replaces an earlier report, and returns the page's path.

        Raises:
            InputError: a file cannot be written, or `folder` is a file or has files that are not part of a report; an
                earlier report is then unchanged. Or an earlier report can be neither replaced nor restored; the message
                then has the path of the earlier report's content.
            OSError: the new folder cannot be created or moved into place; an earlier report is unchanged.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(self.folder) as new, explain_write_errors(self.folder.parent):
            (new / "figures").mkdir()
            (new / PAGE_NAME).write_text(self._page(), encoding="utf-8")
            tables = {section.title: section.data for section in self.sections if section.data}
            (new / "tables.json").write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            for name, (figure, svg) in self.figures.items():
                (new / "figures" / f"{name}.svg").write_text(_on_white(svg), encoding="utf-8")
                figure.savefig(new / "figures" / f"{name}.png", dpi=110)
            marker = {"format": 1, "files": [MARKER_NAME, *_files(new)]}
            (new / MARKER_NAME).write_text(json.dumps(marker, indent=1) + "\n", encoding="utf-8")
            _check_replaceable(self.folder)  # the folder may have changed while the report was made
        return self.folder / PAGE_NAME

    def _page(self) -> str:
        return page_html(self.title, self.lead, self.sections, style=self.style, script=self.script)


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
    style = _STYLE.read_text(encoding="utf-8") + style
    script = f"<script>\n{_SCRIPT.read_text(encoding='utf-8')}{script}</script>\n"
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>{title}</h1>\n<p class="lead">{lead}</p>\n'
        f'<nav aria-label="Parts of this page">\n<ul>\n{links}\n</ul>\n</nav>\n</header>\n'
        f"<main>\n{body}\n</main>\n{script}</body>\n</html>\n"
    )


def _files(folder: Path) -> list[str]:
    """Returns the relative paths of all files below a folder."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


def _check_replaceable(folder: Path) -> None:
    """Raises InputError unless `folder` does not exist, is empty, or has a report and nothing else."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder for the report, got a file; choose another folder")
    if not any(folder.iterdir()):
        return
    marker = folder / MARKER_NAME
    if not marker.is_file():
        raise InputError(
            f"{folder}: expected an empty folder or a report with {MARKER_NAME}, got other files; choose another folder"
        )
    try:
        kinds = {"format": int, "files": tuple[str, ...]}
        known = convert_json_fields(kinds, read_json_as(dict[str, object], marker))["files"]
    except InputError as error:
        raise InputError(
            f"{marker}: expected the list of a report's files, got other content ({error}); choose another folder"
        ) from None
    if added := [name for name in _files(folder) if name not in known]:
        raise InputError(
            f"{folder}: expected a report and nothing else, got {added[0]} too, which a new report would delete;"
            " move it away, or choose another folder"
        )


def _show_dollars(figure: Figure) -> None:
    """Turns off formulas in all texts of a plot, so that matplotlib shows `$` unchanged."""
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)


class Kept(NamedTuple):
    """A plot of a report, and its SVG without a background. The SVG is drawn once, for the page and for the file."""

    figure: Figure
    svg: str


def _svg(figure: Figure, name: str) -> str:
    import matplotlib

    stream = io.StringIO()
    # fonttype none: text stays text; hashsalt: ids of two plots on one page differ.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _on_white(svg: str) -> str:
    """Returns the SVG with a white background added."""
    end = svg.index(">", svg.index("<svg")) + 1
    return f'{svg[:end]}<rect width="100%" height="100%" fill="white"/>{svg[end:]}'


def _inline(svg: str, figure: Figure) -> str:
    """Returns the svg element of a plot, with a minimum width that keeps its text legible.

    Ids without references are removed, since matplotlib uses the same ids in every plot.
    """
    text = svg[svg.index("<svg") :]
    used = set(re.findall(r"#([\w.-]+)", text))
    text = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
    width = 96 * figure.get_figwidth()  # an inch has 96 CSS pixels and 72 points
    least = width * min(1.0, _SMALLEST / (_smallest_letters(figure) * 96 / 72))
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg style="width:{width:.0f}px;min-width:{least:.0f}px"', 1)


def _smallest_letters(figure: Figure) -> float:
    """Returns the size in points of the smallest visible text of a plot; 10 if there is no text."""
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return min((text.get_fontsize() for text in texts), default=10.0)
