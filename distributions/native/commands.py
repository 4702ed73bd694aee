"""setuptools' commands: build_ext by ninja, and wheels that fit every Python."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

from native import choices, environment, ninja_file, platforms, torch_headers

PACKAGE = ninja_file.ROOT / "qacg_kernels"


def run_ninja(wanted: choices.Library, folder: Path, library: Path) -> None:
    """Compiles and links a library, a second time if what the first found out changes how it is to be built."""
    jobs = environment.jobs()
    command = [ninja_file.ninja(), "-C", str(folder), *(["-j", str(jobs)] if jobs else [])]
    file = folder / "build.ninja"
    wanted.write_ninja(file, library)
    tried = file.read_text()
    try:
        subprocess.run(command, check=True)
    except subprocess.CalledProcessError:
        wanted.write_ninja(file, library)
        if file.read_text() == tried:
            raise
        subprocess.run(command, check=True)


class BuildWithNinja(build_ext):
    """build_ext that hands the work to ninja, and leaves a note when it can't."""

    def get_ext_filename(self, fullname):
        # No version of Python in the name: the libraries hold no symbol of Python, torch loads them.
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext):
        name = ext.name.rpartition(".")[2]
        wanted, path = choices.LIBRARIES[name], Path(self.get_ext_fullpath(ext.name)).resolve()
        for stale in (path, path.parent / choices.note(name)):
            stale.unlink(missing_ok=True)
        reason = choices.why_not_built(wanted)
        if reason:
            if environment.asked(wanted.variable) == "1":
                raise RuntimeError(f"{wanted.variable}=1, but {reason}")
            # An isolated build that finds no torch must not pass for an installation: pip would keep its wheel.
            if choices.must_be_built(wanted) and (lacking := torch_headers.why_not()):
                raise RuntimeError(lacking)
            print(f"qacg_kernels: {path.name} is not built: {reason}", file=sys.stderr)
            path.parent.mkdir(parents=True, exist_ok=True)
            (path.parent / choices.note(name)).write_text(json.dumps({"reason": reason}))
            return
        folder = Path(self.build_temp).resolve() / name
        folder.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        run_ninja(wanted, folder, path)

    def get_outputs(self):
        # A skipped build leaves its note where the installer would look for the library.
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
    """A wheel for every version of Python, since torch loads the libraries; without a library one for any platform."""

    def run(self):
        self.run_command("build")
        self.skip_build = True
        if not any((Path(self.get_finalized_command("build").build_lib) / "qacg_kernels").glob("*.so")):
            self.root_is_pure = True
            self.distribution.ext_modules = []  # what has none is installed where packages of Python alone are
        super().run()

    def get_tag(self):
        if self.root_is_pure:
            return "py3", "none", "any"
        return "py3", "none", platforms.platform_tag() if platforms.target() else super().get_tag()[2]
