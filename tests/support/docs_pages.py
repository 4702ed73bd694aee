"""Commands and Python snippets of the documentation's pages."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def page(name: str) -> str:
    """Text of docs/NAME.md."""
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def commands(name: str, *programs: str) -> list[str]:
    """Lines of the ```bash blocks that start with one of `programs`, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", page(name), re.DOTALL)
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.split()[0] in programs] if lines else []


def snippets(name: str) -> list[str]:
    """Python blocks in order."""
    return re.findall(r"```python\n(.*?)```", page(name), re.DOTALL)


def text_blocks(name: str) -> list[str]:
    """Text blocks (file contents) in order."""
    return re.findall(r"```text\n(.*?)```", page(name), re.DOTALL)
