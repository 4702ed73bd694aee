"""The Triton kernels against the float64 judge on a machine without a GPU, in Triton's interpreter.

Triton reads TRITON_INTERPRET when a kernel is defined, so this runs the operators' own tests in a process of its
own. By hand: TRITON_INTERPRET=1 pytest --backend triton tests/test_backends_within_budget.py -k "small". bfloat16
is left out: its products are wrong in some interpreters.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SELECTIONS = {
    "small": ("test_backends_within_budget.py", "test_small"),
}


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("name", SELECTIONS)
def test_interpreted(name):
    file, selection = SELECTIONS[name]
    command = [sys.executable, "-m", "pytest", "--backend", "triton", "-k", selection, str(ROOT / "tests" / file)]
    paths = f"{ROOT}{os.pathsep}{ROOT / 'python'}"
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    summary = done.stdout.strip().splitlines()[-1:] or [done.stderr]
    assert done.returncode == 0 and " passed" in summary[0], done.stdout[-6000:] + done.stderr[-2000:]
