"""The Gluon backend without a Hopper GPU: where it is, what it takes, which forward a call gets, and that "auto" uses
it only where it was measured to be the fastest. Its kernel is in test_gluon_forward.py and test_gluon_compiled.py.
"""

from types import SimpleNamespace

import faked_gpu
import pytest
import torch

import qacg_kernels as qk
from qacg_kernels.backends import triton
from qacg_kernels.backends.protocol import outside_limits
from qacg_kernels.backends.triton import gluon
from qacg_kernels.backends.triton.tile_tables import Choice
from qacg_kernels.call.validation import dense_problem
from qacg_kernels.testing.inputs import Case, make_inputs


@pytest.fixture
def machine(monkeypatch):
    """One with Triton and a GPU of some capability."""

    def make(capability, version=(3, 6)):
        monkeypatch.setattr(triton, "missing", list)
        monkeypatch.setattr(triton, "interpreted", lambda: False)
        monkeypatch.setattr(gluon, "_TRITON", version)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        forget()

    def forget():
        for cached in (gluon._hopper_is_there, gluon._unsupported_capability):
            cached.cache_clear()

    yield make
    forget()


def reasons(dtype=torch.bfloat16, head_dim=64, device="cuda:0"):
    query = SimpleNamespace(device=torch.device(device), dtype=dtype, shape=(1, 1, 1, head_dim))
    return outside_limits(gluon, SimpleNamespace(query=query, gate_form="row"))


def test_gluon_is_missing_without_triton(monkeypatch):
    monkeypatch.setattr(triton, "missing", lambda: ["no Triton"])
    assert gluon.missing() == ["no Triton"]


def test_missing_names_version_gpu_or_interpreter(machine, monkeypatch):
    machine((9, 0))
    assert gluon.missing() == []
    machine((9, 0), version=(3, 5))
    assert gluon.missing() == ["Triton: expected 3.6 or newer, got 3.5"]
    machine((10, 0))
    assert gluon.missing() == ["torch sees no GPU of compute capability 9.0 (Hopper)"]
    monkeypatch.setattr(triton, "interpreted", lambda: True)
    assert "no interpreter" in gluon.missing()[0]


def test_limits_of_dtype_head_size_and_device(machine):
    machine((9, 0))
    assert reasons() == [] == reasons(torch.float16, 128) == reasons(head_dim=33)
    assert reasons(torch.float32) == ["dtype: expected float16 or bfloat16, got float32"]
    assert reasons(head_dim=129) == ["head size: expected 1 to 128, got 129"]
    assert reasons(device="cpu") == ["device: expected cuda, got cpu"]
    machine((8, 0))
    assert reasons() == ["compute capability: expected 9.0, got 8.0"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (dict(head_dim=64), None),
        (dict(head_dim=128, is_causal=True, key_lengths=(9,)), None),
        (dict(head_dim=48), "head size: expected 64 or 128, got 48"),
        (dict(head_dim=64, mask="boolean"), "attn_mask: expected none, got one"),
        (dict(head_dim=64, dropout_p=0.1), "dropout_p: expected 0, got 0.1"),
        (dict(head_dim=64, gate="shared", form="column"), "gate.form: expected 'row' or lambda, got 'column'"),
    ],
)
def test_note_names_the_forward_of_a_call(case, why, monkeypatch):
    monkeypatch.setattr(triton, "note", lambda problem: "tiles")
    inputs = make_inputs(Case("told", batch=1, **case), torch.bfloat16)
    defaults = dict(attn_mask=None, key_lengths=None, dropout_seed=None)
    note = gluon.note(dense_problem(*inputs.arguments(), **defaults | inputs.options))
    expected = f"as backend 'triton', without the forward in Gluon: {why} (tiles)"
    if why is None:
        expected = "tiled rows run the forward in Gluon; all else is that of 'triton' (tiles)"
    assert note == expected


@pytest.mark.parametrize("training", [False, True])
def test_auto_selects_gluon_only_if_measured_fastest(training, monkeypatch):
    faked_gpu.install(monkeypatch, names=("triton", "cuda", "gluon"))
    assert qk.explain(*faked_gpu.call(length=512, training=training)).selected == "triton"
    faked_gpu.install(monkeypatch, ("triton", "gluon"), (Choice(16, 64, training, 512, "gluon"),))
    assert qk.explain(*faked_gpu.call(length=512, training=training)).selected == "gluon"
    assert qk.explain(*faked_gpu.call(length=512, training=not training)).selected == "triton"
