"""Checks the files that `make wheels` wrote: `make release-check OUT=dist`.

twine and check-wheel-contents check all files. Then each entry of LINES gets an empty environment under ENVIRONMENTS,
with the versions that uv resolves from the metadata of both distributions. In it pip compiles the sdists and then
installs the wheels. The commands and snippets of README.md run outside of the checkout with both, those of the other
PAGES, the files in TESTS and the LAUNCH_TESTS with the wheels. The last lines are the steps that only the owner can do.

PYTHONS="3.10 /path/to/python" gives the interpreters for the lowest and the newest versions, in a form that uv accepts;
by default both are this one. PyPI's torch brings CUDA's libraries: 7 GB on disk for each line.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from docs_pages import commands, page, snippets  # noqa: E402

ENVIRONMENTS = ROOT / "build/release"
# The dependencies' versions by uv's --resolution: the lowest with the oldest Python, the newest with the newest.
LINES = {"oldest": "lowest-direct", "newest": "highest"}
EXTRAS = {"qacg-kernels": (), "qacg-models": ("onnx",)}
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
TUTORIAL = "tutorials/csv-to-model"
# Each page runs in its own folder: its commands of qacg, those listed here, and its snippets in one process.
PAGES = {
    "../README": ["python -m qacg_kernels.info", "qacg --help", "qacg info"],
    "../python/README": [],
    TUTORIAL: [
        "qacg convert mine converted --to huggingface --allow drop-unplaced",
        "qacg train --config mine/run.yaml --output third",
        "qacg table third",
        "qacg suggest --input new.csv --text-column review --output sheet.csv",
        "qacg suggest --input python/qacg_models/sample/reviews.csv --text-column text --with mine"
        " --labelled reviews.csv --output hard.csv --rows 40",
    ],
}
# Runs before each page: checks what is installed (without the CPU library, the reference would run the page), and
# writes the reviews of the tutorial, and the bundled ones to their path in a checkout.
BEFORE = f"""
import qacg_kernels, qacg_models, shutil, sys
from qacg_kernels.backends import cpu
for package in (qacg_kernels, qacg_models):
    assert package.__file__.startswith(sys.prefix), package.__file__
