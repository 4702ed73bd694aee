"""Who is measured, and that a wrong provider is found and named."""

from dataclasses import replace

import pytest
import torch
from benchmark_rows import SMALL

from benchmarks.cases.case import FORWARD, FORWARD_BACKWARD, Case, Shape
from benchmarks.cases.inputs import draw, draw_sets
from benchmarks.measure import verify
from benchmarks.providers.names import EAGER
from benchmarks.providers.registry import PROVIDERS, chosen
from qacg_kernels.testing import ParityRow


def test_parity_lists_what_fails_and_does_not_pass_on_nothing(monkeypatch):
    good = ParityRow("cpu", "float32", "long rows", "out", 1e-7, 1e-6, True)
    bad = good._replace(tensor="grad key", error=0.5, ok=False)
    monkeypatch.setattr(verify, "parity_report", lambda backends, device: [good, good])
    assert verify.require_parity() == 2
    monkeypatch.setattr(verify, "parity_report", lambda backends, device: [good, bad])
    with pytest.raises(verify.ParityError, match=r"^cpu float32, long rows: grad key is off by 0\.5, budget 1e-06$"):
        verify.require_parity()
    monkeypatch.setattr(verify, "parity_report", lambda backends, device: [])
    with pytest.raises(verify.ParityError, match="no rows"):
        verify.require_parity()


def test_unknown_or_unable_providers_are_refused_with_reasons(monkeypatch):
    with pytest.raises(ValueError, match="got 'fastest', wanted one of eager"):
        chosen(["fastest"], SMALL)
    unable = replace(PROVIDERS["cpu"], reasons_against=lambda case: ["head size is 8", "no compiler"])
    monkeypatch.setitem(PROVIDERS, "cpu", unable)
    with pytest.raises(RuntimeError, match=r"'cpu' does not take \(2,3,20,8\).*: head size is 8; no compiler"):
        chosen(["cpu"], SMALL)


@pytest.mark.parametrize("mode", [FORWARD, FORWARD_BACKWARD])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_providers_keep_the_error_rule(mode, dtype):
    case = Case(Shape(2, 3, 20, 8), dtype, mode)
    calls = {name: PROVIDERS[name].build(case) for name in ("reference",)}
    verify.require_agreement(calls, case, draw_sets(case)[0])


_eager = PROVIDERS[EAGER].build(SMALL)


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
        (_flipped_gate, "out is off by"),
        (_softmax_alone, "out is off by"),
        (_half_the_gradient, "grad context_query is off by"),
        (_not_a_number, "out is off by"),
        (_without_context, "appears to not have been used"),
    ],
)
def test_a_wrong_provider_is_named(wrong, message):
    case = replace(SMALL, mode=FORWARD_BACKWARD)
    with pytest.raises(verify.ParityError, match=r"wrong, .*" + message):
        verify.require_agreement({EAGER: _eager, "wrong": wrong}, case, draw_sets(case)[0])


def test_eager_drops_cells_of_the_sum_at_the_stated_rate():
    case = Case(Shape(1, 1, 64, 64), mode=FORWARD_BACKWARD, dropout=0.25)
    inputs = draw(case, torch.Generator().manual_seed(0))
    shown = PROVIDERS[EAGER].build(case)(*inputs.operands[:2], torch.eye(64)[None, None], *inputs.operands[3:])
    assert (shown == 0).float().mean().item() == pytest.approx(0.25, abs=0.05)
