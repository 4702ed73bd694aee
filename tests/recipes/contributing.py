"""Reads CONTRIBUTING.md: the files that a section names, and its numbered steps through the code."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FILE = re.compile(r"`((?:python|qacg_kernels|csrc)/[\w./]+)`")
_STEP = re.compile(r"^\d+\. `([\w/]+\.py)`, `([\w.]+)`", re.MULTILINE)


def section(title: str) -> str:
    """The text under a heading.

    Raises:
        LookupError: there is no such heading.
    """
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    found = dict(zip(parts[1::2], parts[2::2]))
    if title not in found:
        raise LookupError(f"CONTRIBUTING.md: no section {title!r}; it has {', '.join(found)}")
    return found[title]


def files(title: str, **placeholders: str) -> set[str]:
    """The files of the packages that a section names, with words such as NAME replaced."""
    found = set(_FILE.findall(section(title)))
    for word, value in placeholders.items():
        found = {path.replace(word, value) for path in found}
    return found


def walk(title: str) -> list[tuple[str, str]]:
    """File and function of each numbered step of a section."""
    return [(path, name.rpartition(".")[2]) for path, name in _STEP.findall(section(title))]
