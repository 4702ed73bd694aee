"""The report folder: one offline page, the figures as SVG and PNG, and the figures' numbers as JSON."""

from __future__ import annotations

import html
import io
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from qacg_models.errors import InputError
from qacg_models.reporting.tables import html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE_NAME = "index.html"
# A browser refuses whatever the page does not hold itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1c1c1c; background: #fff; max-width: 72rem;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: 0; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 2rem 0 0; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }
th { font-weight: 600; border-bottom-color: #888; } .number { text-align: right; }
p, li { max-width: 46rem; } .note { color: #555; font-size: .9rem; } .lead { color: #555; margin-top: .2rem; }
figure { margin: .6rem 0 1.6rem; overflow-x: auto; } figcaption { color: #555; font-size: .9rem; }
svg { max-width: 100%; height: auto; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .85rem; }
blockquote { margin: .3rem 0; padding: .2rem .8rem; border-left: 3px solid #ccc; }
nav a { margin-right: 1rem; }
"""


@dataclass
class Section:
    """A part of the page.

    Attributes:
        title: heading, and the entry in the list of contents.
        parts: pieces of HTML, in order.
        data: what tables.json keeps of this part.
    """

    title: str
    parts: list[str] = field(default_factory=list)
    data: dict = field(default_factory=dict)

    def text(self, text: str, kind: str = "") -> None:
        """Add a paragraph; `kind` is a class of the style sheet."""
        self.parts.append(f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>")

    def quote(self, text: str) -> None:
        """Add a sentence that the page talks about."""
        self.parts.append(f"<blockquote>{html.escape(text)}</blockquote>")

    def markup(self, markup: str) -> None:
        """Add HTML as it is; whoever makes it escapes what comes from elsewhere."""
        self.parts.append(markup)

    def heading(self, text: str) -> None:
        """Add a heading inside the part."""
        self.parts.append(f"<h3>{html.escape(text)}</h3>")

    def preformatted(self, text: str) -> None:
        """Add text whose line breaks and columns count."""
        self.parts.append(f"<pre>{html.escape(text)}</pre>")

    def table(self, name: str, cells: tuple[list[str], list[list[str]]]) -> None:
        """Add a table; tables.json gets it as `name`."""
        header, rows = cells
        self.parts.append(html_table(header, rows))
        self.data[name] = [dict(zip(header, row)) for row in rows]


class Report:
    """Collects sections and figures, then writes the folder at once.

    Args:
        folder: where it goes. An earlier report there is replaced.
        title: of the page.
        lead: one line under the title.
        style, script: CSS and JavaScript of the page, beside what every report has.

    Raises:
        InputError: something that is not a report is already there.
    """

    def __init__(self, folder: Path | str, title: str, lead: str, *, style: str = "", script: str = ""):
        self.folder, self.title, self.lead = Path(folder), title, lead
        self.style, self.script = style, script
        self.sections: list[Section] = []
        self.figures: dict[str, Figure] = {}
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file; the report needs a folder of its own")
        if self.folder.is_dir() and any(self.folder.iterdir()) and not (self.folder / PAGE_NAME).is_file():
            raise InputError(f"{self.folder}: holds other files and no report; name another folder")

    def section(self, title: str) -> Section:
        """Begin a part of the page."""
        self.sections.append(Section(title))
        return self.sections[-1]

    def figure(self, section: Section, name: str, figure: Figure, caption: str) -> None:
        """Show a figure in a section and keep it as figures/NAME.svg and .png."""
        self.keep(name, figure)
        section.parts.append(
            f"<figure>{_inline_svg(figure, name)}<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    def keep(self, name: str, figure: Figure) -> None:
        """Keep a figure as figures/NAME.svg and .png without showing it."""
        # Laid out once: matplotlib would do it again, at most of the cost, for every form that is written.
        if figure.get_layout_engine() is not None:
            figure.draw_without_rendering()
            figure.set_layout_engine("none")
        self.figures[name] = figure

    def write(self) -> Path:
        """Write everything under a temporary name, rename it, and return the page's path."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{self.folder.name}.", dir=self.folder.parent))
        try:
            new = work / "new"
            (new / "figures").mkdir(parents=True)
            (new / PAGE_NAME).write_text(self._page(), encoding="utf-8")
            tables = {section.title: section.data for section in self.sections if section.data}
            (new / "tables.json").write_text(json.dumps(tables, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            for name, figure in self.figures.items():
                (new / "figures" / f"{name}.svg").write_text(_svg(figure, name), encoding="utf-8")
                figure.savefig(new / "figures" / f"{name}.png", dpi=110)
            if self.folder.exists():
                os.rename(self.folder, work / "old")
            os.rename(new, self.folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return self.folder / PAGE_NAME

    def _page(self) -> str:
        links = " ".join(
            f'<a href="#part-{number}">{html.escape(section.title)}</a>'
            for number, section in enumerate(self.sections, 1)
        )
        body = "\n".join(
            f'<h2 id="part-{number}">{html.escape(section.title)}</h2>\n' + "\n".join(section.parts)
            for number, section in enumerate(self.sections, 1)
        )
        script = f"<script>\n{self.script}</script>\n" if self.script else ""
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{STYLE}{self.style}</style>\n</head>\n<body>\n"
            f'<h1>{html.escape(self.title)}</h1>\n<p class="lead">{html.escape(self.lead)}</p>\n'
            f"<nav>{links}</nav>\n{body}\n{script}</body>\n</html>\n"
        )


def _svg(figure: Figure, name: str) -> str:
    import matplotlib

    stream = io.StringIO()
    # Letters stay text (small, searchable); the salt keeps ids of two figures on one page apart.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _inline_svg(figure: Figure, name: str) -> str:
    """The svg element alone, ready for a page that holds several.

    No XML declaration or document type, which a page has once; and no ids but those that the figure itself
    refers to, since matplotlib calls the axes of every figure axes_1.
    """
    text = _svg(figure, name)
    text = text[text.index("<svg") :]
    used = set(re.findall(r"#([\w.-]+)", text))
    return re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", text)
