"""Which backend takes a call: order, reasons, and no silent fallback."""

import warnings

import faked_gpu
import pytest
import torch

import qacg_kernels as qk
from qacg_kernels import dispatch
from qacg_kernels.backends import cpu
from qacg_kernels.backends.triton.tile_tables import Choice
from qacg_kernels.testing.inputs import Case, make_inputs


def call_of(dtype=torch.float32, device="cpu", **sizes):
    inputs = make_inputs(Case("dispatch", batch=1, heads=2, queries=3, **sizes), dtype, device)
    return inputs.arguments()


def test_reference_is_always_there_and_comes_last():
    assert qk.available_backends()[-1] == "reference"
    assert set(qk.available_backends()) <= set(dispatch.NAMES) - {"auto"}


def test_explain_has_an_answer_for_every_name(device):
    explanation = qk.explain(*call_of(device=device))
    taken = {name for name, why in explanation.reasons.items() if not why}
    assert set(explanation.notes) <= taken
    assert set(explanation.passed_by) <= taken
    assert set(explanation.reasons) == set(dispatch.NAMES) - {"auto"}
    assert explanation.reasons["reference"] == []
    assert explanation.selected == next(n for n in qk.available_backends() if n in taken - set(explanation.passed_by))
    for name, why in explanation.reasons.items():
        assert all(isinstance(text, str) and len(text) > 10 for text in why), name
        if name not in qk.available_backends():
            assert why, f"{name} is not available and does not say why"


def test_explain_is_also_the_dictionary_that_it_was(device):
    explanation = qk.explain(*call_of(torch.float64, device))
    assert dict(explanation) == {
        **explanation.reasons,
        "selected": [explanation.selected],
        "passed by auto": [],
        "notes": [],
    }
    assert explanation["selected"] == ["reference"]
    assert len(explanation) == len(dict(explanation))
    assert str(explanation).startswith("reference takes this call\n")
    assert "cpu does not: dtype: expected" in str(explanation)
    with pytest.raises(KeyError):
        explanation["tpu"]


def test_explain_takes_packed_calls(device):
    inputs = make_inputs(Case("packed dispatch", sequences=(2, 3)), torch.float32, device)
    assert qk.explain(*inputs.arguments(), **inputs.options)["reference"] == []


@pytest.mark.parametrize(
    ("sizes", "dtype", "word"),
    [(dict(head_dim=257), torch.float32, "head size: expected 1 to 256, got 257"), (dict(), torch.float64, "float64")],
    ids=["head size", "dtype"],
)
def test_named_backend_raises_its_reasons_where_auto_goes_on(sizes, dtype, word, device):
    if "cpu" not in qk.available_backends():
        pytest.skip("the compiled CPU backend is not there to refuse anything")
    arguments = call_of(dtype, device, **sizes)
    with pytest.raises(RuntimeError, match=f"'cpu' does not take this call.*{word}"):
        qk.quasi_attention(*arguments, backend="cpu")
    reasons = qk.explain(*arguments)
    assert any(word in text for text in reasons["cpu"])
    assert reasons["selected"] == ["reference"]
    reference = qk.quasi_attention(*arguments, backend="reference")
    assert torch.equal(qk.quasi_attention(*arguments), reference)


def test_several_reasons_are_all_given(device):
    if "cpu" not in qk.available_backends():
        pytest.skip("the compiled CPU backend is not there to refuse anything")
    why = qk.explain(*call_of(torch.float64, device, head_dim=300))["cpu"]
    assert len(why) == 2


def test_missing_backend_says_how_to_get_it(monkeypatch, device):
    module = dispatch.backend_of("cpu")
    monkeypatch.setattr(module, "missing", lambda: ["the library was not built; do so"])
    assert "cpu" not in qk.available_backends()
    arguments = call_of(device=device)
    with pytest.raises(RuntimeError, match="not built"):
        qk.quasi_attention(*arguments, backend="cpu")
    assert qk.explain(*arguments)["selected"] == ["reference"]
    assert qk.quasi_attention(*arguments).isfinite().all()


def test_auto_uses_the_first_that_takes_the_call(device):
    arguments = call_of(device=device)
    selected = qk.explain(*arguments)["selected"][0]
    assert torch.equal(qk.quasi_attention(*arguments), qk.quasi_attention(*arguments, backend=selected))


