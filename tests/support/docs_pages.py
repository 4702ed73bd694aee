"""Reads commands and Python snippets from the pages of the documentation."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).resolve().parents[2] / "docs"
# Pages outside of the folder docs, as paths relative to it.
FRONT_PAGES = (
    "../README", "../python/README", "../benchmarks/README", "../benchmarks/results/performance", "../CONTRIBUTING",
)  # fmt: skip


def all_pages() -> list[str]:
    """The names of all pages that users or contributors read, as arguments of `page`."""
    return [*FRONT_PAGES, *sorted(str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md"))]


def page(name: str) -> str:
    """The text of docs/NAME.md."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def commands(name: str, *programs: str) -> list[str]:
    """The lines that start with one of `programs`, in ```bash blocks and indented blocks, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```|((?:^    .*\n)+)", page(name), re.DOTALL | re.MULTILINE)
    blocks = [fenced or indented for fenced, indented in blocks]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and line.split()[0] in programs]


def snippets(name: str) -> list[str]:
    """The Python blocks of a page, in order."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def text_blocks(name: str) -> list[str]:
    """The text blocks of a page (contents of files), in order."""
    return re.findall(r"```text\n(.*?)```", page(name), re.DOTALL)


def example_module(name: str) -> ModuleType:
    """A program of docs/examples as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
