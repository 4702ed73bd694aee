"""The rooms of `benchmarks` import one way: from floors below their own, and within a room without a circle."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up. Rooms of one floor do not know each other, and the commands on top are no library.
FLOORS = (
    {"cases", "learning"},
    {"providers", "rows"},
    {"measure"},
    {"plans", "steps"},
    {"analysis", "targets", "static"},
    {"cli"},
    {"commands", "evidence"},
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
NAME_OF_A_MODULE = re.compile(r"benchmarks(\.\w+)+")


def modules():
    found = {}
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()
ROOMS = {name for name, path in MODULES.items() if path.name == "__init__.py" and name != "benchmarks"}


def room_of(name):
    parts = name.split(".")
    return parts[1] if len(parts) > 2 or name in ROOMS else "commands"


def named_in(tree, known):
    """Modules of `known` that code imports, anywhere in it, or names in a string: for a process, or to import late."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in known else node.module for member in members}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NAME_OF_A_MODULE.fullmatch(node.value):
            found.add(node.value)
    return found & set(known) - {"benchmarks"}


def wrong_way(name, imported):
    """Whether an import leads to a room of the same floor or of one above, or to a command."""
    here, there = room_of(name), room_of(imported)
    return there == "commands" or (here != there and FLOOR_OF[there] >= FLOOR_OF[here])


def circle(imports):
    """The modules of one circle of imports, the first of them repeated at the end; None: there is none."""
    done, path = set(), []

    def visit(name):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return None
        path.append(name)
        found = next(filter(None, map(visit, sorted(imports[name]))), None)
        path.pop()
        done.add(name)
        return found

    return next(filter(None, map(visit, imports)), None)


IMPORTS = {
    name: named_in(ast.parse(path.read_text(encoding="utf-8")), MODULES) - {name} for name, path in MODULES.items()
}


def test_every_room_has_a_floor_and_every_floor_its_rooms():
    assert {name.split(".")[1] for name in ROOMS} | {"commands"} == set(FLOOR_OF)


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_down(name):
    assert not [imported for imported in IMPORTS[name] if wrong_way(name, imported)]


def test_no_circle():
    assert circle(IMPORTS) is None


@pytest.mark.parametrize(
    "line",
    [
        "import benchmarks.marks",
        "from benchmarks import marks",
        "from benchmarks.marks import main",
        'subprocess.run([sys.executable, "-m", "benchmarks.marks"])',
        'importlib.import_module("benchmarks.marks")',
    ],
)
def test_the_reader_sees_every_way_to_import(line):
    late = f"def later():\n    {line}\n"
    assert named_in(ast.parse(late), MODULES) == {"benchmarks.marks"}
    assert wrong_way("benchmarks.aims", "benchmarks.marks")


def test_the_judges_of_direction_and_circles_know_wrong_from_right():
    assert wrong_way("benchmarks.cases.case", "benchmarks.rows")
    assert wrong_way("benchmarks.plans.session", "benchmarks.steps.names")
    assert not wrong_way("benchmarks.rows.files", "benchmarks.cases.case")
    assert not wrong_way("benchmarks.rows.files", "benchmarks.rows.kinds")
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


# Its exit status is the number of programs that loaded transformers, or that failed, for a page of help.
ASK_FOR_HELP = """
import gc, os, runpy, sys, torch
gc.freeze()
wrong = 0
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        sys.argv = [name, "--help"]
        try:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if "transformers" in sys.modules:
                sys.exit(f"{name} loads transformers")
            sys.stdout.flush()
            os._exit(ended.code or 0)
    wrong += os.waitpid(child, 0)[1] != 0
sys.exit(wrong)
"""


@pytest.mark.full
def test_help_says_nothing_but_help():
    """Where torchao is installed, transformers loads it, and it says on stderr what it cannot load itself."""
    programs = [name for name, path in MODULES.items() if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    programs.remove("benchmarks.precisions")  # which is about torchao
    assert {"benchmarks.learning_curves", "benchmarks.end_to_end", "benchmarks.evidence.__main__"} <= set(programs)
    command = [sys.executable, "-c", ASK_FOR_HELP, *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == len(programs)
