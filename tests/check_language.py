"""Finds words that language_terms.txt replaces: `make lint`.

A word is found between characters that are not letters, so also as a part of a snake_case name. language_exceptions.txt
lists the files that may contain a word, with the reason. An exception that is no longer needed is an error too.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("qacg_kernels", "python", "csrc", "tests", "benchmarks", "distributions", "docs", ".github")
SUFFIXES = {".py", ".md", ".h", ".cpp", ".cu", ".yml"}
EXCEPTIONS = Path("tests/language_exceptions.txt")
TERMS = Path("tests/language_terms.txt")


def terms(text: str) -> dict[str, str]:
    """Words to avoid and what to write, from lines such as `word, other word: instead`; `#` starts a comment."""
    pairs = (line.partition(": ") for line in text.splitlines() if line and not line.startswith("#"))
    return {word.strip(): instead for words, _, instead in pairs for word in words.split(",")}


def exceptions(text: str) -> set[tuple[str, str]]:
    """Returns the pairs (file, word) of lines such as `tests/a.py: word, other word`; `#` starts a comment."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition(": ") for line in lines if line)
    return {(file, word.strip()) for file, _, words in pairs for word in words.split(",")}


def files(root: Path) -> Iterator[Path]:
    """Yields every file that people read."""
    for folder in FOLDERS:
        yield from (path for path in sorted((root / folder).rglob("*")) if path.suffix in SUFFIXES)
    yield from sorted(root.glob("*.md"))
    yield root / "Makefile"


def check(root: Path) -> tuple[list[str], set[tuple[str, str]]]:
    """Returns a line for each word that should be replaced, and the exceptions that are not needed."""
    instead = terms((root / TERMS).read_text(encoding="utf-8"))
    alternatives = "|".join(re.escape(word).replace(r"\ ", r"\s+") for word in sorted(instead, key=len, reverse=True))
    pattern = re.compile(rf"(?<![a-z])(?:{alternatives})(?![a-z])", re.IGNORECASE)
    unused = allowed = exceptions((root / EXCEPTIONS).read_text(encoding="utf-8"))
    problems = []
    for path in files(root):
        file, text = str(path.relative_to(root)), path.read_text(encoding="utf-8")
        for match in pattern.finditer(text):
            word = " ".join(match[0].lower().split())
            unused = unused - {(file, word)}
            if (file, word) not in allowed:
                number = text.count("\n", 0, match.start()) + 1
                problems.append(f"{file}:{number}: {word!r}: write {instead[word]}")
    return problems, unused


def main() -> int:
    found, unused = check(ROOT)
    found += [f"{EXCEPTIONS}: {file} has no {word!r}: remove the exception" for file, word in sorted(unused)]
    print("".join(f"{line}\n" for line in found), end="")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
