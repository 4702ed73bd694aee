"""The proof itself: what it notices, what survives it, and that it runs the kernels that users' calls run."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.certificates.family import FEATURES, PASSES, ROUTES, Family, Scope, families_in
from qacg_kernels.certificates.lengths import CLASSES, Timed
from qacg_kernels.certificates.prover import Task, prove
from qacg_kernels.certificates.workers import Worker, WorkerGone
from qacg_kernels.certify.__main__ import main
from qacg_kernels.proving import faults, judging, probes, timing

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
SCOPE = Scope("float32", 64)
VICTIM = Family("cpu", "backward", *SCOPE, "whole_row", "row_gate")
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
has_cpu = pytest.mark.skipif("cpu" not in qk.available_backends(), reason="the compiled CPU library is not there")


def judged(family, fault=None):
    """What judging a family in this process gives: the cases, and what is wrong. The fault is one of VICTIM's."""
    begun = []
    hook = faults.Injection(fault, str(VICTIM)).hook(family)
    try:
        judging.judge_family(family, CPU, lambda case: begun.append(case.name), small=True, after_kernel=hook)
    except judging.Fault as error:
        return begun, str(error)
    return begun, None


@has_cpu
@pytest.mark.sampled(3)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("direction", PASSES)
def test_kernels_that_are_right_hold(direction, route, feature):
    family = Family("cpu", direction, *SCOPE, route, feature)
    if family not in families_in(SCOPE, "cpu"):
        pytest.skip("packed sequences have neither masks nor lengths")
    begun, wrong = judged(family)
    assert wrong is None and len(begun) == len(probes.cases(family, small=True))


JUDGED_IN_THE_INTERPRETER = """
import torch
from qacg_kernels.certificates.family import Family
from qacg_kernels.proving import judging
family = Family("triton", "backward", "float16", 64, "whole_row", "plain")
judging.judge_family(family, torch.device("cpu"), lambda case: print(case.name), small=True)
"""


