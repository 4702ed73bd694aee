"""The recipes of CONTRIBUTING.md for a backend and a gate form, followed in a copy of the operator package."""

import shutil

import pytest
from following import ROOT, apply, files, touched
from processes import run_python


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of qacg_kernels with the toy backend and the toy gate form."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copytree(ROOT / "qacg_kernels", root / "qacg_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for recipe in ("backend", "gate_form"):
        apply(recipe, root)
    return root


def run(copy, program):
    """The output of a Python process whose qacg_kernels is the copy."""
    return run_python("-c", program, cwd=copy, paths=(copy,)).stdout


def test_backend_recipe_names_its_files():
    assert touched("backend") == {"qacg_kernels/backends/toy.py", "qacg_kernels/backends/dispatch.py"}
    assert touched("backend") <= files("Adding a backend", NAME="toy")


def test_gate_form_recipe_names_its_files():
    assert touched("gate_form") <= files("Adding a gate variant")


COMPARE = """
import torch
import qacg_kernels as qk
from qacg_kernels.testing import assert_within_budget, evaluate, evaluate_exactly, rounding_scales
from qacg_kernels.testing import through_backend, through_eager
from qacg_kernels.testing.inputs import Case, make_inputs

assert qk.__file__.startswith({root!r}), qk.__file__

def compare(backend, **case):
    inputs = make_inputs(Case("toy", queries=9, head_dim=8, **case), torch.float32)
    exact, scales, eager = evaluate_exactly(inputs), rounding_scales(inputs), evaluate(inputs, through_eager)
    for name, got in evaluate(inputs, through_backend(backend)).items():
        assert_within_budget(name, got, eager[name], exact[name], scales[name])
"""
BACKEND = """
for case in (dict(), dict(gate="shared", bias="shared", dropout_p=0.1), dict(gate="per_head", form="column")):
    compare("toy", **case)
assert "toy" in qk.available_backends()
x, lam = torch.randn(1, 2, 3, 65), torch.rand(1, 2, 3)
print(qk.explain(x, x, x, x, x, lam).reasons["toy"])
compiled = torch.compile(lambda t: qk.quasi_attention(t, t, t, t, t, lam, backend="toy"), backend="eager")
print(tuple(compiled(x[..., :8]).shape))
"""
GATE_FORM = """
compare("reference", gate="shared", bias="shared", form="query", mask="boolean")
inputs = make_inputs(Case("toy", queries=9, head_dim=8, gate="shared", form="query"), torch.float32)
explanation = qk.explain(*inputs.arguments())
print(explanation.selected, explanation.reasons["toy"])
"""


def test_toy_backend_meets_the_error_rule(copy):
    output = run(copy, COMPARE.format(root=str(copy)) + BACKEND).splitlines()
    assert output == ["['head size: expected 1 to 64, got 65']", "(1, 2, 3, 8)"]


def test_toy_gate_form_meets_the_error_rule(copy):
    (line,) = run(copy, COMPARE.format(root=str(copy)) + GATE_FORM).splitlines()
    assert line == "reference [\"gate.form: expected 'row' or 'column', got 'query'\"]"
