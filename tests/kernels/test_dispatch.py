"""Which backend takes a call: order, reasons, and no silent fallback."""

import pytest
import torch

import qacg_kernels as qk
from qacg_kernels import dispatch
from qacg_kernels.testing_inputs import Case, make_inputs


def call_of(dtype=torch.float32, device="cpu", **sizes):
    inputs = make_inputs(Case("dispatch", batch=1, heads=2, queries=3, **sizes), dtype, device)
    return inputs.arguments()


def test_reference_is_always_there_and_comes_last():
    assert qk.available_backends()[-1] == "reference"
    assert set(qk.available_backends()) <= set(dispatch.NAMES) - {"auto"}


def test_explain_has_an_answer_for_every_name(device):
    explanation = qk.explain(*call_of(device=device))
    taken = {name for name, why in explanation.reasons.items() if not why}
    assert set(explanation.notes) <= taken and set(explanation.passed_by) <= taken
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
    assert explanation["selected"] == ["reference"] and len(explanation) == len(dict(explanation))
    assert str(explanation).startswith("reference takes this call\n") and "cpu does not: dtype is" in str(explanation)
    with pytest.raises(KeyError):
        explanation["tpu"]


def test_explain_takes_packed_calls(device):
    inputs = make_inputs(Case("packed dispatch", sequences=(2, 3)), torch.float32, device)
    assert qk.explain(*inputs.arguments(), **inputs.options)["reference"] == []


@pytest.mark.parametrize(
    ("sizes", "dtype", "word"),
    [(dict(head_dim=257), torch.float32, "head size is 257"), (dict(), torch.float64, "float64")],
    ids=["head size", "dtype"],
)
def test_named_backend_raises_its_reasons_where_auto_goes_on(sizes, dtype, word, device):
    if "cpu" not in qk.available_backends():
        pytest.skip("the compiled CPU backend is not there to refuse anything")
    arguments = call_of(dtype, device, **sizes)
    with pytest.raises(RuntimeError, match=f"'cpu' does not take this call.*{word}"):
        qk.quasi_attention(*arguments, backend="cpu")
    reasons = qk.explain(*arguments)
    assert any(word in text for text in reasons["cpu"]) and reasons["selected"] == ["reference"]
    wanted = qk.quasi_attention(*arguments, backend="reference")
    assert torch.equal(qk.quasi_attention(*arguments), wanted)


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
