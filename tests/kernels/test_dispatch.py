"""Selection of the backend of a call: order, reasons, and no silent fallback."""

import warnings

import pytest
import torch
from processes import run_python
from torch._subclasses import FakeTensorMode

import qacg_kernels as qk
from qacg_kernels.backends import cpu, cuda, dispatch, triton
from qacg_kernels.backends.triton import tile_tables
from qacg_kernels.operators import self_check
from qacg_kernels.testing.inputs import Case, make_inputs

needs_cpu = pytest.mark.skipif(bool(cpu.missing()), reason="the compiled CPU backend is missing")


def call_of(dtype=torch.float32, device="cpu", **sizes):
    inputs = make_inputs(Case("dispatch", batch=1, heads=2, queries=3, **sizes), dtype, device)
    return inputs.arguments()


def test_explain_has_reasons_for_every_backend(device):
    explanation = qk.explain(*call_of(device=device))
    supported = {name for name, reasons in explanation.reasons.items() if not reasons}
    assert set(explanation.notes) <= supported
    assert set(explanation.reasons) == set(dispatch.NAMES) - {"auto"}
    assert explanation.reasons["reference"] == []
    assert qk.available_backends()[-1] == "reference"
    assert explanation.selected == next(name for name in qk.available_backends() if name in supported)
    for name, reasons in explanation.reasons.items():
        assert all(isinstance(text, str) and len(text) > 10 for text in reasons), name
        assert reasons or name in qk.available_backends(), f"{name} is not available, without a reason"


@pytest.mark.parametrize(
    ("sizes", "dtype", "word"),
    [(dict(head_dim=257), torch.float32, "head size: expected 1 to 256, got 257"), (dict(), torch.float64, "float64")],
    ids=["head size", "dtype"],
)
@needs_cpu
def test_named_backend_raises_where_auto_selects_another(sizes, dtype, word, device):
    arguments = call_of(dtype, device, **sizes)
    with pytest.raises(RuntimeError, match=f"expected a backend that supports this call, got 'cpu' .*{word}"):
        qk.quasi_attention(*arguments, backend="cpu")
    explanation = qk.explain(*arguments)
    assert any(word in text for text in explanation.reasons["cpu"])
    assert explanation.selected == "reference"
    assert str(explanation).startswith("reference runs this call\n")
    assert "  cpu does not support it: " in str(explanation)
    reference = qk.quasi_attention(*arguments, backend="reference")
    assert torch.equal(qk.quasi_attention(*arguments), reference)


def test_missing_backend_raises_its_reason(monkeypatch):
    module = dispatch.backend_of("cpu")
    monkeypatch.setattr(module, "missing", lambda: ["the library was not built; do so"])
    assert "cpu" not in qk.available_backends()
    arguments = call_of()
    with pytest.raises(RuntimeError, match="not built"):
        qk.quasi_attention(*arguments, backend="cpu")
    assert qk.explain(*arguments).selected == "reference"
    assert qk.quasi_attention(*arguments).isfinite().all()


# On a faked GPU


def fake_gpu(monkeypatch, names):
    """Makes the named GPU backends support calls on a GPU; returns the arguments of a call, without values."""
    for module in (cuda, triton):
        here = module.NAME in names
        monkeypatch.setattr(module, "missing", list if here else lambda: ["not on the faked GPU"])
        monkeypatch.setattr(module, "not_for", lambda device: [])
        monkeypatch.setattr(module, "note", lambda problem: None)
    monkeypatch.setattr(tile_tables, "table_for", lambda device: tile_tables.shipped("sm_90"))
    with FakeTensorMode():
        x = torch.empty(2, 3, 128, 64, dtype=torch.bfloat16, device="cuda:0")
        return x, x, x, x, x, torch.empty(2, 3, 128, dtype=torch.bfloat16, device="cuda:0")


@pytest.mark.parametrize(
    ("available", "expected"), [(("triton", "cuda"), "triton"), (("cuda",), "cuda"), ((), "reference")]
)
def test_auto_selects_triton_first_on_a_gpu(available, expected, monkeypatch):
    assert qk.explain(*fake_gpu(monkeypatch, available)).selected == expected


def test_strict_raises_if_only_the_reference_supports_a_gpu(monkeypatch):
    call = fake_gpu(monkeypatch, ())
    monkeypatch.setenv("QACG_SELF_CHECK", "strict")
    monkeypatch.setenv("QACG_QUIET", "1")
    with pytest.raises(RuntimeError, match="QACG_SELF_CHECK=strict: expected a fused kernel for this call"):
        qk.quasi_attention(*call)


def test_environment_variable_selects_the_backend_of_auto(monkeypatch, device):
    arguments = call_of(device=device)
    monkeypatch.setattr(dispatch, "_ASKED_FOR", "reference")
    assert qk.explain(*arguments).selected == "reference"
    expected = qk.quasi_attention(*arguments, backend="reference")
    assert torch.equal(qk.quasi_attention(*arguments), expected)
    monkeypatch.setattr(dispatch, "_ASKED_FOR", "tpu")
    with pytest.raises(ValueError, match=r"QACG_BACKEND: expected one of 'auto', .*got 'tpu'"):
        qk.quasi_attention(*arguments)


def test_empty_environment_variables_count_as_not_set(monkeypatch):
    monkeypatch.setenv("QACG_SELF_CHECK", "")
    assert self_check.requested_mode() == "first"
    code = "from qacg_kernels.backends import dispatch; print(dispatch._ASKED_FOR)"
    assert run_python("-c", code, QACG_BACKEND="").stdout == "auto\n"


def test_chosen_so_far_has_the_backends_of_auto(monkeypatch):
    monkeypatch.setattr(dispatch, "_chosen", set())
    qk.quasi_attention(*call_of())
    selected = qk.explain(*call_of()).selected
    assert dispatch.chosen_so_far() == {"cpu": {"backends": [selected], "self_check": None}}


# The warning of the slow reference


@pytest.fixture
def not_warned_yet(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned_of_reference", False)


def wide_heads():
    x = torch.randn(1, 2, 5, 300)
    return x, x, x, x, x, x[..., 0]


def assert_no_warning(*arguments, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.quasi_attention(*arguments, **options)


def test_reference_warns_once_at_the_callers_line(not_warned_yet):
    with pytest.warns(UserWarning, match=r"runs in the PyTorch reference.*cpu: .*QACG_QUIET=1") as caught:
        qk.quasi_attention(*wide_heads())
    assert caught[0].filename == __file__
    assert_no_warning(*wide_heads())


def test_quiet_disables_the_warning(not_warned_yet, monkeypatch):
    monkeypatch.setenv("QACG_QUIET", "1")
    assert_no_warning(*wide_heads())


# A selection is cached for calls of one kind


@needs_cpu
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (dict(), dict(dtype=torch.float64), "reference"),
        (dict(head_dim=257), dict(), "cpu"),
        (dict(head_dim=8), dict(head_dim=300), "reference"),
    ],
    ids=["dtype", "narrower heads", "wider heads"],
)
def test_auto_selects_anew_for_another_kind(first, second, expected, monkeypatch):
    qk.quasi_attention(*call_of(**first))
    monkeypatch.setattr(dispatch, "_chosen", set())
    qk.quasi_attention(*call_of(**second))
    assert {name for _, name in dispatch._chosen} == {expected}
