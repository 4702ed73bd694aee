"""The sources of the Gluon forward, run on a model of a Hopper GPU (tests/gluon_model), meet the error rule.

The model raises an error where the behaviour of a GPU is undefined.
"""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
from full_members import members
from gluon_model import language
from gluon_model.machine import Fault
from judging import compare, judges_of

from qacg_kernels.backends.triton import gluon_forward, gluon_launch, launch
from qacg_kernels.call.problem import Residuals
from qacg_kernels.functional import problem_of
from qacg_kernels.testing.inputs import Case, make_inputs

# Every path of the kernel: both head sizes, one tile, full and partial tiles, more tiles than stages, blocks without a
# row or a key, hidden keys within a tile.
CASES = (
    Case("whole tiles", batch=1, heads=2, queries=128, keys=384, head_dim=64),
    Case("128 dims, whole tiles", batch=1, heads=1, queries=128, keys=256, head_dim=128),
    Case("one key", batch=1, heads=1, queries=130, keys=1, head_dim=64),
    Case("128 dims, lengths", batch=3, heads=1, queries=140, keys=300, head_dim=128, key_lengths=(0, 64, 299)),
    Case("causal", batch=1, heads=2, queries=300, head_dim=64, is_causal=True, layout="heads_inside"),
    Case("128 dims, causal, more keys", batch=1, heads=1, queries=70, keys=200, head_dim=128, is_causal=True),
    Case("packed", heads=2, sequences=(150, 0, 129, 1), head_dim=64, gate="per_head", bias="per_head"),
    Case("packed, causal", heads=1, sequences=(140, 30), head_dim=128, is_causal=True, gate="shared"),
    Case("own scale and alpha", batch=1, heads=1, queries=33, keys=150, head_dim=64, scale=0.3, quasi_scale=0.25),
    Case("negative scale", batch=1, heads=1, queries=33, keys=150, head_dim=64, scale=-0.2, quasi_scale=-1.5),
    Case("bias, causal", batch=1, heads=2, queries=130, keys=150, head_dim=64, is_causal=True, quasi_bias="per_query"),
    Case("128 dims, bias, negative scale", batch=1, heads=1, queries=70, head_dim=128, scale=-0.2, quasi_bias="one"),
    Case("packed, bias", heads=2, sequences=(150, 9), head_dim=64, gate="shared", quasi_bias="per_query"),
    Case("large scores", batch=1, heads=1, queries=33, keys=150, head_dim=64, score_size=8.0, layout="strided"),
)
MACHINES = [
    dict(seed=seed, late_copies=copies, late_products=products)
    for seed, (copies, products) in enumerate([(False, False), (False, True), (True, False), (True, True)])
]


def forward(inputs, machine, saves=True):
    """The results of the operator's forward, with its kernels on the model."""
    problem = problem_of(*inputs.arguments(), **inputs.options)

    def run_on_model(kernel, programs, arguments, constants, options, device):
        language.run(kernel, programs, arguments, constants, **machine)

    with launch.through(run_on_model), torch.no_grad():
        return gluon_launch.forward(problem, Residuals(saves, saves))


@pytest.mark.parametrize("case", members(CASES, fast=CASES[3:5] + CASES[7:8] + CASES[12:13]))
def test_gluon_case_meets_the_error_rule(case):
    n = CASES.index(case)
    judges = judges_of(make_inputs(case, (torch.bfloat16, torch.float16)[n % 2]))
    for machine in MACHINES[n % 2 :: 2]:
        out, *_ = forward(judges[0], machine)
        compare({"out": out}, judges, f"{case.name}, {machine}")


@pytest.mark.parametrize("case", members((CASES[0], CASES[1], CASES[6]), fast=CASES[6:7]))
def test_saved_tensors_equal_those_of_triton(case):
    """Branch outputs, and each row's maximum and sum in the units of the Triton backend."""
    inputs = make_inputs(case, torch.float16)
    out, softmax_out, quasi_out, row_max, row_sum, query_gate, key_gate = forward(inputs, MACHINES[0])
    t = {name: value.double() for name, value in inputs.tensors.items()}
    ends = torch.tensor(case.sequences or [case.queries]).cumsum(0).tolist()
    # Weights of at most 1 are rounded to 2^-11, and a row sums up to 384 products of weights and values of about 1.
    close = dict(atol=1e-2, rtol=2e-3)
    for first, stop in zip([0, *ends], ends):

        def rows_of(x, first=first, stop=stop):
            return x[first:stop].transpose(0, 1).double() if case.sequences else x.double()

        q, k, v, cq, ck = (rows_of(t[name]) for name in ("query", "key", "value", "context_query", "context_key"))
        scores, context_scores = (case.head_dim**-0.5 * x @ y.mT for x, y in ((q, k), (cq, ck)))
        torch.testing.assert_close(rows_of(softmax_out), scores.softmax(-1) @ v, **close)
        torch.testing.assert_close(rows_of(quasi_out), context_scores.sigmoid() @ v, **close)
        found = rows_of(row_max) + rows_of(row_sum).log2()
        torch.testing.assert_close(found * math.log(2), scores.logsumexp(-1), atol=1e-4, rtol=1e-4)
    assert [gate is not None for gate in (query_gate, key_gate)] == [case.gate != "lambda"] * 2
    saved_nothing = forward(inputs, MACHINES[0], saves=False)
    assert torch.equal(saved_nothing[0], out)
    assert saved_nothing[1] is None