# A GPU that is not there.


def selected(**call):
    return qk.explain(*faked_gpu.call(**call)).selected


@pytest.mark.parametrize(("there", "taken"), [(("triton", "cuda"), "triton"), (("cuda",), "cuda"), ((), "reference")])
def test_auto_takes_triton_on_a_gpu(there, taken, monkeypatch):
    faked_gpu.install(monkeypatch, there)
    assert selected() == taken


def test_auto_follows_measurements_by_length_and_direction(monkeypatch):
    choices = (
        Choice(16, 64, False, 128, "triton"),
        Choice(16, 64, False, 512, "cuda"),
        Choice(16, 64, True, 128, "cuda"),
    )
    faked_gpu.install(monkeypatch, choices=choices)
    assert [selected(length=n) for n in (9, 128, 129, 512, 9000)] == ["triton", "triton", "cuda", "cuda", "cuda"]
    assert selected(length=9000, training=True) == "cuda"
    assert selected(dtype=torch.float32, length=512) == "triton"
    assert selected(head_dim=128, length=512) == "triton"


def test_auto_passes_by_a_measured_backend_that_is_gone(monkeypatch):
    faked_gpu.install(monkeypatch, ("triton",), (Choice(16, 64, False, 512, "cuda"),))
    assert selected() == "triton"


def test_explain_says_how_to_measure(monkeypatch):
    faked_gpu.install(monkeypatch)
    passed_by = qk.explain(*faked_gpu.call()).passed_by
    assert passed_by == {
        "cuda": "triton is preferred; python -m qacg_kernels.tune measures which is faster on this GPU"
    }


def test_strict_raises_where_auto_takes_the_reference_on_a_gpu(monkeypatch):
    faked_gpu.install(monkeypatch, ())
    monkeypatch.setenv("QACG_SELF_CHECK", "strict")
    monkeypatch.setenv("QACG_QUIET", "1")
    with pytest.raises(RuntimeError, match="QACG_SELF_CHECK=strict: expected a fused kernel for this call"):
        qk.quasi_attention(*faked_gpu.call())


def test_environment_chooses_what_auto_stands_for(monkeypatch, device):
    arguments = call_of(device=device)
    monkeypatch.setattr(dispatch, "_ASKED_FOR", "reference")
    assert qk.explain(*arguments).selected == "reference"
    expected = qk.quasi_attention(*arguments, backend="reference")
    assert torch.equal(qk.quasi_attention(*arguments), expected)
    monkeypatch.setattr(dispatch, "_ASKED_FOR", "tpu")
    with pytest.raises(ValueError, match=r"QACG_BACKEND: expected one of 'auto', .*got 'tpu'"):
        qk.quasi_attention(*arguments)


def test_a_record_names_the_backends_that_auto_took(monkeypatch):
    monkeypatch.setattr(dispatch, "_chosen", {})
    qk.quasi_attention(*call_of())
    taken = qk.explain(*call_of()).selected
    assert dispatch.chosen_so_far() == {"cpu": {"backends": [taken], "self_check": None}}


# Nobody is slow without a warning.


@pytest.fixture
def untold(monkeypatch):
    monkeypatch.setattr(dispatch, "_warned_of_reference", False)


def wide_heads():
    x = torch.randn(1, 2, 5, 300)
    return x, x, x, x, x, x[..., 0]


def test_the_reference_warns_once_at_the_users_line(untold):
    with pytest.warns(UserWarning, match=r"runs through the PyTorch reference.*cpu: .*QACG_QUIET=1") as caught:
        qk.quasi_attention(*wide_heads())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.quasi_attention(*wide_heads())


def test_quiet_silences_the_warning(untold, monkeypatch):
    monkeypatch.setenv("QACG_QUIET", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.quasi_attention(*wide_heads())


def test_a_missing_library_is_named_by_the_warning(untold, monkeypatch):
    monkeypatch.setattr(cpu, "missing", lambda: ["no compiler was found; install one"])
    with pytest.warns(UserWarning, match="cpu: no compiler was found; install one"):
        qk.quasi_attention(*call_of())


def test_a_backend_by_name_does_not_warn(untold):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        qk.quasi_attention(*call_of(), backend="reference")
