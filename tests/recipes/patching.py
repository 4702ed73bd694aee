"""Applies the files of a recipe: new files, and lines inserted after a given line of existing files."""

import json
import shutil
from pathlib import Path

RECIPES = Path(__file__).parent


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
