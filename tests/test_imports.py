"""Imports run one way, and importing the package stays cheap."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {"qacg_kernels": ROOT, "qacg_models": ROOT / "python", "benchmarks": ROOT}

# From the bottom up: a module may import from its own layer and from those above it in this list.
LAYERS = (
    ("qacg_kernels.ops", "qacg_kernels.gate", "qacg_kernels.dropout", "qacg_kernels.masks", "qacg_kernels.libraries"),
    ("qacg_kernels.problem", "qacg_kernels.backends"),
    ("qacg_kernels.certificates",),
    ("qacg_kernels.dispatch",),
    ("qacg_kernels",),  # functional, maps, nn and whatever else is not named in a lower layer
    ("qacg_models",),
    ("benchmarks",),
)


def modules():
    """Path of every module of the three packages, by dotted name."""
    found = {}
    for package, folder in SOURCES.items():
        for path in sorted((folder / package).rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports_of(name):
    """Names of our own modules that a module imports, anywhere in it."""
    tree = ast.parse(MODULES[name].read_text())
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - node.level + 1], base]
                ).strip(".")
            members = {f"{base}.{alias.name}" for alias in node.names}
            found |= {m if m in MODULES else base for m in members}
    return {m for m in found if m.split(".")[0] in SOURCES} - {name}


def layer_of(name):
    """The layer of the longest entry of LAYERS that is the module or a package around it."""
    matches = [
        (len(entry), layer)
        for layer, entries in enumerate(LAYERS)
        for entry in entries
        if name == entry or name.startswith(entry + ".")
    ]
    return max(matches)[1]


def backend_of(name):
    parts = name.split(".")
    return parts[2] if parts[:2] == ["qacg_kernels", "backends"] and len(parts) > 2 else None


def test_the_reader_of_imports_sees_them():
    assert "qacg_kernels.backends.reference" in imports_of("qacg_kernels.dispatch")
    assert "qacg_kernels.dropout" in imports_of("qacg_kernels.backends.reference")
    assert layer_of("qacg_kernels.backends.cpu") < layer_of("qacg_kernels.dispatch") < layer_of("qacg_models")


@pytest.mark.parametrize("name", MODULES)
def test_imports_run_one_way(name):
    upward = {other for other in imports_of(name) if layer_of(other) > layer_of(name)}
    assert not upward, f"{name} imports from layers above its own"


@pytest.mark.parametrize("name", [name for name in MODULES if backend_of(name)])
def test_no_backend_imports_another(name):
    others = {backend_of(m) for m in imports_of(name)} - {None, backend_of(name)}
    assert not others


@pytest.mark.parametrize("name", [name for name in MODULES if name.startswith("qacg_kernels")])
def test_the_kernels_know_no_model_and_no_heavy_package(name):
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


def test_importing_the_package_loads_neither_triton_nor_transformers():
    script = (
        "import sys, json, torch; before = set(sys.modules); import qacg_kernels; "
        "print(json.dumps(sorted({name.split('.')[0] for name in set(sys.modules) - before})))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, cwd=ROOT
    )
    assert done.stderr == "", "importing prints nothing, warnings included"
    loaded = set(json.loads(done.stdout))
    assert "qacg_kernels" in loaded
    assert not loaded & {"triton", "transformers", "numpy", "sklearn", "matplotlib"}
