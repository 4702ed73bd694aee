"""Operators and the models' conventions with other versions: `make test-versions OUT=build/versions`.

For each line of VERSIONS an environment of its own under OUT, kept between calls, into which the wheel of this checkout
is installed as a user would; then the files in TESTS, with whatever Python has been asked for. One wheel is built and
serves them all, which is what torch's stable ABI and the tag py3-none promise.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "distributions"))

import wheels  # noqa: E402

# The oldest that pyproject.toml claims, and whatever is the newest.
VERSIONS = {
    "oldest": ["torch==2.10.0", "transformers==5.12.0"],
    "newest": ["torch", "transformers"],
}
TESTS = (
    "kernels/test_raw_operators.py",
    "kernels/test_operators.py",
    "kernels/test_error_rule.py",
    "kernels/test_threads.py",
    "models/test_conventions.py",
)
TOLD = "import platform, torch, transformers, importlib.metadata as m; \
print('python', platform.python_version(), 'torch', torch.__version__, 'transformers', transformers.__version__, \
'triton', next((d.version for d in m.distributions() if d.name == 'triton'), 'none'))"


def run(command: list[str | Path], **options) -> int:
    return subprocess.run(list(map(str, command)), check=False, **options).returncode


def environment(name: str, python: str, wheel: Path, out: Path) -> Path:
    """The Python of an environment with these versions and the wheel."""
    folder = out / name
    interpreter = folder / "bin/python"
    if not interpreter.exists() and run([python, "-m", "venv", folder]):
        sys.exit(f"{python} -m venv failed")
    install = [interpreter, "-m", "pip", "install", "--quiet"]
    wanted = [*VERSIONS[name], f"{wheel}[models]", "pytest>=8", "pytest-benchmark>=5", "numpy"]
    if run([*install, *wanted]) or run([*install, "--force-reinstall", "--no-deps", wheel]):
        sys.exit(f"{name}: pip could not install {' '.join(map(str, wanted))}")
    return interpreter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build/versions", help="where the environments are kept")
    parser.add_argument("--python", default=sys.executable, help="the Python of the environments")
    parser.add_argument("--only", choices=VERSIONS, help="one line; all if not given")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    wheel = wheels.build("wheel", ROOT, out, QACG_BUILD_CPU="1")
    failed = []
    for name in [options.only] if options.only else VERSIONS:
        interpreter = environment(name, options.python, wheel, out)
        variables = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
        print(f"{name}: ", end="", flush=True)
        run([interpreter, "-c", TOLD], env=variables)
        # -P, and the tests' own folder: the package must be the one that is installed.
        begin = "import sys, pytest; sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
        flags = ["-P"] if sys.version_info >= (3, 11) else []
        if run([interpreter, *flags, "-c", begin, *TESTS], cwd=ROOT / "tests", env=variables):
            failed.append(name)
    if failed:
        sys.exit(f"failed with versions: {', '.join(failed)}")


if __name__ == "__main__":
    main()
