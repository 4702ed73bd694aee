"""Every file that is given out, made on this machine and checked: `make wheels OUT=dist`.

An sdist; from what is in it a wheel without a library, and one for each platform in native/platforms.py, compiled by
Zig's clang for the oldest glibc or macOS that the tag promises. `checks.py` says what each must hold.
"""

import argparse
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
from native.platforms import TARGETS  # noqa: E402

BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def build(kind: str, source: Path, out: Path, **variables: str) -> Path:
    """One file by the build backend that pip would call, moved to `out` when it is whole."""
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = [sys.executable, "-I", "-c", BUILD, f"build_{kind}", folder]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("QACG_")} | variables
        done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{kind} {variables}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        made = Path(folder) / done.stdout.splitlines()[-1]
        return Path(shutil.move(made, out / made.name))


def unpacked(sdist: Path, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    parser.add_argument("--only", choices=["any", *TARGETS], nargs="+", help="these wheels; all if not given")
    options = parser.parse_args()
    options.out = options.out.resolve()  # the builds run in other folders
    options.out.mkdir(parents=True, exist_ok=True)
    sdist = build("sdist", ROOT, options.out)
    print(f"{sdist.name}: {checks.check_sdist(sdist, ROOT)}", flush=True)
    for tag in options.only or ["any", *TARGETS]:
        with tempfile.TemporaryDirectory(dir=options.out) as folder:
            source, wish = unpacked(sdist, Path(folder)), "0" if tag == "any" else "1"
            wheel = build("wheel", source, options.out, QACG_BUILD_FOR=tag, QACG_BUILD_CPU=wish)
        print(f"{wheel.name}: {checks.check_wheel(wheel, tag, ROOT)}", flush=True)


if __name__ == "__main__":
    main()
