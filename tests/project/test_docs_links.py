"""Links of the pages lead to a file and a heading, or begin with https."""

import re

import pytest
from docs_pages import DOCS, all_pages, page

ROOT = DOCS.parent
FOLDERS = (ROOT, ROOT / "csrc", ROOT / "qacg_kernels", ROOT / "benchmarks")
OTHERS = {path for folder in FOLDERS for path in folder.glob("*.md" if folder == ROOT else "**/*.md")}
FILES = sorted({f"../{path.relative_to(ROOT).with_suffix('')}" for path in OTHERS} | set(all_pages()))


def prose(text):
    """The text without code, in which brackets are no links."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)


def links(name):
    """Targets of the Markdown and HTML links and pictures of a page."""
    text = prose(page(name))
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:href|src|srcset)="([^"]+)"', text)


def anchors(text):
    """Anchors of the headings as GitHub and MyST make them."""
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("name", FILES)
def test_links_lead_to_files_headings_or_https(name):
    folder = (DOCS / name).parent
    broken = []
    for link in links(name):
        path, _, anchor = link.partition("#")
        if link.startswith("https://"):
            continue
        target = (folder / path).resolve() if path else DOCS / f"{name}.md"
        found = target.exists() and target.resolve().is_relative_to(ROOT)
        if not found or (anchor and anchor not in anchors(target.read_text(encoding="utf-8"))):
            broken.append(link)
    assert broken == []