@has_triton
def test_kernels_in_tritons_interpreter_hold_too():
    """Its launcher allocates by itself and keeps plans: what it does so stands between guard zones as well."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", JUDGED_IN_THE_INTERPRETER]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("whole_row, plain")


@has_cpu
@pytest.mark.parametrize(
    ("fault", "sign"),
    [
        ("wrong-value", "wrong: "),
        ("nan", "not a number: "),
        ("out-of-bounds", "out of bounds: memory beside an output was written"),
        ("nondeterministic", "not deterministic: the same call gave other bits the second time"),
    ],
)
def test_a_fault_of_a_kernel_is_noticed_for_what_it_is(fault, sign):
    begun, wrong = judged(VICTIM, fault)
    assert wrong.startswith(sign) and len(begun) == 1
    assert judged(VICTIM._replace(feature="dropout"), fault)[1] is None


@has_cpu
def test_nan_that_spreads_is_noticed(monkeypatch):
    attend = judging.through_backend

    def leaky(name):
        def run(inputs, tensors):
            out, lam = attend(name)(inputs, tensors)
            return out + 0 * out[0].detach().sum(), lam  # the first sequence reaches the others

        return run

    monkeypatch.setattr(judging, "through_backend", leaky)
    assert judged(Family("cpu", "forward", *SCOPE, "whole_row", "plain"))[1].startswith("spreading: ")


@has_cpu
def test_a_gradient_that_is_wrong_only_when_expanded_is_noticed(monkeypatch):
    attend = judging.through_backend

    class Careless(torch.autograd.Function):
        @staticmethod
        def forward(ctx, out):
            return out.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * 2 if 0 in grad.stride() else grad

    def run(name):
        return lambda inputs, tensors: (Careless.apply(attend(name)(inputs, tensors)[0]), None)

    monkeypatch.setattr(judging, "through_backend", run)
    assert judged(VICTIM._replace(feature="plain"))[1].startswith("wrong: grad ")


def test_all_cases_of_a_scope_have_names_and_seeds_of_their_own():
    for small, backend in ((False, "triton"), (True, "triton"), (False, "cpu")):
        families = families_in(Scope("float16", 128), backend)
        drawn = [(f.route, f.feature, probes.seed_of(c)) for f in families for c in probes.cases(f, small)]
        assert len(set(drawn)) * 2 == len(drawn)  # the forward's are the backward's


@pytest.mark.parametrize("length", CLASSES)
def test_every_class_is_timed_with_the_reference_beside(length, monkeypatch):
    monkeypatch.setattr(timing, "_SHAPES", dict.fromkeys(CLASSES, (2, 1)))
    monkeypatch.setattr(timing, "_SECONDS", 0.0)
    timed = Timed("float32", 64, length if length in ("packed", "128") else "128", "forward+backward")
    times = timing.seconds_of(timed, ("cpu", "reference"), CPU)
    assert set(times) == {"cpu", "reference"} & set(qk.available_backends()) and all(s > 0 for s in times.values())


# Processes


def task(families, **changes):
    fixed = dict(workers=1, silence=60, greeting=(("rehearsal", "1"),))
    return Task(CPU, ("cpu",), (SCOPE,), tuple(families), **fixed, **changes)


@has_cpu
@pytest.mark.matrix
def test_a_proof_in_processes_of_its_own_says_what_judging_here_says():
    families = [Family("cpu", "forward", *SCOPE, "whole_row", feature) for feature in ("plain", "causal")]
    outcome = prove(task(families, seconds=300))
    assert outcome.unfinished is None
    assert {f: v.holds for f, v in outcome.certificate.verdicts.items()} == dict.fromkeys(families, True)
    assert Timed(*SCOPE, "128", "forward") in outcome.certificate.times


@has_cpu
@pytest.mark.matrix
@pytest.mark.parametrize("scope", [Scope("float32", 64), Scope("bfloat16", 64), Scope("float16", 128)], ids=str)
def test_the_cpus_own_kernels_are_proven_as_at_a_first_use(scope):
    families = tuple(families_in(scope, "cpu"))
    outcome = prove(Task(CPU, ("cpu",), (scope,), families, timed=False, workers=1, seconds=120))
    assert outcome.unfinished is None and set(outcome.certificate.verdicts) == set(families)
    assert [str(v) for v in outcome.certificate.verdicts.values() if not v.holds] == []
    assert outcome.certificate.times == {}


def test_what_the_time_does_not_reach_is_told_and_not_judged():
    families = families_in(SCOPE, "cpu")
    outcome = prove(task(families, seconds=0.5))
    missing = len(families) - len(outcome.certificate.verdicts)
    assert missing and outcome.unfinished.startswith(f"{missing} of {len(families)} families were not judged")


@pytest.mark.matrix
def test_a_process_that_cannot_begin_says_nothing_of_the_kernels():
    families = [Family("cpu", "forward", *SCOPE, "whole_row", "plain")]
    # As on a GPU in exclusive mode: there is no context for a second process.
    outcome = prove(dataclasses.replace(task(families, seconds=300), greeting=(("device", "cuda:99"),)))
    assert outcome.certificate.verdicts == {}
    assert "families were not judged" in outcome.unfinished and "exit status" in outcome.unfinished


def test_a_worker_ends_with_whoever_started_it():
    """The parent is killed; the worker, whose parent then is another, sees that nobody can ask any more."""
    script = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from qacg_kernels.certificates.workers import Worker
worker = Worker({{"device": "cpu"}}, silence=60)
list(worker.answers(None, 60))
print(worker._process.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    os.kill(pid, 0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    end = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0]:
        assert time.monotonic() < end, "the worker lives on"
        time.sleep(0.1)


def test_a_silent_worker_is_ended_with_all_that_it_started():
    with Worker({"device": "cpu"}, silence=0.01) as worker:
        with pytest.raises(WorkerGone, match="hung: no sign of life"):
            list(worker.answers(None, 60))
        assert worker._process.poll() == -signal.SIGKILL


# The whole of it, as a user types it


def certify(*arguments):
    environment = os.environ | {"QACG_QUIET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "qacg_kernels.certify", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


@has_triton
@pytest.mark.matrix
def test_the_rehearsal_without_a_fault_ends_with_the_fused_kernels():
    done = certify("--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "taken by reference" not in done.stdout and done.stdout.endswith("the machinery held\n")


# What `--inject` does, for one fault after the other: the import of torch and Triton is a third of each.
REHEARSALS = """
import json, sys
from qacg_kernels.proving.rehearsal import rehearse
for fault in sys.argv[1:]:
    lines = []
    print(json.dumps([fault, [rehearse(fault, lines.append), lines]]), flush=True)
"""


@pytest.fixture(scope="module")
def rehearsals():
    """By fault, whether the machinery held, and what was said."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "QACG_QUIET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", REHEARSALS, *faults.FAULTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@has_triton
@pytest.mark.matrix
@pytest.mark.parametrize("fault", faults.FAULTS)
def test_whatever_goes_wrong_the_users_call_is_right(fault, rehearsals):
    held, lines = rehearsals[fault]
    assert held and lines[-1] == "the machinery held", lines
    assert not [line for line in lines if "WRONG" in line]


