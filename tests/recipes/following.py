"""Follows recipes of CONTRIBUTING.md: the files that a section names, its steps, and the changes of a recipe.

A recipe is a folder with new files, and lines to insert after a given line of existing files.
"""

import json
import re
import shutil
from pathlib import Path

from processes import ROOT

RECIPES = Path(__file__).parent
_FILE = re.compile(r"`((?:python|qacg_kernels|csrc)/[\w./]+)`")
_STEP = re.compile(r"^\d+\. `([\w/]+\.py)`, `([\w.]+)`", re.MULTILINE)


def section(title: str) -> str:
    """The text under a heading."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))[title]


def files(title: str, name: str = "NAME") -> set[str]:
    """The files of the packages that a section names, with the word NAME replaced."""
    return {path.replace("NAME", name) for path in _FILE.findall(section(title))}


def walk(title: str) -> list[tuple[str, str]]:
    """File and function of each numbered step of a section."""
    return [(path, name.rpartition(".")[2]) for path, name in _STEP.findall(section(title))]


def touched(recipe: str) -> set[str]:
    """The files that a recipe makes or changes, relative to the root of the repository."""
    new = RECIPES / recipe / "new"
    made = {str(path.relative_to(new)) for path in new.rglob("*.py")}
    return made | {insertion["file"] for insertion in _insertions(recipe)}


def apply(recipe: str, root: Path) -> None:
    """Follows a recipe in a copy of the repository; raises LookupError unless each line to insert after is there once.

    Args:
        recipe: folder beside this file, with `new/` and `insertions.json`.
        root: root of the copy.
    """
    new = RECIPES / recipe / "new"
    for path in new.rglob("*.py"):
        shutil.copyfile(path, root / path.relative_to(new))
    for insertion in _insertions(recipe):
        path, anchor = root / insertion["file"], insertion["after"]
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines.count(anchor) != 1:
            raise LookupError(
                f"{recipe}: {insertion['file']} has the line {anchor!r} {lines.count(anchor)} times, expected once; "
                f"update tests/recipes/{recipe}/insertions.json, and the recipe in CONTRIBUTING.md if its steps change"
            )
        at = lines.index(anchor) + 1
        lines[at:at] = insertion["lines"]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _insertions(recipe: str) -> list[dict]:
    return json.loads((RECIPES / recipe / "insertions.json").read_text(encoding="utf-8"))
