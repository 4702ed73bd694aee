"""The host's side of a launch without a GPU: Triton's own Python runs, on an absent GPU, up to the driver's call.

What is asserted is how much Python that is, never how long it takes: the mark of 30 us needs a GPU's host.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")

# Calls of functions, Python's and C's, of one forward of the operator with a lambda tensor, from quasi_attention to
# the driver. Triton's own are about a third of them; its version 3.5 describes a launch's arguments in Python, and 3.9
# does a little more than those between.
MOST_CALLS = 340
MOST_CALLS_BY_VERSION = {"3.5": 800, "3.9": 380}

# In a process of its own: Triton's driver is replaced for good, and the interpreter must be off.
SCRIPT = """
import json, sys
import torch, triton
from benchmarks.static.compile import AbsentGPU
import qacg_kernels as qk
from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton import configurations

launched = []

class SilentGPU(AbsentGPU):
    class utils:
        load_binary = staticmethod(lambda *a: (1, 1, 0, 0, 1024))
        get_device_properties = staticmethod(lambda device: {"max_shared_mem": 227 * 1024})

    def launcher_cls(self, source, metadata):
        return lambda x, y, z, stream, *rest: launched.append((metadata.name, x, y, z, stream))

triton.runtime.driver.set_active(SilentGPU(90))
backend.missing, backend.unsupported = list, lambda problem: []
tensors = [torch.randn(2, 3, 20, 64, dtype=torch.bfloat16) for _ in range(5)]
gate = torch.rand(2, 3, 20).bfloat16()
calls = 0

def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")

def call():
    return qk.quasi_attention(*tensors, gate, backend="triton")

with configurations.trial(configurations.shipped("sm_90")), torch.no_grad():
    call(), call()
    launched.clear()
    sys.setprofile(count)
    call()
    sys.setprofile(None)
print(json.dumps([launched, calls, triton.__version__]))
"""


@pytest.mark.matrix
def test_a_forward_is_one_launch_with_little_python_around_it():
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # another Triton's folder, it may be
    paths = os.pathsep.join([*filter(None, inherited), str(ROOT), str(ROOT / "tests/support")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "0"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    launched, calls, version = json.loads(done.stdout)
    assert launched == [["forward_kernel", 2 * 3, 1, 1, 0]]
    assert 50 < calls <= MOST_CALLS_BY_VERSION.get(version.rsplit(".", 1)[0], MOST_CALLS)
