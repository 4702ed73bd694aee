"""Commands of Python child processes that import nothing from the current folder.

`python -m MODULE` puts the current folder first on the import path, so a file `torch.py` in that folder would run.
`python -P` avoids that, but requires Python 3.11. So a child runs this file as a script, which then runs the module.
"""

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
    """Returns the command that runs a module without imports from the current folder.

    The child imports the packages of this project from the same folders as this process. The folders in PYTHONPATH
    stay on its import path.

    Args:
        module: dotted name of the module, such as "qacg_models.cli".
        *arguments: arguments of the module, converted to str.

    Returns:
        The arguments for `subprocess.run`.

    Example:
        >>> import subprocess
        >>> subprocess.run(module_command("json.tool", "--help")).returncode
        0
    """
    folders = {}
    for name in _OWN_PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            folders[name] = str(Path(spec.submodule_search_locations[0]).resolve().parent)
    return [sys.executable, str(_FILE), json.dumps(folders), module, *map(str, arguments)]


class _PackagesFrom(MetaPathFinder):
    """Finds packages in given folders, before any other finder."""

    def __init__(self, folders: Mapping[str, str]):
        self.folders = folders

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        folder = self.folders.get(fullname)
        return None if folder is None else PathFinder.find_spec(fullname, [folder])


def _run(folders: str, module: str, *arguments: str) -> None:
    # Python puts the folder of a script on the import path; modules in it would shadow others of the same name.
    sys.path[:] = [entry for entry in sys.path if entry != str(_FILE.parent)]
    sys.meta_path.insert(0, _PackagesFrom(json.loads(folders)))
    sys.argv[1:] = arguments
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run(*sys.argv[1:])
