"""Builds and checks every file of a release on this machine: `make wheels OUT=dist`.

For qacg-kernels these are the sdist, a wheel without a library, and a wheel for each platform in native/environment.py.
Zig's clang compiles each library for the oldest glibc or macOS that the tag allows. The wheel for Linux on x86-64 also
has the CUDA library, whose kernels nvcc compiles. For qacg-models the files are the sdist and one wheel. All wheels are
built from their sdist. `checks.py` has the requirements for each file.

All times in the files are SOURCE_DATE_EPOCH, by default the time of the commit. So two builds of the same commit are
equal byte for byte.
"""

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "distributions"))

import checks  # noqa: E402
from native import compilers  # noqa: E402
from native.environment import TARGETS  # noqa: E402

MODELS = "models"
OLDEST_DATE = 315532800  # 1 January 1980, the first that a zip file can hold
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def source_date() -> int:
    """The time in the files, in seconds since 1970: SOURCE_DATE_EPOCH, else the commit's time, else 1980."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    try:
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return OLDEST_DATE


def build(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """Builds an sdist or a wheel with setuptools, as pip does, and moves it to `out` when it is complete."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = [sys.executable, "-I", "-c", BUILD, f"build_{kind}", folder]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QACG_")} | variables
        environment["SOURCE_DATE_EPOCH"] = str(source_date())  # setuptools writes it into wheels
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{kind} {variables}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        made = Path(folder) / done.stdout.splitlines()[-1]
        if kind == "sdist":
            remove_build_traces(made, source_date())
        return Path(shutil.move(made, out / made.name))


def remove_build_traces(sdist: Path, date: int) -> None:
    """Writes an sdist again, with all times set to `date`, no user names, and its files in alphabetical order."""
    again = sdist.with_suffix(".again")
    with (
        tarfile.open(sdist) as old,
        again.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=date) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            kept = tarfile.TarInfo(member.name)
            kept.type, kept.size, kept.mtime = member.type, member.size, date
            kept.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(kept, old.extractfile(member) if member.isfile() else None)
    again.replace(sdist)


def build_wheel(sdist: Path, out: Path, **variables: str) -> Path:
    """Builds a wheel from the contents of an sdist."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        return build("wheel", unpacked(sdist, Path(folder)), out, **variables)


def unpacked(sdist: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(sdist) as archive:
        # Not the argument `filter`, which Python 3.10.11, 3.11.3 and older versions do not have.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder)
    (source,) = folder.iterdir()
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder for the files")
    parser.add_argument(
        "--only",
        choices=[MODELS, "any", *TARGETS],
        nargs="+",
        help="wheels to build: models (qacg-models), any (without a library) or platform tags (default: all)",
    )
    options = parser.parse_args()
    out = options.out.resolve()  # the builds run in other folders
    out.mkdir(parents=True, exist_ok=True)
    chosen = options.only or [MODELS, "any", *TARGETS]
    sdist = build("sdist", ROOT, out)
    print(f"{sdist.name}: {checks.check_sdist(sdist, ROOT)}", flush=True)
    for tag in chosen:
        if tag == MODELS:
            build_models(out)
        else:
            wheel = build_wheel(sdist, out, **variables_for(tag))
            print(f"{wheel.name}: {checks.check_wheel(wheel, tag, ROOT)}", flush=True)


def variables_for(tag: str) -> dict[str, str]:
    """The environment variables that build the wheel with a platform tag, or with the tag "any".

    The CUDA library is compiled with the toolkit in CUDA_HOME, or if this is not set, with the one that pip installed.
    """
    variables = {"QACG_BUILD_FOR": tag, "QACG_BUILD_CPU": "0" if tag == "any" else "1"}
    if tag == "any" or not TARGETS[tag].has_cuda:
        return variables
    toolkits = [Path(os.environ["CUDA_HOME"])] if os.environ.get("CUDA_HOME") else compilers.pip_toolkits()
    if not toolkits:
        sys.exit(
            f"{tag}: expected a CUDA toolkit of pip's packages for the CUDA library, got none. Run `make wheels`, "
            "which installs one, or set CUDA_HOME."
        )
    return variables | {"QACG_BUILD_CUDA": "1", "CUDA_HOME": str(toolkits[0])}


def build_models(out: Path) -> Path:
    """Builds and checks the sdist and the wheel of qacg-models; returns the wheel."""
    sdist = build("sdist", ROOT / "python", out)
    print(f"{sdist.name}: {checks.check_models_sdist(sdist, ROOT)}", flush=True)
    wheel = build_wheel(sdist, out)
    version = sdist.name.removesuffix(".tar.gz").rpartition("-")[2]
    print(f"{wheel.name}: {checks.check_models_wheel(wheel, ROOT, version)}", flush=True)
    return wheel


if __name__ == "__main__":
    main()
