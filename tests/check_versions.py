"""Runs tests and commands with the lowest and the newest dependencies: `make test-versions OUT=build/versions`.

Each entry of LINES has an environment under OUT, kept between calls. It has the versions that uv resolves from the
metadata of both wheels. The wheels are built once: with the tag py3-none and torch's stable ABI, they fit every
version. In each environment the files in TESTS, the LAUNCH_TESTS and the commands in COMMANDS run.

PYTHONS="/path/to/python3.10 /path/to/python3.14" gives the interpreters for the lowest and the newest versions; by
default both are this one. PyPI's torch brings CUDA's libraries: 7 GB on disk for each line.
"""

import argparse
import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "distributions"))

import wheels  # noqa: E402

# The dependencies' versions by uv's --resolution: the lowest with the oldest Python, the newest with the newest.
LINES = {"oldest": "lowest-direct", "newest": "highest"}
EXTRAS = {"qacg_kernels": (), "qacg_models": ("onnx",)}
OLDEST_PYTHON = (3, 10)
# The Triton kernels run in the interpreter, and two are compiled; no GPU is needed.
TESTS = (
    "kernels/test_raw_operators.py",
    "kernels/test_operators.py",
    "kernels/test_error_rule.py",
    "kernels/test_threads.py",
    "kernels/test_triton_interpreted.py",
    "kernels/test_triton_compiled.py",
    "models/test_conventions.py",
)
# The launches of Triton's kernels, on a stub of the driver.
LAUNCH_TESTS = ("-m", "full", "kernels/test_triton_launch.py")
# Commands of qacg, each in its own process, in a folder with reviews.csv and new.csv.
COMMANDS = (
    "check reviews.csv --text-column review --aspect-column topic --label-column verdict",
    "train --data reviews.csv --text-column review --aspect-column topic --label-column verdict --output mine"
    " --max-steps 3 --rows rows",
    "train --config mine/run.yaml --output again",
    "predict mine --text 'the bill was a shock' --aspects food price",
    "predict mine --input new.csv --text-column review --output answers.csv",
    "evaluate mine --data reviews.csv --split dev --report report",
    "analyze mine --text 'the bill was a shock' --aspects food price --output page",
    "export mine --to onnx --output model.onnx",
    "convert mine converted --to huggingface --allow drop-unplaced",
    "table rows",
    "suggest --input new.csv --text-column review --output sheet.csv",
    "suggest --input new.csv --text-column review --with mine --labelled reviews.csv --output hard.csv",
    "info",
)
# Keeps the current folder off the import path, so that the installed package is tested (-P needs Python 3.11).
BEGIN = "import sys; sys.path[:] = [p for p in sys.path if p]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run(command: list[str | Path], **options) -> int:
    return subprocess.run(list(map(str, command)), check=False, **options).returncode


def version_of(python: Path) -> tuple[int, ...]:
    """Version of an interpreter, such as (3, 10, 13); empty if it does not run or cannot make environments."""
    script = "import sys, venv, ensurepip; print(*sys.version_info[:3])"
    done = subprocess.run([python, "-c", script], capture_output=True, text=True, check=False)
    return tuple(map(int, done.stdout.split())) if done.returncode == 0 else ()


def interpreter(text: str) -> Path:
    """Parses an argument of --pythons."""
    if not shutil.which(text) or version_of(Path(text)) < OLDEST_PYTHON:
        raise argparse.ArgumentTypeError(f"expected a Python >= 3.10 with venv and ensurepip, got {text!r}")
    return Path(text)


