"""Makes the folder that Hugging Face's library `kernels` loads from the Kernel Hub: `make hub-kernel DIR=dir`.

The hub requires one folder per platform, `build/<variant>`, with `metadata.json`, a package that does not import itself
by name, and operators in a namespace that is unique to the build. The package is that of the wheel with relative
imports. Its import name, which is also its namespace (`operators/schema.py`), contains a digest of its contents.
Requirements of the hub: https://huggingface.co/docs/kernels/kernel-requirements
"""

import argparse
import ast
import base64
import hashlib
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "distributions"))

import checks  # noqa: E402
import wheels  # noqa: E402
from native.torch_headers import OLDEST_TORCH  # noqa: E402

PACKAGE = "qacg_kernels"
CARD = ROOT / "distributions/hub_card.md"
# The hub's name of each platform that has a wheel.
PLATFORMS = {
    "manylinux_2_28_x86_64": "x86_64-linux",
    "manylinux_2_28_aarch64": "aarch64-linux",
    "macosx_11_0_arm64": "aarch64-darwin",
}

# The package is in a folder of the same name, where older versions of `kernels` and the selftest's processes find it.
INIT = '''"""Fused softmax attention plus lambda-gated sigmoid quasi-attention, from the Kernel Hub."""

from .qacg_kernels import *
from .qacg_kernels import __all__, __version__
'''

# Loads the folder with `kernels`, which selects the variant for this torch and machine.
CALL = """
import sys
from pathlib import Path
import torch
from kernels import get_local_kernel
kernel = get_local_kernel(Path(sys.argv[1]), backend="cpu")
inputs = [*torch.randn(5, 2, 3, 37, 64).unbind(), torch.rand(2, 3, 37)]
out, expected = (kernel.quasi_attention(*inputs, backend=name) for name in ("cpu", "reference"))
torch.testing.assert_close(out, expected)
print(f"{Path(kernel.__file__).parent.name}: loaded by kernels, and agrees with the reference")
"""


def variant_of(tag: str) -> str:
    """The hub's name of the variant for a wheel's platform tag."""
    return f"torch-stable-abi{''.join(map(str, OLDEST_TORCH))}-cpu-{PLATFORMS[tag]}"


def this_machine() -> str | None:
    """The platform tag of the wheel for this machine; None if there is no such wheel."""
    here = f"{platform.machine().lower().replace('arm64', 'aarch64')}-{platform.system().lower()}"
    return next((tag for tag, name in PLATFORMS.items() if name == here), None)


def relative(source: str, path: str) -> str:
    """Returns a module's source with relative imports in place of absolute imports of qacg_kernels."""
    lines, up = source.splitlines(keepends=True), "." * path.count("/")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE]
            where = f"{path}, line {node.lineno}"
            checks.require(not names, f"{where}: expected `from ... import`, got `import {' '.join(names)}`")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == PACKAGE:
            pattern = rf"(from\s+){PACKAGE}\b\.?"
            line, count = re.subn(pattern, rf"\g<1>{up}", lines[node.lineno - 1], count=1)
            checks.require(count, f"{path}, line {node.lineno}: expected `from MODULE` on one line, got a line break")
            lines[node.lineno - 1] = line
    return "".join(lines)


def write_variant(package: dict[str, bytes], folder: Path) -> str:
    """Writes the folder of one variant in place of an older one; returns its import name."""
    files = {
        path: relative(data.decode(), path).encode() if path.endswith(".py") else data for path, data in package.items()
    }
    version = re.search(r'^__version__ = "(\d+)\.', files[f"{PACKAGE}/__init__.py"].decode(), re.MULTILINE)
    files["__init__.py"] = INIT.encode()
    digests = {path: hashlib.sha256(files[path]) for path in sorted(files)}
    whole = hashlib.sha256("".join(f"{path} {digest.hexdigest()}\n" for path, digest in digests.items()).encode())
    name = f"_{PACKAGE}_cpu_{whole.hexdigest()[:12]}"
    metadata = {
        "id": name,
        "name": PACKAGE.replace("_", "-"),
        "version": int(version[1]),  # the major one, by which the hub distinguishes incompatible releases
        "license": "mit",
        "python-depends": [],
        "backend": {"type": "cpu"},
        "digest": {
            "algorithm": "sha256",
            "files": {path: base64.b64encode(digest.digest()).decode() for path, digest in digests.items()},
        },
    }
    files["metadata.json"] = (json.dumps(metadata, indent=2) + "\n").encode()
    shutil.rmtree(folder, ignore_errors=True)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return name


def check_loads(directory: Path) -> str:
    """Checks that `kernels` loads the variant for this machine, and that its results match the reference."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", CALL, str(directory.resolve())], capture_output=True, text=True, check=False
    )
    error = f"{directory}: expected a folder that `kernels` can load, got\n{done.stderr[-4000:]}"
    checks.require(done.returncode == 0, error)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder to upload to a repository of the hub")
    parser.add_argument("--only", choices=PLATFORMS, nargs="+", help="platforms to build for (default: all)")
    options = parser.parse_args()
    options.out = options.out.resolve()  # the builds run in other folders
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        sdist = wheels.build("sdist", ROOT, Path(folder))
        for tag in options.only or PLATFORMS:
            wheel = wheels.build_wheel(sdist, Path(folder), QACG_BUILD_FOR=tag, QACG_BUILD_CPU="1", QACG_BUILD_CUDA="0")
            libraries = [name for name in checks.libraries_for(tag) if name != checks.CUDA_LIBRARY]
            checks.check_wheel(wheel, tag, ROOT, libraries)
            with zipfile.ZipFile(wheel) as archive:
                paths = [path for path in archive.namelist() if path.startswith(f"{PACKAGE}/") and path[-1] != "/"]
                package = {path: archive.read(path) for path in paths}
            variant = options.out / "build" / variant_of(tag)
            name = write_variant(package, variant)
            print(f"{variant.relative_to(options.out)}: imported as {name}", flush=True)
    shutil.copyfile(CARD, options.out / "README.md")
    if this_machine() in (options.only or PLATFORMS):
        print(check_loads(options.out))


if __name__ == "__main__":
    main()
