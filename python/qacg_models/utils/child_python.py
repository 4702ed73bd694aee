"""Python child processes that import nothing from the current folder.

`python -m MODULE` puts the current folder first on the import path: a `torch.py` or `queue.py` there, which may be
anybody's, would run. `python -P` does not, but exists from Python 3.11 on. So a child runs this file as a script, which
works in every version, and this file runs the module.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_FILE = Path(__file__).resolve()
_OWN_PACKAGES = ("qacg_kernels", "qacg_models", "benchmarks")


def module_command(module: str, *arguments: object) -> list[str]:
    """The command that runs a module as `python -m MODULE` does, but imports nothing from the current folder.

    The child imports the packages of this project from where this process has them, whatever the current folder is.
    Folders named by PYTHONPATH stay on its import path.

    Args:
        module: dotted name of the module, such as "qacg_models.cli".
        arguments: of the module, each as its text.

    Example:
        >>> import subprocess
        >>> subprocess.run(module_command("json.tool", "--help"), check=True)
    """
    folders = {}
    for name in _OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folders[name] = str(Path(spec.submodule_search_locations[0]).resolve().parent)
    return [sys.executable, str(_FILE), json.dumps(folders), module, *map(str, arguments)]


class _PackagesFrom(MetaPathFinder):
    """Finds packages in the folders given by their names, before any other finder."""

    def __init__(self, folders: Mapping[str, str]):
        self.folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self.folders.get(fullname)
        return None if folder is None else PathFinder.find_spec(fullname, [folder])


def _run(folders: str, module: str, *arguments: str) -> None:
    # As a script this file has its own folder on the path, where modules of this package would shadow others.
    sys.path[:] = [entry for entry in sys.path if entry != str(_FILE.parent)]
    sys.meta_path.insert(0, _PackagesFrom(json.loads(folders)))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(*sys.argv[1:])
