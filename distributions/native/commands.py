"""Commands of setuptools: build_ext with ninja, and wheels that fit every Python."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

from native import choices, environment, ninja_file, platforms, torch_headers

PACKAGE = ninja_file.ROOT / "qacg_kernels"


def run_ninja(library: choices.Library, folder: Path, path: Path) -> None:
    """Compiles and links a library.

    If that fails, calls `write_ninja` again. If this writes other lines (see `cuda.SERIALISED`), tries once more.

    Raises:
        subprocess.CalledProcessError: the last try failed.
    """
    jobs = environment.jobs()
    command = [ninja_file.ninja(), "-C", str(folder), *(["-j", str(jobs)] if jobs else [])]
    file = folder / "build.ninja"
    library.write_ninja(file, path)
    tried = file.read_text()
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError:
        library.write_ninja(file, path)
        if file.read_text() == tried:
            raise
        subprocess.run(command, check=True)


class BuildWithNinja(build_ext):
    """The command build_ext: runs ninja, or stores the reason why a library is not built."""

    def get_ext_filename(self, fullname):
        # Without Python's version in the name: torch loads the libraries, and they use no symbols of Python.
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        name = ext.name.rpartition(".")[2]
        library, path = choices.LIBRARIES[name], Path(self.get_ext_fullpath(ext.name)).resolve()
        for stale in (path, path.parent / choices.note(name)):
            stale.unlink(missing_ok=True)
        reason = choices.why_not_built(library)
        if reason:
            if environment.build_option(library.variable) == "1":
                raise RuntimeError(f"{library.variable}=1, but {reason}")
            # Fails instead of building a wheel without the library, which pip would cache.
            if choices.must_be_built(library) and (missing := torch_headers.why_not()):
                raise RuntimeError(missing)
            print(f"qacg_kernels: {path.name} is not built: {reason}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / choices.note(name)).write_text(json.dumps({"reason": reason}))
            return
        folder = Path(self.build_temp).resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        run_ninja(library, folder, path)

    def get_outputs(self):
        # If a library is not built, its output is the file with the reason.
        built = (Path(p) for p in super().get_outputs())
        return [str(p if p.exists() else p.parent / choices.note(p.name.partition(".")[0])) for p in built]

    def copy_extensions_to_source(self):
        for name in choices.LIBRARIES:
            for file in (choices.note(name), Path(self.get_ext_filename(name)).name):
                built = Path(self.build_lib) / "qacg_kernels" / file
                (PACKAGE / file).unlink(missing_ok=True)
                if built.exists():
                    unfinished = PACKAGE / f"{file}.unfinished"
                    shutil.copy2(built, unfinished)
                    unfinished.replace(PACKAGE / file)


class Wheel(bdist_wheel):
    """The command bdist_wheel: one wheel for all versions of Python, and for all platforms if it has no library."""

    def run(self):
        self.run_command("build")
        self.skip_build = True
        if not any((Path(self.get_finalized_command("build").build_lib) / "qacg_kernels").glob("*.so")):
            self.root_is_pure = True
            self.distribution.ext_modules = []  # so that the wheel is a pure one
        super().run()

    def get_tag(self):
        if self.root_is_pure:
            return "py3", "none", "any"
        return "py3", "none", platforms.platform_tag() if platforms.target() else super().get_tag()[2]
