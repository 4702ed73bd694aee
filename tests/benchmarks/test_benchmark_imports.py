"""The modules of `benchmarks` import in one direction, without cycles."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# From the bottom up; "commands" are the modules that users run, which nothing imports.
LAYERS = (
    {"cases", "learning_texts"},
    {"implementations", "records"},
    {"measure"},
    {"plans", "model_steps", "command"},
    {"targets", "static", "cost_model", "plot", "table"},
    {"gpu"},  # which gpu_report runs
    {"commands", "evidence"},
)
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}
MODULE_NAME = re.compile(r"benchmarks(\.\w+)+")


def modules():
    found = {}
    for path in sorted((ROOT / "benchmarks").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def part_of(name):
    """The package or module of a name that LAYERS lists; all other modules are commands."""
    part = name.split(".")[1]
    return part if part in LAYER_OF else "commands"


def imported_by(tree, known):
    """Modules of `known` that code imports, anywhere in it, or names in a string."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in known else node.module for member in members}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and MODULE_NAME.fullmatch(node.value):
            found.add(node.value)
    return found & set(known) - {"benchmarks"}


def goes_up(name, imported):
    """Whether an import leads to another part of the same layer, to one above, or to a command."""
    here, there = part_of(name), part_of(imported)
    return there == "commands" or (here != there and LAYER_OF[there] >= LAYER_OF[here])


def cycle(imports):
    """The modules of one cycle, the first of them repeated at the end; None without a cycle."""
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
    name: imported_by(ast.parse(path.read_text(encoding="utf-8")), MODULES) - {name} for name, path in MODULES.items()
}


def test_every_listed_part_exists():
    assert {name.split(".")[1] for name in MODULES if name != "benchmarks"} >= set(LAYER_OF) - {"commands"}


@pytest.mark.parametrize("name", [name for name in MODULES if name != "benchmarks"])
def test_imports_go_down(name):
    assert not [imported for imported in IMPORTS[name] if goes_up(name, imported)]


def test_imports_have_no_cycle():
    assert cycle(IMPORTS) is None


@pytest.mark.parametrize(
    "line",
    [
        "import benchmarks.suite",
        "from benchmarks import suite",
        "from benchmarks.suite import main",
        'subprocess.run([sys.executable, "-m", "benchmarks.suite"])',
        'importlib.import_module("benchmarks.suite")',
    ],
)
def test_imported_by_finds_every_kind_of_import(line):
    late = f"def later():\n    {line}\n"
    assert imported_by(ast.parse(late), MODULES) == {"benchmarks.suite"}
    assert goes_up("benchmarks.run", "benchmarks.suite")


def test_goes_up_and_cycle_find_wrong_imports():
    assert goes_up("benchmarks.cases", "benchmarks.records")
    assert goes_up("benchmarks.plans", "benchmarks.model_steps.times")
    assert not goes_up("benchmarks.records", "benchmarks.cases")
    assert not goes_up("benchmarks.measure.session", "benchmarks.measure.timing")
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


# Its exit status is the number of programs whose --help failed or imported transformers.
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
                sys.exit(f"{name} imports transformers")
            sys.stdout.flush()
            os._exit(ended.code or 0)
    wrong += os.waitpid(child, 0)[1] != 0
sys.exit(wrong)
"""


@pytest.mark.full
def test_help_of_all_commands_prints_only_help():
    """Where torchao is installed, transformers imports it and prints warnings."""
    programs = [name for name, path in MODULES.items() if '__name__ == "__main__"' in path.read_text(encoding="utf-8")]
    programs.remove("benchmarks.precisions")  # imports torchao
    assert {"benchmarks.learning_curves", "benchmarks.end_to_end", "benchmarks.evidence.__main__"} <= set(programs)
    command = [sys.executable, "-c", ASK_FOR_HELP, *programs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") == len(programs)
