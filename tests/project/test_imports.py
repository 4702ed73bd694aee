"""Imports go from higher to lower layers, in statements and in strings, and importing the packages is cheap."""

import ast
import functools
import json
import re
import sys
from graphlib import TopologicalSorter

import pytest
from processes import ROOT, run_python

SOURCES = {"qacg_kernels": ROOT, "qacg_models": ROOT / "python", "benchmarks": ROOT}

COMMANDS = "benchmarks"  # the group of its modules that are in no other group: users run them, and nothing imports them
# From the bottom up: a module imports from its own group and from lower layers. A group is a module or a package,
# without the modules that are groups themselves. Groups of one layer do not import one another.
LAYERS = (
    ("qacg_kernels.utils",),
    ("qacg_kernels.call",),
    ("qacg_kernels.operators",),
    ("qacg_kernels.backends",),
    ("qacg_kernels.backends.dispatch",),
    ("qacg_kernels",),  # functional, attention_layers, nn, patch, testing and the commands
    ("qacg_models.errors",),
    ("qacg_models.utils",),
    ("qacg_models.checkpoints", "qacg_models.layers"),
    ("qacg_models.models",),
    ("qacg_models.attribution", "qacg_models.conversion"),
    ("qacg_models.sentiment",),
    ("qacg_models.tasks",),
    ("qacg_models.cli",),
    ("qacg_models",),
    ("benchmarks.cases",),
    ("benchmarks.implementations", "benchmarks.records", "benchmarks.absent_gpu"),
    ("benchmarks.measure",),
    ("benchmarks.plans", "benchmarks.model_steps", "benchmarks.command"),
    ("benchmarks.targets", "benchmarks.plot", "benchmarks.table"),
    ("benchmarks.gpu", "benchmarks.end_to_end"),
    (COMMANDS,),
)
SHARED = ("dispatch",)  # modules beside the backends
LAYER_OF = {group: layer for layer, groups in enumerate(LAYERS) for group in groups}


