"""The folder for the Kernel Hub: its contents, and loading it next to the installed package."""

import base64
import hashlib
import json
import re

import checks
import hub_kernel
import pytest
from native.environment import TARGETS
from processes import ROOT, run_python

PACKAGE = {
    str(path.relative_to(ROOT)): path.read_bytes()
    for path in (ROOT / "qacg_kernels").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}

# As `kernels` imports it, in a process that also has the installed package.
LOAD = """
import importlib.util, json, sys
from pathlib import Path
folder = Path(sys.argv[1])
name = json.loads((folder / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
kernel = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kernel)
"""
COMPARE = """
import torch, qacg_kernels
assert kernel.__all__ == qacg_kernels.__all__
assert kernel.__version__ == qacg_kernels.__version__
assert kernel.available_backends() == qacg_kernels.available_backends()

inputs = [torch.randn(1, 2, 9, 16) for _ in range(5)] + [torch.rand(1, 2, 9)]
def results(package, backend):
    leaves = [t.clone().requires_grad_() for t in inputs]
    out = package.quasi_attention(*leaves, is_causal=True, backend=backend)
    return [out, *torch.autograd.grad(out.sum(), leaves)], out.grad_fn

for backend in kernel.available_backends():
    (theirs, node), (ours, _) = results(kernel, backend), results(qacg_kernels, backend)
    assert all(map(torch.equal, theirs, ours)), backend
    assert type(node).__name__ == "EagerForwardBackward"
    assert hasattr(getattr(torch.ops, name), f"{backend}_attention")

first = [module for path, module in sys.modules.items() if path.split(".")[0] == "qacg_kernels"]
for module in first:
    del sys.modules[module.__name__]
try:
    import qacg_kernels
except ImportError as error:
    print(error)
"""


# The example of the page on the hub, with the loaded kernel.
SHOWN = re.search(r"```python\n(.*?)```", hub_kernel.CARD.read_text(encoding="utf-8"), re.DOTALL)[1]
SHOWN = "".join(line for line in SHOWN.splitlines(keepends=True) if "get_kernel" not in line)
SHOWN += "assert out.shape == query.shape\nassert out.isfinite().all()\n"


@pytest.fixture(scope="module")
def variant(tmp_path_factory):
    """The folder of this machine's variant; without a compiled library if none was built."""
    tag = hub_kernel.this_machine()
    if tag is None:
        pytest.skip("there are no wheels for this platform")
    folder = tmp_path_factory.mktemp("hub") / "build" / hub_kernel.variant_of(tag)
    hub_kernel.write_variant(PACKAGE, folder)
    return folder


def metadata_of(folder):
    return json.loads((folder / "metadata.json").read_text())


@pytest.mark.full
def test_variant_works_next_to_the_installed_package(variant):
    assert run_python("-c", LOAD + SHOWN + COMPARE, variant).stdout == (
        "torch.ops.qacg: expected no operators yet, got those of another copy of qacg_kernels. "
        "Import the package from one place only\n"
    )


def test_every_wheel_platform_has_a_name_on_the_hub():
    assert list(hub_kernel.PLATFORMS) == list(TARGETS)
    assert hub_kernel.variant_of("manylinux_2_28_aarch64") == "torch-stable-abi210-cpu-aarch64-linux"


def test_import_without_a_relative_form_raises():
    with pytest.raises(checks.CheckError, match=r"line 2: expected .* got `import "):
        hub_kernel.relative("\nimport qacg_kernels.operators.schema\n", "qacg_kernels/info.py")


def test_metadata_lists_the_files(variant):
    files = {
        path.relative_to(variant).as_posix(): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in variant.rglob("*")
        if path.is_file() and path.name != "metadata.json" and "__pycache__" not in path.parts
    }
    metadata = metadata_of(variant)
    assert metadata["digest"] == {"algorithm": "sha256", "files": files}
    assert {
        f"{name}.py" for name in ("__init__", "qacg_kernels/__init__", "qacg_kernels/operators/schema")
    } <= files.keys()
    assert (metadata["name"], metadata["version"], metadata["backend"]) == ("qacg-kernels", 0, {"type": "cpu"})


def test_variant_name_depends_on_contents_and_replaces_older(variant, tmp_path):
    folder = tmp_path / "build/x"
    name = hub_kernel.write_variant(PACKAGE, folder)
    assert name.isidentifier()
    assert name == metadata_of(variant)["id"], "the name depends on the contents only"
    changed = PACKAGE | {"qacg_kernels/call/problem.py": PACKAGE["qacg_kernels/call/problem.py"] + b"\n"}
    (folder / "left_behind.py").touch()
    assert hub_kernel.write_variant(changed, folder) != name
    assert sorted(path.name for path in tmp_path.glob("build/*")) == ["x"]
    assert not (folder / "left_behind.py").exists()
