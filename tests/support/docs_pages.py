"""Commands and Python snippets of the documentation's pages."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Pages that are not below docs, relative to it.
FRONT_PAGES = ("../README", "../python/README", "../benchmarks/README", "../CONTRIBUTING")


def all_pages() -> list[str]:
    """Names of the pages that a user or contributor reads, for `page`."""
    return [*FRONT_PAGES, *sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))]


def page(name: str) -> str:
    """Text of docs/NAME.md."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def commands(name: str, *programs: str) -> list[str]:
    """Lines of the ```bash blocks and indented blocks that start with one of `programs`, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```|((?:^    .*\n)+)", page(name), re.DOTALL | re.MULTILINE)
    blocks = [fenced or indented for fenced, indented in blocks]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and line.split()[0] in programs]


def snippets(name: str) -> list[str]:
    """Python blocks in order."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def text_blocks(name: str) -> list[str]:
    """Text blocks (file contents) in order."""
    return re.findall(r"```text\n(.*?)```", page(name), re.DOTALL)
