"""What changed from one set of rows to another: `python -m benchmarks.compare OLD NEW`, each a file or a folder.

What counts as a change, `analysis/changes.py` says.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks import rows
from benchmarks.analysis.changes import lines


def load(path: str) -> list[rows.Row]:
    """Rows of a file, or of every .jsonl file in a folder."""
    folder = Path(path)
    files: Iterable[Path] = sorted(folder.glob("*.jsonl")) if folder.is_dir() else [folder]
    return rows.load(files)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description="What changed between rows.")
    parser.add_argument("old", help="a file of rows, or a folder with such files")
    parser.add_argument("new", help="the same, of other sources")
    options = parser.parse_args(arguments)
    try:
        print("\n".join(lines(load(options.old), load(options.new))))
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