@pytest.mark.parametrize("offset", [0, 1])
def test_strides_of_copied_query_equal_the_fakes(offset):
    """Misaligned rows are copied for the kernel; the output keeps the layout of the caller's query."""
    inputs = make_inputs(Case("strides", batch=2, heads=3, queries=5, keys=9, head_dim=64), torch.float16)
    memory = torch.zeros(2 * 5 * 3 * 64 + offset, dtype=torch.float16)[offset:]
    query = memory.view(2, 5, 3, 64).transpose(1, 2)
    query.copy_(inputs.tensors["query"].detach())
    inputs.tensors["query"] = query
    problem = problem_of(*inputs.arguments(), **inputs.options)
    with torch.device("meta"):
        tensors = [
            None if t is None else torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for t in problem.tensors()
        ]
    expected = torch.ops.qacg.gluon_attention(*tensors, **problem.options())[0]
    assert forward(inputs, MACHINES[0])[0].stride() == expected.stride()


@pytest.mark.parametrize("name", members(["key", "context_key", "value"], fast=["value"]))
def test_gluon_does_not_read_keys_beyond_the_length(name):
    case = Case("hidden", batch=1, heads=1, queries=40, keys=200, head_dim=64, key_lengths=(130,))
    inputs = make_inputs(case, torch.float16)
    expected = forward(inputs, MACHINES[3])[0]
    inputs.tensors[name].data[:, :, 130:] = float("nan")
    assert torch.equal(forward(inputs, MACHINES[3])[0], expected)


# Edits of the kernel, each of which is a mistake that the model or the error rule must detect.
FAULTS = {
    "keys are not waited for": ("            mbarrier.wait(there.index(stage), phase)\n", ""),
    "context keys are not waited for": ("            mbarrier.wait(context_there.index(stage), phase)\n", ""),
    "queries are not copied": ("    if tiles_of_keys > 0:  #", "    if tiles_of_keys > 9:  #"),
    "the wrong phase": ("mbarrier.wait(there.index(stage), phase)", "mbarrier.wait(there.index(stage), phase ^ 1)"),
    "a stage is not waited for": ("        mbarrier.wait(free.index(stage), phase)\n", ""),
    "a stage is freed too early": ("arrive(free.index(last), count=1)", "arrive(free.index(stage), count=1)"),
    "no stage is freed": ("            mbarrier.arrive(free.index(last), count=1)\n", ""),
    "two arrivals": ("arrive(free.index(last), count=1)", "arrive(free.index(last), count=2)"),
    "no fence": ("            fence_async_shared()\n            c,", "            c,"),
    "no fence for context keys": ("            fence_async_shared()\n            s,", "            s,"),
    "products are not waited for": ("wait(0, (s_flying, o1_flying, g))", "wait(1, (s_flying, o1_flying, g))"),
    "values of the tile before": ("first_value = first_key - config.block_n", "first_value = first_key"),
    "no tile of zeros": ("tiles_of_keys + 1, 0", "tiles_of_keys, 0"),
    "bias in other units": ("quasi_bias, rows, place) * LOG2E", "quasi_bias, rows, place)"),
    "hidden keys": ('hidden_to(s, float("-inf"),', 'hidden_to(s, 0.0,'),
}  # fmt: skip


@pytest.mark.parametrize("fault", members(FAULTS, fast=list(FAULTS)[::4]))
def test_fault_in_the_kernel_is_detected(fault, tmp_path, monkeypatch):
    source = Path(gluon_forward.__file__).read_text(encoding="utf-8")
    original, edited = FAULTS[fault]
    assert source.count(original) == 1
    path = tmp_path / "faulty.py"
    path.write_text(source.replace(original, edited), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("faulty", path)
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)
    monkeypatch.setattr(gluon_launch, "gluon_forward_kernel", faulty.gluon_forward_kernel)
    sizes = dict(batch=1, heads=1, queries=40, keys=400, head_dim=64, key_lengths=(390,))
    case = Case("faulty", **sizes, quasi_bias="per_query")
    judges = judges_of(make_inputs(case, torch.float16))
    detected = 0
    for machine in MACHINES:
        try:
            compare({"out": forward(judges[0], machine)[0]}, judges, fault)
        except (Fault, AssertionError):
            detected += 1
    assert detected


@pytest.mark.parametrize(
    ("changes", "kernels"),
    [
        (dict(), ["gluon_forward_kernel"]),
        (dict(gate="shared"), ["row_gates_kernel", "gluon_forward_kernel"]),
        (dict(queries=100), ["forward_kernel"]),  # single-tile rows
        (dict(mask="boolean"), ["forward_kernel"]),
        (dict(dropout_p=0.1), ["forward_kernel"]),
        (dict(gate="shared", form="column"), ["key_gates_kernel", "forward_kernel"]),
        (dict(head_dim=48), ["forward_kernel"]),
    ],
    ids=str,
)
def test_call_launches_these_kernels(changes, kernels):
    inputs = make_inputs(Case("launched", **dict(batch=1, queries=200, head_dim=64) | changes), torch.float16)
    launched = []
    with launch.through(lambda kernel, *rest: launched.append(kernel.__name__)):
        problem = problem_of(*inputs.arguments(), **inputs.options)
        gluon_launch.forward(problem, Residuals(False, False))
    assert launched == kernels
