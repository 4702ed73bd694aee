"""Implementations, and that a wrong one is found."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import SMALL

from benchmarks.cases import FORWARD, FORWARD_BACKWARD, Case, Shape, draw, draw_sets
from benchmarks.implementations.registry import EAGER, IMPLEMENTATIONS, require_supported
from benchmarks.measure import agreement
from qacg_kernels.testing import ParityRow


def test_parity_report_with_failed_or_no_checks_raises(monkeypatch):
    good = ParityRow("cpu", "float32", "long", "out", 1e-7, 1e-6, True)
    bad = good._replace(tensor="grad key", error=0.5, ok=False)
    monkeypatch.setattr(agreement, "parity_report", lambda backends, device: [good, good])
    assert agreement.require_parity() == 2
    monkeypatch.setattr(agreement, "parity_report", lambda backends, device: [good, bad])
    with pytest.raises(agreement.ParityError, match=r"^cpu float32, long: grad key has error 0\.5, allowed 1e-06$"):
        agreement.require_parity()
    monkeypatch.setattr(agreement, "parity_report", lambda backends, device: [])
    with pytest.raises(agreement.ParityError, match="no checks"):
        agreement.require_parity()


def test_unknown_or_unsupported_names_raise(monkeypatch):
    with pytest.raises(ValueError, match=r"expected one of eager, .*got 'fastest'"):
        require_supported(["fastest"], SMALL)
    unable = replace(IMPLEMENTATIONS["cpu"], unsupported=lambda case: ["head size is 8", "no compiler"])
    monkeypatch.setitem(IMPLEMENTATIONS, "cpu", unable)
    with pytest.raises(RuntimeError, match=r"'cpu' does not support \(2,3,20,8\).*: head size is 8; no compiler"):
        require_supported(["cpu"], SMALL)


@pytest.mark.parametrize("mode", [FORWARD, FORWARD_BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reference_agrees_with_eager(mode, dtype):
    case = Case(Shape(2, 3, 20, 8), dtype, mode)
    calls = {name: IMPLEMENTATIONS[name].build(case) for name in ("reference",)}
    agreement.require_agreement(calls, case, draw_sets(case)[0])


_eager = IMPLEMENTATIONS[EAGER].build(SMALL)


def _flipped_gate(q, k, v, cq, ck, lam):
    return _eager(q, k, v, cq, ck, -lam)


def _softmax_alone(q, k, v, cq, ck, lam):
    return _eager(q, k, v, cq, ck, 0 * lam)


def _half_the_gradient(q, k, v, cq, ck, lam):
    return _eager(q, k, v, (cq + cq.detach()) / 2, ck, lam)


def _not_a_number(*operands):
    return _eager(*operands) * float("nan")


def _without_context(q, k, v, *_):
    return q + k + v


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_flipped_gate, "out has error"),
        (_softmax_alone, "out has error"),
        (_half_the_gradient, "grad context_query has error"),
        (_not_a_number, "out has error"),
        (_without_context, "appears to not have been used"),
    ],
)
def test_a_wrong_implementation_raises_with_its_name(wrong, message):
    case = replace(SMALL, mode=FORWARD_BACKWARD)
    with pytest.raises(agreement.ParityError, match=r"wrong, .*" + message):
        agreement.require_agreement({EAGER: _eager, "wrong": wrong}, case, draw_sets(case)[0])


def test_eager_drops_entries_at_the_given_rate():
    case = Case(Shape(1, 1, 64, 64), mode=FORWARD_BACKWARD, dropout=0.25)
    inputs = draw(case, torch.Generator().manual_seed(0))
    shown = IMPLEMENTATIONS[EAGER].build(case)(*inputs.operands[:2], torch.eye(64)[None, None], *inputs.operands[3:])
    assert (shown == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)
