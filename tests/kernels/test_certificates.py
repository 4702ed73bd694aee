"""Certificates: what is kept, where, and which backend "auto" takes by them. No GPU is needed; see faked_gpu.py."""

import dataclasses
import json
import os
import stat
import tempfile
import warnings
from pathlib import Path

import faked_gpu
import pytest
import torch

import qacg_kernels as qk
from qacg_kernels import dispatch, processor
from qacg_kernels.backends import cpu
from qacg_kernels.certificates import policy, standing, store
from qacg_kernels.certificates.certificate import Certificate, Verdict
from qacg_kernels.certificates.environment import environment_of
from qacg_kernels.certificates.family import CallKind, Family, Scope, families_in
from qacg_kernels.certificates.lengths import Timed, by_speed, is_slower, timed_as
from qacg_kernels.certificates.prover import SECONDS_OF_A_CPU, Outcome
from qacg_kernels.certify import certify
from qacg_kernels.functional import problem_of

SCOPE = Scope("bfloat16", 64)
WHAT_IS_LACKING = policy.what_is_lacking  # the fixture `gpu` replaces it
EVEN = {"cuda": 2e-3, "triton": 1e-3, "reference": 9e-3}


@pytest.fixture
def gpu(monkeypatch, tmp_path):
    faked_gpu.install(monkeypatch, tmp_path / "certificates")
    monkeypatch.setattr(dispatch, "_remembered", {})
    yield faked_gpu
    standing.forget()


def certify_with(certificate):
    standing.of(faked_gpu.DEVICE).adopt(certificate)


def proving(monkeypatch, certificate):
    """Replaces the proof by one that comes to `certificate`; returns the tasks it was asked for."""
    tasks = []

    def prove(task, tell):
        tasks.append(task)
        return Outcome(certificate, None)

    monkeypatch.setattr(standing, "prove", prove)
    return tasks


# What is written and read


def test_a_family_is_read_back_as_it_was_written():
    families = families_in(SCOPE, "triton")
    assert [Family.parse(str(f)) for f in families] == families
    assert len(set(families)) == 2 * (3 * 7 - 2)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("triton/forward/bfloat16/64/tiled", "wanted backend/direction"),
        ("triton/forward/bfloat16/x/tiled/plain", "wanted backend/direction"),
        ("triton/sideways/bfloat16/64/tiled/plain", "direction 'sideways'"),
        ("triton/forward/float8/64/tiled/plain", "dtype 'float8'"),
        ("triton/forward/bfloat16/65/tiled/plain", "head_dim 65"),
        ("triton/forward/bfloat16/64/round/plain", "route 'round'"),
        ("triton/forward/bfloat16/64/tiled/sparse", "feature 'sparse'"),
    ],
)
def test_what_is_no_family_is_named(text, word):
    with pytest.raises(ValueError, match=word):
        Family.parse(text)


def test_a_certificate_is_read_back_as_it_was_written():
    failing = families_in(SCOPE, "cuda")[3]
    written = faked_gpu.certificate(SCOPE, EVEN, failing=[failing])
    read = Certificate.parse(written.dump())
    assert read == written
    assert read.verdicts[failing] == Verdict(False, "wrong: out", "a case", 7)


def damaged(change):
    record = json.loads(faked_gpu.certificate(SCOPE, EVEN).dump())
    change(record)
    return json.dumps(record)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "format"),
        (damaged(lambda r: r.update(format=99)), "format"),
        (damaged(lambda r: r.update(environment={"device": 3})), "environment"),
        (damaged(lambda r: r.pop("made")), "made"),
        (damaged(lambda r: r.update(verdicts=[1])), "verdicts"),
        (damaged(lambda r: r["verdicts"].update({"x": {"holds": True}})), "family: got 'x'"),
        (damaged(lambda r: r["verdicts"].update({str(families_in(SCOPE, "cuda")[0]): {"holds": 1}})), "holds"),
        (damaged(lambda r: r["times"].update({"bfloat16/64/99/forward": {}})), "measurement"),
        (damaged(lambda r: r["times"].update({"bfloat16/64/128/forward": {"cuda": -1}})), "seconds"),
    ],
)
def test_a_damaged_certificate_is_refused_by_the_field(text, word):
    with pytest.raises(ValueError, match=word):
        Certificate.parse(text)


# Where it is kept