def modules():
    """Path of every module of the three packages, by dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


@functools.cache
def imports_of(name):
    """Modules of this repository that a module imports by a statement or a string, anywhere in it."""
    tree = ast.parse(MODULES[name].read_text())
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {member if member in MODULES else node.module for member in members}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found.add(module_named(node.value) or "")
    return {module for module in found if module.split(".")[0] in SOURCES} - {name}


def module_named(text):
    """The module in a string such as "qacg_models.models.bert" or "qacg_models.cli:main", or None."""
    if not re.fullmatch(r"\w+(\.\w+)+(:\w+)?", text):
        return None
    parts = text.partition(":")[0].split(".")
    return next((n for end in range(len(parts), 1, -1) if (n := ".".join(parts[:end])) in MODULES), None)


def group_of(name):
    """The longest entry of LAYERS that is the module or a package around it."""
    return max((group for group in LAYER_OF if name == group or name.startswith(group + ".")), key=len)


def layer_of(name):
    return LAYER_OF[group_of(name)]


def backend_of(name):
    parts = name.split(".")
    is_backend = parts[:2] == ["qacg_kernels", "backends"] and len(parts) > 2 and parts[2] not in SHARED
    return parts[2] if is_backend else None


def upward(name, imported):
    """The forbidden imports of a module: commands, a higher layer, or another group of its layer."""
    return {
        other
        for other in imported
        if group_of(other) == COMMANDS or (group_of(other) != group_of(name) and layer_of(other) >= layer_of(name))
    }


def test_every_group_of_the_layers_exists():
    assert set(LAYER_OF) <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_module_imports_lower_layers_only(name):
    assert not upward(name, imports_of(name)), f"{name} imports from a higher layer, or from another group of its layer"


@pytest.mark.parametrize("package", SOURCES)
def test_package_has_no_import_cycle(package):
    arrows: dict[str, set[str]] = {}
    for name in (name for name in MODULES if name.split(".")[0] == package):
        others = {node_of(other) for other in imports_of(name) if other.split(".")[0] == package}
        arrows.setdefault(node_of(name), set()).update(others - {node_of(name)})
    TopologicalSorter(arrows).prepare()  # raises CycleError


def node_of(name):
    """Returns the module; for a module of a backend the backend, since its modules import each other in functions."""
    return f"qacg_kernels.backends.{backend_of(name)}" if backend_of(name) else name


@pytest.mark.parametrize("name", [name for name in MODULES if backend_of(name)])
def test_no_backend_imports_another(name):
    others = {backend_of(m) for m in imports_of(name)} - {None, backend_of(name)}
    assert not others


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("qacg_kernels")])
def test_kernels_import_torch_only(name):
    tree = ast.parse(MODULES[name].read_text())
    top_level = {
        alias.name.split(".")[0]
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in ([ast.alias(node.module or "")] if isinstance(node, ast.ImportFrom) else node.names)
    }
    allowed = {"torch", "qacg_kernels", *sys.stdlib_module_names}
    if backend_of(name) == "triton":
        allowed.add("triton")
    assert top_level <= allowed


def loaded_by(statement, *before):
    """Packages that a statement loads, without those loaded by the modules `before`."""
    # transformers loads torchao if it is installed, which prints warnings to stderr.
    hidden = "import sys; sys.modules['torchao'] = None; "
    script = (
        f"{hidden}import json{''.join(f', {name}' for name in before)}; before = set(sys.modules); {statement}; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    ignored = ("-W", "ignore:Failed to initialize NumPy:UserWarning")  # from torch without numpy
    done = run_python(*ignored, "-c", script, paths=(ROOT, ROOT / "python"))
    assert done.stderr == "", "importing prints nothing, warnings included"
    return set(json.loads(done.stdout))


def test_importing_kernels_loads_no_heavy_package():
    loaded = loaded_by("import qacg_kernels", "torch")
    assert "qacg_kernels" in loaded
    assert not loaded & {"triton", "transformers", "numpy", "sklearn", "matplotlib"}


@pytest.mark.parametrize("module", ["qacg_models", "qacg_models.cli", "qacg_models.sentiment.options"])
def test_help_loads_no_heavy_package(module):
    loaded = loaded_by(f"import {module}")
    assert "qacg_models" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "tqdm", "yaml"}


def documented_names():
    """The imports in the documentation as (module, name), and the modules and attributes that it names."""
    pairs, whole = set(), set()
    pages = [ROOT / file for file in ("README.md", "python/README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    for file in [*pages, *(ROOT / "docs").rglob("*.md")]:
        text = file.read_text(encoding="utf-8")
        for module, names in re.findall(r"^\s*from (qacg_\w+[\w.]*) import ([\w, ]+)", text, re.MULTILINE):
            pairs |= {(module, name.split(" as ")[0].strip()) for name in names.split(",")}
        whole |= set(re.findall(r"\bqacg_(?:models|kernels)(?:\.\w+)+", text))
    return sorted(pairs), sorted(whole)


def test_every_documented_name_can_be_imported():
    pairs, whole = documented_names()
    assert ("qacg_models", "QACGBertForSequenceClassification") in pairs
    assert "qacg_kernels.info" in whole
    statements = [f"from {module} import {name}" for module, name in pairs]
    for name in whole:
        module = next(name.rsplit(".", cut)[0] for cut in range(3) if name.rsplit(".", cut)[0] in MODULES)
        attribute = name.removeprefix(module).removeprefix(".")
        statements.append(f"from {module} import {attribute}" if attribute else f"import {module}")
    statements.append("import qacg_models; [getattr(qacg_models, name) for name in qacg_models.__all__]")
    exec("; ".join(statements), {})


def test_every_folder_of_modules_is_a_package():
    """setuptools finds packages by __init__.py; without it, a folder would be missing from a wheel."""
    folders = {path.parent for path in MODULES.values()}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


def test_every_python_process_is_isolated():
    """Every command of a package starts Python in isolated mode or as a script, which exclude the current folder.

    `Path(sys.executable)` is in a text for the user, not in a command. The selftest removes the folder from the path.
    """
    isolated = re.compile(r'"-I"| -I |sys\.executable, str\(_[A-Z]+\)|Path\(sys\.executable\)|"-c", child')
    folders = [ROOT / name for name in ("qacg_kernels", "python", "distributions")]
    sources = [path for folder in folders for path in folder.rglob("*.py")]
    starts = {
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sources
        for line in path.read_text(encoding="utf-8").splitlines()
        if "sys.executable" in line and not isolated.search(line)
    }
    assert not starts
