"""Finds the program ninja, and writes the lines of its files."""

import shlex
import shutil
from pathlib import Path

from native import compilers

ROOT = Path(__file__).resolve().parents[2]


def ninja() -> str | None:
    """Path of ninja, from PATH or from the package `ninja`; None if there is none."""
    if found := shutil.which("ninja"):
        return found
    try:
        import ninja
    except ImportError:
        return None
    return str(Path(ninja.BIN_DIR) / "ninja")


def escaped(flags: list[str]) -> str:
    return " ".join(shlex.quote(f) for f in flags).replace("$", "$$")


def without_machine_paths(headers: Path) -> list[str]:
    """Compiler flags that make the paths of sources and of torch's headers relative in a library's error messages."""
    return [f"-ffile-prefix-map={headers}=torch", f"-ffile-prefix-map={ROOT}/="]


def rules(link: str) -> list[str]:
    return [
        "ninja_required_version = 1.5",
        f"cxx = {compilers.compiler()}",
        "rule compile",
        "  command = $cxx -MMD -MF $out.d $flags -c $in -o $out",
        "  depfile = $out.d",
        "  deps = gcc",
        "rule link",
        f"  command = {link} -o $out.unfinished && mv $out.unfinished $out",
    ]


def compile_edge(rule: str, source: str, target: Path, flags: list[str]) -> list[str]:
    return [f"build {escaped_path(target)}: {rule} {escaped_path(ROOT / source)}", f"  flags = {escaped(flags)}"]


def link_edge(library: Path, objects: list[Path]) -> list[str]:
    return [f"build {escaped_path(library)}: link {' '.join(map(escaped_path, objects))}", ""]


def escaped_path(p: Path) -> str:
    return str(p).replace("$", "$$").replace(" ", "$ ").replace(":", "$:")