@pytest.fixture
def own_places(monkeypatch, tmp_path):
    for name in ("QACG_CERTIFICATES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path


def kept():
    certificate = faked_gpu.certificate(SCOPE, EVEN)
    path = store.write(certificate)
    assert store.read(faked_gpu.ENVIRONMENT) == ((certificate, path) if path else None)
    return path


def test_the_cache_of_the_user_is_preferred_and_a_variable_decides(own_places, monkeypatch):
    assert kept().is_relative_to(own_places / "home" / ".cache" / "qacg_kernels")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_places / "xdg"))
    assert kept().is_relative_to(own_places / "xdg" / "qacg_kernels")
    monkeypatch.setenv("QACG_CERTIFICATES", str(own_places / "mine"))
    assert kept().parent == own_places / "mine"


def test_without_a_home_it_lies_in_a_temporary_folder_of_the_user_alone(own_places, monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    path = kept()
    assert path.is_relative_to(own_places / "temporary")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    # One that others can write into is not believed, and not written to.
    path.parent.chmod(0o777)
    assert store.read(faked_gpu.ENVIRONMENT) is None
    assert store.write(faked_gpu.certificate(SCOPE)) is None


def test_a_folder_that_cannot_be_written_is_passed_by(own_places, monkeypatch):
    (own_places / "home").mkdir()
    (own_places / "home" / ".cache").write_text("a file where the folder would be")
    assert kept().is_relative_to(own_places / "temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(own_places / "home" / ".cache"))
    assert kept() is None


def test_a_full_disk_leaves_nothing_behind(own_places, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert store.write(faked_gpu.certificate(SCOPE)) is None
    assert [p for p in own_places.rglob("*") if p.is_file()] == []


def test_a_foreign_or_damaged_file_is_as_good_as_none(own_places):
    path = kept()
    other = dataclasses.replace(faked_gpu.certificate(SCOPE), environment={"device": "Another GPU"})
    for text in (other.dump(), "{", path.read_text()[:200], ""):
        path.write_text(text)
        assert store.read(faked_gpu.ENVIRONMENT) is None
    assert store.write(faked_gpu.certificate(SCOPE)) == path
    assert store.read(faked_gpu.ENVIRONMENT)[0].covers(SCOPE, ["cuda", "triton"])


def test_what_another_process_proved_meanwhile_stays(own_places):
    store.write(faked_gpu.certificate(SCOPE))
    store.write(faked_gpu.certificate(Scope("float32", 128)))
    both, _ = store.read(faked_gpu.ENVIRONMENT)
    assert both.covers(SCOPE, ["cuda", "triton"]) and both.covers(Scope("float32", 128), ["cuda", "triton"])


def test_permissions_follow_the_umask(own_places):
    before = os.umask(0o022)
    try:
        assert stat.S_IMODE(kept().stat().st_mode) == 0o644
    finally:
        os.umask(before)


# Which families a call has, and by which measurement it is chosen

PLAIN = CallKind(torch.bfloat16, 64, False, 100, False, False, False, False, "plain", False)


@pytest.mark.parametrize(
    ("change", "routes", "features", "head_dim"),
    [
        (dict(), {"whole_row"}, {"plain"}, 64),
        (dict(longest_row=129), {"tiled"}, {"plain"}, 64),
        (dict(longest_row=None), {"whole_row", "tiled"}, {"plain"}, 64),
        (dict(packed=True, gate="row_gate"), {"packed"}, {"plain", "row_gate"}, 64),
        (dict(head_dim=65, mask=True, dropout=True), {"whole_row"}, {"plain", "mask", "dropout"}, 128),
        (
            dict(head_dim=1, gate="column_gate", causal=True, lengths=True),
            {"whole_row"},
            {"plain", "column_gate", "causal", "lengths"},
            64,
        ),
    ],
)
def test_a_call_has_one_family_for_each_pass_route_and_feature(change, routes, features, head_dim):
    for differentiable in (False, True):
        families = PLAIN._replace(**change, differentiable=differentiable).families("cuda")
        assert {f.route for f in families} == routes and {f.feature for f in families} == features
        assert {f.direction for f in families} == ({"forward", "backward"} if differentiable else {"forward"})
        assert {f.head_dim for f in families} == {head_dim} and len(set(families)) == len(families)
        assert set(families) <= set(families_in(Scope("bfloat16", head_dim), "cuda"))


def test_calls_that_no_family_serves_have_none():
    assert PLAIN._replace(dtype=torch.float64).families("cuda") == []
    assert PLAIN._replace(head_dim=257).families("cuda") == []
    assert timed_as(PLAIN._replace(head_dim=257)) is None


@pytest.mark.parametrize(
    ("change", "length"),
    [
        (dict(longest_row=1), "128"),
        (dict(longest_row=250), "128"),
        (dict(longest_row=260), "512"),
        (dict(longest_row=5000), "8192"),
        (dict(longest_row=10**6), "8192"),
        (dict(longest_row=0), "128"),
        (dict(packed=True), "packed"),
        (dict(packed=True, longest_row=600), "512"),
    ],
)
def test_a_call_is_chosen_by_the_nearest_length(change, length):
    assert timed_as(PLAIN._replace(**change)) == Timed("bfloat16", 64, length, "forward")
    assert timed_as(PLAIN._replace(**change, differentiable=True)).mode == "forward+backward"


def test_near_ties_keep_the_fixed_order():
    order = ("cuda", "triton", "reference")
    assert by_speed({"triton": 1.0, "cuda": 1.04, "reference": 5.0}, order) == ["cuda", "triton", "reference"]
    assert by_speed({"triton": 1.0, "cuda": 1.06, "reference": 1.0}, order) == ["triton", "reference", "cuda"]
    assert by_speed({"triton": 1.0}, order) == ["triton"]
    assert not is_slower({"cuda": 1.04, "reference": 1.0}, "cuda", "reference")
    assert is_slower({"cuda": 1.06, "reference": 1.0}, "cuda", "reference")
    assert not is_slower({"cuda": 2.0}, "cuda", "reference")


# What auto takes, as explain tells it on a faked GPU


def test_an_uncertified_gpu_gets_the_reference_and_is_told_what_to_do(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE))
    told = qk.explain(*gpu.call())
    assert told.selected == "reference" and set(told.passed_by) == {"cuda", "triton"}
    assert "python -m qacg_kernels.certify" in told.passed_by["triton"]
    assert told.certificate == "no certificate" and tasks == []  # explain proves nothing


def test_a_certified_gpu_gets_the_fastest(gpu):
    certify_with(faked_gpu.certificate(SCOPE, EVEN))
    told = qk.explain(*gpu.call())
    assert told.selected == "triton" and "triton is preferred" in told.passed_by["cuda"]
    assert "cuda: 38 of 38 families hold" in told.certificate
    certify_with(faked_gpu.certificate(SCOPE, EVEN | {"triton": 3e-3}))
    assert qk.explain(*gpu.call()).selected == "cuda"


def test_a_failed_family_costs_its_calls_alone(gpu):
    failing = Family("triton", "backward", *SCOPE, "whole_row", "plain")
    certify_with(faked_gpu.certificate(SCOPE, EVEN, failing=[failing]))
    assert qk.explain(*gpu.call()).selected == "triton"
    told = qk.explain(*gpu.call(training=True))
    assert told.selected == "cuda"
    assert told.passed_by["triton"] == (
        f"failed its proof here, 2026-01-02T03:04:05+00:00: {failing}: wrong: out (case 'a case', seed 7)"
    )
    assert qk.explain(*gpu.call(length=129, training=True)).selected == "triton"
    with torch.no_grad():
        assert qk.explain(*gpu.call(training=True)).selected == "triton"


def test_a_failed_family_of_both_leaves_the_reference(gpu):
    failing = [Family(name, "forward", *SCOPE, "whole_row", "plain") for name in ("cuda", "triton")]
    certify_with(faked_gpu.certificate(SCOPE, EVEN, failing=failing))
    assert qk.explain(*gpu.call()).selected == "reference"


def test_what_is_slower_than_the_reference_is_not_taken(gpu):
    certify_with(faked_gpu.certificate(SCOPE, {"cuda": 9e-3, "triton": 8e-3, "reference": 1e-3}))
    told = qk.explain(*gpu.call())
    assert told.selected == "reference"
    assert "slower than the reference for calls of this length: 8 ms against 1" in told.passed_by["triton"]


def test_what_was_not_timed_is_taken_in_the_fixed_order(gpu):
    certify_with(faked_gpu.certificate(SCOPE))
    assert qk.explain(*gpu.call()).selected == "cuda"


def test_a_backend_by_name_needs_no_certificate(gpu):
    assert qk.explain(*gpu.call(), backend="triton").selected == "triton"


# When a proof begins


def selected(gpu, **call):
    return dispatch.select(problem_of(*gpu.call(**call)), "auto", call.get("training", False)).NAME


def test_the_first_call_proves_and_later_ones_read(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    assert selected(gpu) == "triton" and selected(gpu, length=40) == "triton" and len(tasks) == 1
    assert tasks[0].scopes == (SCOPE,) and len(tasks[0].families) == 2 * 38
    standing.forget()  # another process
    assert selected(gpu) == "triton" and len(tasks) == 1
    assert "kept in" in qk.explain(*gpu.call()).certificate


def test_a_run_can_be_recorded_with_what_was_chosen(gpu):
    assert set(dispatch.chosen_so_far()) == {"cpu"}
    certify_with(faked_gpu.certificate(SCOPE, EVEN))
    selected(gpu)
    chosen = dispatch.chosen_so_far()["cuda:0"]
    assert chosen["backends"] == ["triton"] and "38 of 38" in chosen["certificate"]


def test_another_type_is_proven_when_it_is_first_used(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    selected(gpu)
    selected(gpu, dtype=torch.float32)
    assert [task.scopes for task in tasks] == [(SCOPE,), (Scope("float32", 64),)]


def test_a_proof_that_fails_to_end_is_tried_once_in_a_process_and_goes_on_in_the_next(gpu, monkeypatch):
    whole = faked_gpu.certificate(SCOPE)
    half = dataclasses.replace(whole, verdicts=dict(list(whole.verdicts.items())[:40]))
    tasks = proving(monkeypatch, half)
    assert selected(gpu) == "cuda" and selected(gpu, training=True) == "cuda" and len(tasks) == 1
    standing.forget()
    selected(gpu)
    assert len(tasks) == 2 and len(tasks[1].families) == 2 * 38 - 40


@pytest.mark.parametrize(
    ("value", "word"), [("cached", "QACG_CERTIFY=cached, and there is no certificate"), ("off", "QACG_CERTIFY=off")]
)
def test_cached_and_off_never_prove(gpu, monkeypatch, value, word):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    monkeypatch.setenv("QACG_CERTIFY", value)
    assert selected(gpu) == "reference" and tasks == []
    assert word in qk.explain(*gpu.call()).passed_by["triton"]


def test_cached_uses_what_is_there_and_off_does_not(gpu, monkeypatch):
    store.write(faked_gpu.certificate(SCOPE, EVEN))
    monkeypatch.setenv("QACG_CERTIFY", "cached")
    assert selected(gpu) == "triton"
    monkeypatch.setenv("QACG_CERTIFY", "off")
    standing.forget()
    assert selected(gpu) == "reference"


def test_require_raises_where_auto_would_fall_back(gpu, monkeypatch):
    monkeypatch.setenv("QACG_CERTIFY", "require")
    failing = [Family(name, "forward", *SCOPE, "whole_row", "plain") for name in ("cuda", "triton")]
    proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN, failing=failing))
    with pytest.raises(RuntimeError, match=r"QACG_CERTIFY=require.*cuda: failed.*triton: failed"):
        selected(gpu)
    assert selected(gpu, length=300) == "triton"
    told = qk.explain(*gpu.call())
    assert told.selected == "reference" and qk.explain(*gpu.call(), backend="cuda").selected == "cuda"


def test_ranks_agree_once_on_each_scope(gpu, monkeypatch):
    other, asked = Scope("float32", 64), []

    def agreed(own, scope):
        asked.append(scope)
        return own

    monkeypatch.setattr(standing.agreement, "is_wanted", lambda: True)
    monkeypatch.setattr(standing.agreement, "agreed", agreed)
    certify_with(gpu.certificate(SCOPE, EVEN).merged(gpu.certificate(other, EVEN)))
    for _ in range(3):
        assert selected(gpu) == selected(gpu, dtype=torch.float32) == "triton"
    assert asked == [SCOPE, other]


def test_ranks_that_cannot_agree_go_by_their_own_and_say_so(gpu, monkeypatch, capsys):
    def gone(own, scope):
        raise RuntimeError("connection reset by peer")

    monkeypatch.setattr(standing.agreement, "is_wanted", lambda: True)
    monkeypatch.setattr(standing.agreement, "agreed", gone)
    certify_with(gpu.certificate(SCOPE, EVEN))
    assert selected(gpu) == selected(gpu, length=20) == "triton"
    assert capsys.readouterr().err.count("connection reset by peer") == 1


def test_an_unknown_value_is_named(gpu, monkeypatch):
    monkeypatch.setenv("QACG_CERTIFY", "sometimes")
    with pytest.raises(ValueError, match="QACG_CERTIFY: got 'sometimes', wanted one of 'first-use'"):
        selected(gpu)


def test_no_proof_begins_while_a_graph_is_captured_and_the_next_call_makes_up_for_it(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert selected(gpu) == "reference" and tasks == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert selected(gpu) == "triton" and len(tasks) == 1


def test_no_proof_begins_without_memory_for_it(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    monkeypatch.setattr(policy, "what_is_lacking", WHAT_IS_LACKING)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 30, 8 << 30))
    assert selected(gpu) == "reference" and tasks == []
    assert "1.0 GiB of the GPU's memory are free" in qk.explain(*gpu.call()).passed_by["triton"]


def test_a_trace_takes_what_is_known_for_every_length_and_proves_nothing(gpu, monkeypatch):
    tasks = proving(monkeypatch, faked_gpu.certificate(SCOPE, EVEN))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert selected(gpu) == "reference" and tasks == []
    certify_with(faked_gpu.certificate(SCOPE, EVEN))
    assert selected(gpu) == "cuda"  # no length, hence no time: the fixed order
    failing = [Family("cuda", "forward", *SCOPE, "tiled", "plain")]
    certify_with(faked_gpu.certificate(SCOPE, EVEN, failing=failing))
    assert selected(gpu, length=20) == "triton"  # another length would need the family that failed


# A CPU whose kernels need a certificate


@pytest.fixture
def arm(monkeypatch, tmp_path):
    if cpu.missing():
        pytest.skip("the compiled CPU library is not there")
    monkeypatch.setattr(cpu, "NEEDS_CERTIFICATE", True)
    monkeypatch.setattr(dispatch, "_remembered", {})
    monkeypatch.setenv("QACG_CERTIFICATES", str(tmp_path))
    monkeypatch.delenv("QACG_CERTIFY", raising=False)
    standing.forget()
    x = torch.randn(2, 3, 20, 16)
    yield x, x, x, x, x, torch.rand(2, 3, 20)
    standing.forget()


def of_the_cpu(scope, failing=()):
    certificate = faked_gpu.certificate(scope, names=("cpu",), failing=failing)
    return dataclasses.replace(certificate, environment=environment_of(torch.device("cpu")))


def test_such_a_cpu_is_proven_at_its_first_call(arm, monkeypatch):
    scope = Scope("float32", 64)
    tasks = proving(monkeypatch, of_the_cpu(scope))
    assert qk.explain(*arm).selected == "reference" and qk.explain(*arm).certificate == "no certificate"
    for _ in range(2):
        assert torch.equal(qk.quasi_attention(*arm), qk.quasi_attention(*arm, backend="cpu"))
    assert [task.device.type for task in tasks] == ["cpu"] and tasks[0].seconds == SECONDS_OF_A_CPU
    assert tasks[0].scopes == (scope,) and {f.backend for f in tasks[0].families} == {"cpu"}
    assert dispatch.chosen_so_far()["cpu"]["backends"] == ["cpu"]
    standing.forget()  # another process
    explanation = qk.explain(*arm)
    assert explanation.selected == "cpu" and "cpu: 38 of 38 families hold" in explanation.certificate


def test_on_such_a_cpu_a_failed_family_leaves_its_calls_to_the_reference(arm, monkeypatch):
    scope = Scope("float32", 64)
    proving(monkeypatch, of_the_cpu(scope, failing=[Family("cpu", "forward", *scope, "whole_row", "causal")]))
    qk.quasi_attention(*arm)
    assert qk.explain(*arm).selected == "cpu"
    explanation = qk.explain(*arm, is_causal=True)
    assert explanation.selected == "reference" and "failed its proof here" in explanation.passed_by["cpu"]


def test_a_certificate_of_a_cpu_is_for_its_processor_its_library_and_what_is_chosen_of_it(monkeypatch):
    here = environment_of(torch.device("cpu"))
    assert here["device"] == processor.model() and "float32 on" in here["capability"]
    monkeypatch.setattr(processor, "model", lambda: "ARM implementer 0x41 part 0xd0c variant 0x3 revision 1")
    assert environment_of(torch.device("cpu")) != here
    assert here["library"] != environment_of(torch.device("meta"))["library"]


def test_a_cpu_is_certified_by_its_name_where_its_kernels_need_it(arm, monkeypatch):
    tasks = proving(monkeypatch, of_the_cpu(Scope("float32", 64)))
    assert certify("cpu", seconds=7, tell=lambda line: None).verdicts
    assert tasks[0].seconds == 7 and tasks[0].backends == ("cpu",)
    monkeypatch.setattr(cpu, "NEEDS_CERTIFICATE", False)
    with pytest.raises(ValueError, match="got 'cpu', wanted a CUDA device"):
        certify("cpu")


@pytest.mark.compiles
@pytest.mark.parametrize("training", [False, True])
def test_a_compiled_call_goes_by_the_certificate(training, monkeypatch, tmp_path):
    """On the CPU, whose kernels are made to need one; a whole graph, and what is in it."""
    monkeypatch.setattr(cpu, "NEEDS_CERTIFICATE", True)
    monkeypatch.setenv("QACG_CERTIFY", "cached")
    monkeypatch.setenv("QACG_CERTIFICATES", str(tmp_path))
    if cpu.missing():
        pytest.skip("the compiled CPU library is not there")
    here, graphs = torch.device("cpu"), []

    def keep(graph, inputs):
        graphs.append(graph.code)
        return graph.forward

    x = torch.randn(2, 3, 20, 16, requires_grad=training)
    gate = torch.rand(2, 3, 20)
    try:
        for certificate, wanted in (
            (None, "reference_attention"),
            (faked_gpu.certificate(Scope("float32", 64), names=("cpu",)), "cpu_attention"),
        ):
            standing.of(here).adopt(certificate)
            torch._dynamo.reset()
            compiled = torch.compile(qk.quasi_attention, backend=keep, fullgraph=True)
            assert torch.equal(compiled(x, x, x, x, x, gate), qk.quasi_attention(x, x, x, x, x, gate))
            assert f"qacg.{wanted}" in graphs[-1]
    finally:
        standing.forget()


# Nobody is slow without knowing


@pytest.fixture
def untold(monkeypatch):
    monkeypatch.setattr(policy, "_told", False)


def test_the_reference_is_told_once(gpu, untold, monkeypatch):
    monkeypatch.setenv("QACG_CERTIFY", "off")
    with pytest.warns(UserWarning, match=r"stores maps of size L x S \(cuda: QACG_CERTIFY=off"):
        selected(gpu)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selected(gpu, length=7)


def test_a_trace_tells_too(gpu, untold, monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.warns(UserWarning, match=r"stores maps of size L x S \(cuda: not proven on this device yet"):
        selected(gpu)


def test_the_warning_points_at_the_users_line(untold):
    x = torch.randn(1, 2, 5, 300)
    with pytest.warns(UserWarning, match="runs through the PyTorch reference") as caught:
        qk.quasi_attention(x, x, x, x, x, x[..., 0])
    assert caught[0].filename == __file__


def test_quiet_silences_it(gpu, untold, monkeypatch):
    monkeypatch.setenv("QACG_CERTIFY", "off")
    monkeypatch.setenv("QACG_QUIET", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        selected(gpu)


def test_on_the_cpu_a_missing_library_or_an_unsupported_argument_is_told(untold, monkeypatch):
    x = torch.randn(1, 2, 5, 300)
    with pytest.warns(UserWarning, match=r"cpu: head size is 300; it takes 1 to 256\)"):
        qk.quasi_attention(x, x, x, x, x, x[..., 0])
    monkeypatch.setattr(policy, "_told", False)
    monkeypatch.setattr(dispatch.backend_of("cpu"), "missing", lambda: ["no compiler was found; install one"])
    with pytest.warns(UserWarning, match="cpu: no compiler was found; install one"):
        qk.quasi_attention(*(x[..., :16],) * 5, x[..., 0])


def test_a_backend_by_name_is_nobodys_surprise(untold):
    x = torch.randn(1, 2, 5, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.quasi_attention(x, x, x, x, x, x[..., 0], backend="reference")
