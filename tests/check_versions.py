"""Operators, Triton kernels and the models' conventions with other versions: `make test-versions OUT=build/versions`.

For each line of LINES an environment of its own under OUT, kept between calls, into which the wheel of this checkout
is installed as a user would; then the files in TESTS. One wheel is built and serves them all, which is what torch's
stable ABI and the tag py3-none promise. A table of what ran with what is the end of it.

The oldest and the newest Python are those that this machine has, on the path or in pyenv, and torch has a wheel for;
PYTHONS="/path/to/python3.14 ..." names more. PyPI's torch brings CUDA's libraries: 7 GB on disk for each line.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "distributions"), str(ROOT / "tests/support")]

import outcomes  # noqa: E402
import wheels  # noqa: E402

# The oldest that pyproject.toml claims with the oldest Python, and whatever is the newest with the newest.
LINES = {
    "oldest": ["torch==2.10.0", "transformers==5.12.0"],
    "newest": ["torch", "transformers"],
}
OLDEST_PYTHON = (3, 10)
# The kernels of Triton run in its interpreter, and two are compiled for a GPU that need not be here.
TESTS = (
    "kernels/test_raw_operators.py",
    "kernels/test_operators.py",
    "kernels/test_error_rule.py",
    "kernels/test_threads.py",
    "kernels/test_triton_interpreted.py",
    "kernels/test_triton_compiled.py",
    "models/test_conventions.py",
)
PACKAGES = ("torch", "transformers", "triton")
COLUMNS = ("versions", "Python", *PACKAGES, "passed", "failed", "skipped")
INSTALLED = """
import importlib.metadata as m, json, platform, sys
found = {d.name.lower(): d.version for d in m.distributions()}
print(json.dumps([platform.python_version(), *(found.get(name, "none") for name in sys.argv[1:])]))
"""
# -P would do from Python 3.11 on: the package must be the one that is installed, and not that of the folder at hand.
BEGIN = "import sys; sys.path[:] = [p for p in sys.path if p]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


class Line(NamedTuple):
    """What ran with what: a row of the table."""

    name: str
    installed: list[str]
    counts: Counter
    status: int

    def cells(self) -> list[str]:
        return [self.name, *self.installed, *(str(self.counts[what]) for what in COLUMNS[-3:])]


def run(command: list[str | Path], **options) -> int:
    return subprocess.run(list(map(str, command)), check=False, **options).returncode


def version_of(python: Path) -> tuple[int, ...]:
    """Such as (3, 10, 13); none of an interpreter that does not run, or cannot make environments."""
    asked = "import sys, venv, ensurepip; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def pythons(named: list[Path]) -> dict[tuple[int, ...], Path]:
    """Interpreters of this machine from the oldest that is claimed on, by version."""
    folders = [Path(folder) for folder in os.get_exec_path()]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    found = [p for folder in folders for p in folder.glob("python3.*") if re.fullmatch(r"python3\.\d+", p.name)]
    versions = {version_of(python): python for python in [*found, Path(sys.executable), *named]}
    return {version: python for version, python in sorted(versions.items()) if version[:2] >= OLDEST_PYTHON}


def interpreter(text: str) -> Path:
    """What --pythons takes."""
    if not shutil.which(text) or not version_of(Path(text)):
        raise argparse.ArgumentTypeError(f"got {text!r}, wanted a Python with venv and ensurepip")
    return Path(text)


def environment(name: str, python: Path, wheel: Path, out: Path) -> Path:
    """The Python of an environment with these versions and the wheel."""
    folder = out / name
    interpreter = folder / "bin/python"
    if interpreter.exists() and version_of(interpreter) != version_of(python):
        shutil.rmtree(folder)
    if not interpreter.exists() and run([python, "-m", "venv", folder]):
        sys.exit(f"{python} -m venv failed")
    install = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = [*LINES[name], f"{wheel}[models]", "pytest>=8", "pytest-benchmark>=5", "numpy"]
    if run([*install, *wanted]) or run([*install, "--force-reinstall", "--no-deps", wheel]):
        sys.exit(f"{name}: pip could not install {' '.join(map(str, wanted))}")
    return interpreter


def tested(name: str, interpreter: Path, out: Path) -> Line:
    variables = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    told = subprocess.run([interpreter, "-c", INSTALLED, *PACKAGES], env=variables, capture_output=True, check=True)
    installed = json.loads(told.stdout)
    print(f"\n{name}: {', '.join(f'{k} {v}' for k, v in zip(COLUMNS[1:], installed))}", flush=True)
    rows = out / f"{name}.jsonl"
    command = [interpreter, "-c", BEGIN, "-q", "-p", "no:cacheprovider", "--outcomes", rows, *TESTS]
    status = run(command, cwd=ROOT / "tests", env=variables)
    counts = Counter(row["outcome"] for row in outcomes.read(rows) if row["kind"] == "test")
    return Line(name, installed, counts, status)


def table(lines: list[Line]) -> str:
    cells = [COLUMNS, *(line.cells() for line in lines)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/versions", help="where the environments are kept")
    parser.add_argument("--pythons", type=interpreter, nargs="*", default=[], help="interpreters to choose from, too")
    parser.add_argument("--only", choices=LINES, help="one line; all if not given")
    parser.add_argument("--wheel", type=Path, help="this one, and not one that is built here")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = list(pythons(options.pythons).values())  # this one at least, which the package asks to be new enough
    chosen = {"oldest": found[0], "newest": found[-1]}
    wheel = options.wheel.resolve() if options.wheel else wheels.build("wheel", ROOT, out, QACG_BUILD_CPU="1")
    names = [options.only] if options.only else list(LINES)
    lines = [tested(name, environment(name, chosen[name], wheel, out), out) for name in names]
    print(f"\n{wheel.name}\n{table(lines)}")
    return int(any(line.status for line in lines))


if __name__ == "__main__":
    sys.exit(main())