def requirements(wheel: Path, extras: tuple[str, ...]) -> list[str]:
    """The requirements in a wheel's metadata, including those of `extras`, but without qacg-kernels."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = Parser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist")
    found = []
    for line in lines:
        extra = re.search(r"""extra == ["'](.+?)["']""", line)
        if not line.startswith("qacg-kernels") and (extra is None or extra[1] in extras):
            found.append(re.sub(r"""( and|;) extra == .*""", "", line))
    return found


def environment(name: str, python: Path, files: list[Path], out: Path) -> Path:
    """Makes or updates the environment of an entry of LINES, with the wheels `files`; returns its Python."""
    folder = out / name
    interpreter = folder / "bin/python"
    if interpreter.exists() and version_of(interpreter) != version_of(python):
        shutil.rmtree(folder)
    if not interpreter.exists() and run([python, "-m", "venv", folder]):
        sys.exit(f"{python} -m venv failed")
    install = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    resolve = [folder / "bin/uv", "pip", "install", "--quiet", "--python", interpreter, "--resolution", LINES[name]]
    # As arguments of uv, the requirements are direct dependencies, to which --resolution lowest-direct applies.
    direct = [line for wheel in files for line in requirements(wheel, EXTRAS[wheel.name.partition("-")[0]])]
    steps = (
        [*install, "uv", "pytest>=8", "pytest-benchmark>=5"],
        [*resolve, "--upgrade", *direct],
        [*install, "--force-reinstall", "--no-deps", *files],
        [interpreter, "-m", "pip", "check"],
    )
    for step in steps:
        if run(step):
            sys.exit(f"{name}: {' '.join(map(str, step))} failed")
    return interpreter


def write_inputs(folder: Path) -> None:
    """Writes the files that COMMANDS read: reviews.csv with labels, and new.csv without labels."""
    nouns = ("soup", "waiter", "bill", "room", "breakfast", "view")
    labels = {"food": "good", "price": "bad", "service": "none"}
    rows = [
        (f"the soup was lovely but the bill was a shock, week {week}", *pair)
        for week in range(40)
        for pair in labels.items()
    ]
    texts = [
        (f"In week {i} the {nouns[i % 6]} was {'great' if i % 5 else 'awful'}, the {nouns[-i % 5]} too.",)
        for i in range(60)
    ]
    for name, lines in (("reviews", [("review", "topic", "verdict"), *rows]), ("new", [("review",), *texts])):
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(lines)


def failed_commands(interpreter: Path, folder: Path, variables: dict[str, str]) -> list[str]:
    """Runs COMMANDS with the installed program.

    Args:
        interpreter: Python of the environment with the program.
        folder: working folder, emptied first.
        variables: the environment variables.

    Returns:
        The commands that failed. Each one is printed with the end of what it wrote.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_inputs(folder)
    failed = []
    for command in COMMANDS:
        program = [interpreter.with_name("qacg"), *shlex.split(command)]
        done = subprocess.run(program, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            failed.append(command)
            print(f"qacg {command}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}", flush=True)
    return failed


def folder_with_benchmarks(out: Path) -> Path:
    """A folder for PYTHONPATH with the repository's benchmarks only: some packages install a module of that name."""
    folder = out / "path"
    folder.mkdir(exist_ok=True)
    if not (folder / "benchmarks").is_symlink():
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    return folder


def run_line(name: str, interpreter: Path, out: Path) -> bool:
    """Runs commands and tests in the environment of an entry of LINES; returns whether all of them passed."""
    variables = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    print(f"\n{name}", flush=True)
    run([interpreter, "-m", "pip", "list", "--format=freeze"], env=variables)
    failed = failed_commands(interpreter, out / f"{name}-commands", variables)
    variables["PYTHONPATH"] = str(folder_with_benchmarks(out))
    begin = [interpreter, "-c", BEGIN, "-q", "-p", "no:cacheprovider"]
    statuses = [run([*begin, *tests], cwd=ROOT / "tests", env=variables) for tests in (TESTS, LAUNCH_TESTS)]
    print(f"{name}: {len(failed)} of {len(COMMANDS)} commands failed; tests: exit statuses {statuses}", flush=True)
    return not failed and not any(statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/versions", help="folder of the environments")
    parser.add_argument("--pythons", type=interpreter, nargs="*", default=[], help="the oldest and the newest Python")
    parser.add_argument("--only", choices=LINES, help="one set of versions; both if not given")
    parser.add_argument("--wheel", type=Path, help="wheel of qacg-kernels; built here if not given")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    found = options.pythons or [Path(sys.executable)]
    chosen = {"oldest": found[0], "newest": found[-1]}
    wheel = options.wheel.resolve() if options.wheel else wheels.build("wheel", ROOT, out, QACG_BUILD_CPU="1")
    files = [wheel, wheels.build_models(out)]
    names = [options.only] if options.only else list(LINES)
    passed = [run_line(name, environment(name, chosen[name], files, out), out) for name in names]
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
