"""The implementations that benchmarks compare: agreement with eager, detection of wrong results, sentence lengths."""

from dataclasses import replace

import pytest
from benchmark_records import SMALL

from benchmarks.cases import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    VECTORS,
    Case,
    Shape,
    draw_sets,
    sentence_lengths,
)
from benchmarks.implementations.registry import EAGER, IMPLEMENTATIONS
from benchmarks.measure import agreement
from qacg_kernels.testing import ParityRow

CASE = Case(Shape(3, 2, 41, 8), mode=FORWARD_BACKWARD)


@pytest.mark.parametrize("mode", [FORWARD, FORWARD_BACKWARD, BACKWARD])
@pytest.mark.parametrize("name", ["reference", "cpu"])
def test_gate_vectors_agree_with_eager(name, mode):
    case = replace(CASE, gate=VECTORS, mode=mode)
    if IMPLEMENTATIONS[name].unsupported(case):
        pytest.skip("not available on this machine")
    inputs = draw_sets(case)[0]
    agreement.require_agreement({name: IMPLEMENTATIONS[name].build(case)}, case, inputs)
    assert [tuple(t.shape) for t in inputs.gate] == [(8,)] * 4


def test_sentence_lengths_follow_the_histogram():
    lengths = sentence_lengths(1000, 128)
    assert lengths[-1] == max(lengths) == 128
    ordered = sorted(lengths)
    assert sum(lengths) / 1000 == pytest.approx(28.8, abs=0.3)
    assert (ordered[500], ordered[950]) == (27, 49)  # median and 95 % of the histogram
    assert list(lengths) != ordered
    assert sentence_lengths(1, 7) == (7,)
    stretched = sorted(sentence_lengths(1000, 256))
    assert (stretched[500], stretched[-1]) == (54, 256)


def test_parity_report_with_a_failed_check_raises(monkeypatch):
    good = ParityRow("cpu", "float32", "long", "out", 1e-7, 1e-6, True)
    bad = good._replace(tensor="grad key", error=0.5, ok=False)
    monkeypatch.setattr(agreement, "parity_report", lambda: [good, good])
    assert agreement.require_parity() == 2
    monkeypatch.setattr(agreement, "parity_report", lambda: [good, bad])
    with pytest.raises(agreement.ParityError, match=r"^cpu float32, long: grad key has error 0\.5, allowed 1e-06$"):
        agreement.require_parity()


_eager = IMPLEMENTATIONS[EAGER].build(SMALL)


def _flipped_gate(q, k, v, cq, ck, lam):
    return _eager(q, k, v, cq, ck, -lam)


def _half_the_gradient(q, k, v, cq, ck, lam):
    return _eager(q, k, v, (cq + cq.detach()) / 2, ck, lam)


def _without_context(q, k, v, *_):
    return q + k + v


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (_flipped_gate, "out has error"),
        (_half_the_gradient, "grad context_query has error"),
        (_without_context, "appears to not have been used"),
    ],
)
def test_wrong_implementation_raises_with_its_name(wrong, message):
    case = replace(SMALL, mode=FORWARD_BACKWARD)
    with pytest.raises(agreement.ParityError, match=r"wrong, .*" + message):
        agreement.require_agreement({EAGER: _eager, "wrong": wrong}, case, draw_sets(case)[0])