@has_triton
@pytest.mark.matrix
def test_the_rehearsal_with_a_fault_as_a_user_types_it():
    done = certify("--rehearse", "--inject", faults.IN_THE_KERNEL[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong: out" in done.stdout and done.stdout.endswith("the machinery held\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_command_says_so(capsys):
    assert main([]) == 2
    assert capsys.readouterr().err.startswith("certify: torch finds no CUDA device")
    assert main(["--device", "cpu"]) == 2
    assert capsys.readouterr().err.startswith("certify: device: got 'cpu', wanted a CUDA device")
    with pytest.raises(SystemExit):
        main(["--inject", "hang"])
    assert "--inject: wanted --rehearse beside it" in capsys.readouterr().err


# Ranks

RANK = """
import sys
sys.path[:0] = [{root!r}, {tests!r}]
import torch
import faked_gpu
from qacg_kernels.certificates import standing
from qacg_kernels.certificates.family import CallKind, Scope

rank, store = int(sys.argv[1]), sys.argv[2]
faster = ("cuda", "triton")[rank]
times = {{"cuda": 2.0, "triton": 2.0, "reference": 9.0}} | {{faster: 1.0}}
here = standing.of(faked_gpu.DEVICE)
here.adopt(faked_gpu.certificate(Scope("bfloat16", 64), times))
kind = CallKind(torch.bfloat16, 64, False, 100, False, False, False, False, "plain", False)
before = here.choose(kind, ("cuda", "triton")).name
torch.distributed.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
after = here.choose(kind, ("cuda", "triton")).name
torch.distributed.barrier()
print(before, after, flush=True)
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package")
@pytest.mark.matrix
def test_all_ranks_choose_alike(tmp_path):
    script = RANK.format(root=str(ROOT), tests=str(ROOT / "tests/support"))
    command = [sys.executable, "-c", script]
    commands = [[*command, str(rank), str(tmp_path / "store")] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    before, after = zip(*(rank.communicate(timeout=300)[0].split() for rank in ranks))
    assert before == ("cuda", "triton")  # each by its own times
    assert after[0] == after[1]


# What is proven is what runs

FORMS = """
import json, sys
sys.path.insert(0, {tests!r})
import torch
from qacg_kernels.backends import triton as backend
from qacg_kernels.backends.triton import configurations, launch
from qacg_kernels.certificates.family import Scope, families_in
from qacg_kernels.proving import probes
from qacg_kernels.testing import evaluate, through_backend
from qacg_kernels.testing_inputs import Case, make_inputs

backend.missing, backend.unsupported = list, lambda problem: []
launched = set()

def note(kernel, programs, arguments, constants, options, device):
    call = arguments[0]
    absent = tuple(member is None for member in call)
    launched.add((kernel.fn.__name__, str(sorted(constants.items(), key=str)), str(options), absent))

def forms(case, training):
    inputs = make_inputs(case, torch.bfloat16)
    launched.clear()
    if training:
        evaluate(inputs, through_backend("triton"))
    else:
        with torch.no_grad():
            through_backend("triton")(inputs, inputs.tensors)
    return set(launched)

gated = dict(gate="shared", bias="shared")
calls = {{
    "sentences": (Case("", queries=128, head_dim=64, key_lengths=(128, 40), **gated), "lengths"),
    "short sentences": (Case("", queries=31, head_dim=64, key_lengths=(31, 4), **gated), "lengths"),
    "training": (Case("", queries=128, head_dim=64, dropout_p=0.1, **gated), "dropout"),
    "packed": (Case("", sequences=(40, 128, 7), head_dim=64, **gated), "row_gate"),
    "packed, dropout": (Case("", sequences=(17, 60), head_dim=64, dropout_p=0.1, **gated), "dropout"),
    "long": (Case("", queries=1024, batch=1, head_dim=64, **gated), "row_gate"),
    "long, uneven": (Case("", queries=1000, batch=1, head_dim=64, **gated), "row_gate"),
    "long, causal": (Case("", queries=1024, batch=1, head_dim=64, is_causal=True, **gated), "causal"),
    "mask": (Case("", queries=100, head_dim=64, mask="boolean", **gated), "mask"),
    "mask, whole tile": (Case("", queries=64, head_dim=64, mask="boolean", **gated), "mask"),
    "lambda": (Case("", queries=12, head_dim=64), "plain"),
}}
unproven = {{}}
with configurations.trial(configurations.shipped("sm_90")), launch.through(note):
    proven = {{}}
    for name, (case, feature) in calls.items():
        route = "packed" if case.sequences else "whole_row" if case.queries <= 128 else "tiled"
        for training in (False, True):
            direction = "backward" if training else "forward"
            key = direction, route, feature
            if key not in proven:
                scope = Scope("bfloat16", 64)
                found = [f for f in families_in(scope, "triton") if (f.direction, f.route, f.feature) == key]
                proven[key] = set().union(*(forms(c, training) for f in found for c in probes.cases(f)))
            missing = forms(case, training) - proven[key]
            if missing:
                unproven[f"{{name}}, {{direction}}"] = sorted(map(str, missing))
print(json.dumps([unproven, sum(map(len, proven.values()))]))
"""


@has_triton
@pytest.mark.matrix
def test_the_probes_run_the_very_forms_of_the_kernels_that_calls_run():
    """By the launcher's own description of each launch: kernel, tiles, constants, warps and stages, absent members."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "OMP_NUM_THREADS": "1"}
    script = FORMS.format(tests=str(ROOT / "tests/support"))
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    unproven, count = json.loads(done.stdout)
    assert unproven == {} and count > 40