assert not cpu.missing(), cpu.missing()
shutil.copytree(qacg_models.__path__[0] + "/sample", "python/qacg_models/sample")
{snippets(TUTORIAL)[0]}"""
# Keeps the current folder off the import path, so that the installed package is tested (-P needs Python 3.11).
BEGIN = "import sys; sys.path[:] = [p for p in sys.path if p]; import pytest; sys.exit(pytest.main(sys.argv[1:]))"


def run(command: list[str | Path], **options) -> int:
    return subprocess.run(list(map(str, command)), check=False, **options).returncode


def run_or_exit(*commands: list[str | Path], **options) -> None:
    for command in commands:
        if run(command, **options):
            sys.exit(f"{shlex.join(map(str, command))} failed")


def metadata(dist: Path, name: str) -> Message:
    """The metadata of a distribution, from its wheel for any platform."""
    with zipfile.ZipFile(next(dist.glob(f"{name.replace('-', '_')}-*-any.whl"))) as archive:
        (path,) = (path for path in archive.namelist() if path.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(path).decode())


def requirements(dist: Path) -> list[str]:
    """The requirements of both distributions, including those of EXTRAS, but without qacg-kernels."""
    found = []
    for name, extras in EXTRAS.items():
        for line in metadata(dist, name).get_all("Requires-Dist"):
            extra = re.search(r"""extra == ["'](.+?)["']""", line)
            if not line.startswith("qacg-kernels") and (extra is None or extra[1] in extras):
                found.append(re.sub(r"""( and|;) extra == .*""", "", line))
    return found


def environment(name: str, python: str, dist: Path) -> Path:
    """Makes the environment of an entry of LINES anew, without the two distributions; returns its Python."""
    folder = ENVIRONMENTS / name
    uv = Path(sys.executable).with_name("uv")
    install = [uv, "pip", "install", "--quiet", "--python", folder]
    # As arguments of uv, the requirements are direct dependencies, to which --resolution lowest-direct applies.
    run_or_exit(
        [uv, "venv", "--quiet", "--clear", "--seed", "--python", python, folder],
        [*install, "pytest>=8", "pytest-benchmark>=5"],
        [*install, "--resolution", LINES[name], *requirements(dist)],
    )
    return folder / "bin/python"


def failed_steps(name: str, variables: dict[str, str]) -> list[str]:
    """Runs a page of PAGES with the installed packages, in an empty folder outside of the checkout.

    Args:
        name: the page.
        variables: the environment variables, whose PATH begins with the environment's programs.

    Returns:
        The commands that failed. Each one is printed with the end of what it wrote.
    """
    # A page for a browser requires an archive of npm. Training is short, since its result does not matter here.
    typed = [line for line in [*commands(name, "qacg"), *PAGES[name]] if "--to page" not in line]
    steps = [shlex.split(line) + ["--max-steps", "3"] * line.startswith("qacg train") for line in typed]
    steps = [["python", "-c", BEFORE], *steps, ["python", "-c", "\n".join(snippets(name))]]
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for step in steps:
            done = subprocess.run(step, cwd=folder, env=variables, capture_output=True, text=True, check=False)
            if done.returncode:
                failed.append(shlex.join(step))
                print(f"{name}: {failed[-1]}: exit status {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
    print(f"{name}: {len(failed)} of {len(steps)} commands failed", flush=True)
    return failed


def folder_with_benchmarks() -> Path:
    """A folder for PYTHONPATH with the repository's benchmarks only: some packages install a module of that name."""
    folder = ENVIRONMENTS / "path"
    folder.mkdir(exist_ok=True)
    if not (folder / "benchmarks").is_symlink():
        (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    return folder


def passes(name: str, python: str, dist: Path) -> bool:
    """Installs sdists, then wheels, in the environment of an entry of LINES; returns whether all checks passed."""
    interpreter = environment(name, python, dist)
    path = f"{interpreter.parent}{os.pathsep}{os.environ['PATH']}"
    variables = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1", "PATH": path}
    pip = [interpreter, "-m", "pip"]
    install = [*pip, "install", "--quiet", "--no-deps", "--no-cache-dir", "--force-reinstall"]
    # pip selects the wheel of this platform.
    wheels = ["--no-index", "--find-links", dist, "--only-binary", ":all:", *EXTRAS]
    failed = []
    for pages, files in (["../README"], sorted(dist.glob("*.tar.gz"))), (PAGES, wheels):
        print(f"\n{name}: {shlex.join(map(str, files))}", flush=True)
        # An sdist without its library is an error here.
        run_or_exit([*install, *files], [*pip, "check"], env=variables | {"QACG_BUILD_CPU": "1"})
        failed += [step for page in pages for step in failed_steps(page, variables)]
    run([*pip, "list", "--format=freeze"], env=variables)
    variables["PYTHONPATH"] = str(folder_with_benchmarks())
    begin = [interpreter, "-c", BEGIN, "-q", "-p", "no:cacheprovider"]
    statuses = [run([*begin, *tests], cwd=ROOT / "tests", env=variables) for tests in (TESTS, LAUNCH_TESTS)]
    print(f"{name}: {len(failed)} commands failed; tests: exit statuses {statuses}", flush=True)
    return not failed and not any(statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dist", type=Path, required=True, help="folder with the files of one version")
    parser.add_argument("--pythons", nargs="*", default=[], help="the oldest and the newest Python")
    parser.add_argument(
        "--only", choices=LINES, nargs="*", default=list(LINES), help="versions to install (default: both)"
    )
    options = parser.parse_args()
    dist = options.dist.resolve()
    wheels = sorted(dist.glob("*.whl"))
    # Equal files (W002): two libraries can be missing for the same reason.
    run_or_exit(
        [sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.glob("*.tar.gz")), *wheels],
        [sys.executable, "-m", "check_wheel_contents", "--ignore", "W002", *wheels],
    )
    for name in EXTRAS:
        if links := re.findall(r'(?:\]\(|src="|href=")(?!https://|#)([^)"]*)', metadata(dist, name).get_payload()):
            sys.exit(f"description of {name}: expected links that begin with https://, got {links}")
    found = options.pythons or [sys.executable]
    chosen = {"oldest": found[0], "newest": found[-1]}
    ENVIRONMENTS.mkdir(parents=True, exist_ok=True)
    passed = [passes(name, chosen[name], dist) for name in options.only]
    steps = page("release").partition("\n## Only the owner\n")[2].partition("\n## ")[0]
    print(f"\nOnly the owner can do these steps (docs/release.md):\n{steps}")
    return int(not all(passed))


if __name__ == "__main__":
    sys.exit(main())
