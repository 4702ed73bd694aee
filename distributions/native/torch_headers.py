"""Finds the C++ headers of torch, also in pip's isolated builds, and selects its stable ABI."""

import importlib.util
import re
import sysconfig
from pathlib import Path

# The oldest torch that the libraries run on. They use only its stable ABI, even if newer headers are installed.
# qacg_kernels/utils/native_libraries.py repeats the number and rejects older versions.
OLDEST_TORCH = (2, 10)
CPU_FLAG = "-DTORCH_TARGET_VERSION=0x020a000000000000"
# 2.9, whose headers make tensors without looking the operator up by name.
CUDA_FLAG = "-DTORCH_TARGET_VERSION=0x0209000000000000"

ADVICE = (
    "run `pip install torch` first (README, Install), then this command again with --no-cache-dir. Tools that build in "
    "another environment than the one they install into, such as uv, also need ninja and setuptools>=77 and "
    "--no-build-isolation. QACG_BUILD_CPU=0 installs without compiled kernels"
)


def torch_folder() -> Path | None:
    """Folder of the installed torch; None if there is none.

    It is the torch that this Python can import, else that of the environment to which the interpreter belongs: pip's
    build isolation hides the environment's packages from imports, but runs the environment's interpreter.
    """
    spec = importlib.util.find_spec("torch")
    found = [Path(spec.origin).parent] if spec is not None and spec.origin else []
    found += [Path(sysconfig.get_path(name)) / "torch" for name in ("purelib", "platlib")]
    return next((folder for folder in found if (folder / "version.py").is_file()), None)


def include_folder() -> Path:
    """The folder of torch's headers."""
    if reason := why_not():
        raise RuntimeError(reason)
    return torch_folder() / "include"


def why_not() -> str | None:
    """The reason why the libraries cannot be compiled against the installed torch; None if they can."""
    folder = torch_folder()
    if folder is None:
        return f"torch: expected an installed torch, got none; {ADVICE}"
    version = re.search(r"__version__ = '((\d+)\.(\d+)[^']*)'", (folder / "version.py").read_text(encoding="utf-8"))
    if version is None or (int(version[2]), int(version[3])) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        found = version[1] if version else "an unknown version"
        return f"torch: expected {oldest} or newer, got {found}; upgrade torch"
    return None
