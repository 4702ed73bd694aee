"""Follows recipes of CONTRIBUTING.md: the files that a section names, its steps, and the changes of a recipe.

A recipe is a folder with new files, and lines to insert after a given line of existing files.
"""

import json
import re
import shutil
from pathlib import Path

RECIPES = Path(__file__).parent
ROOT = RECIPES.parents[1]
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


def touched(recipe: str) -> set[str]:
    """The files that a recipe makes or changes, relative to the root of the repository."""
    new = RECIPES / recipe / "new"
    made = {str(path.relative_to(new)) for path in new.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    return made | {insertion["file"] for insertion in _insertions(recipe)}


def apply(recipe: str, root: Path) -> None:
    """Follows a recipe in a copy of the repository.

    Args:
        recipe: folder beside this file, with `new/` and `insertions.json`.
        root: root of the copy.

    Raises:
        LookupError: a file does not have the line to insert after exactly once.
        FileExistsError: a new file of the recipe already exists.
    """
    new = RECIPES / recipe / "new"
    for path in sorted(path for path in new.rglob("*.py")):
        target = root / path.relative_to(new)
        if target.exists():
            raise FileExistsError(f"{recipe}: {path.relative_to(new)} already exists")
        shutil.copyfile(path, target)
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
