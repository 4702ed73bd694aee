"""The baselines: the chunked composition, gate vectors, and sentences of real lengths."""

import sys
import types
from dataclasses import replace

import pytest
import torch

from benchmarks.cases import (
    BACKWARD,
    FORWARD,
    FORWARD_BACKWARD,
    LENGTHS,
    LONGEST,
    TRAINING_FORWARD,
    VECTORS,
    Case,
    Shape,
    draw_sets,
    histogram,
    sentence_lengths,
)
from benchmarks.implementations import chunked_sigmoid
from benchmarks.implementations.registry import COMPOSITION, EAGER, FLASH_ATTENTION, IMPLEMENTATIONS, ONE_MAP_ON_GPU
from benchmarks.measure import agreement, timing

CASE = Case(Shape(3, 2, 41, 8), mode=FORWARD_BACKWARD)


@pytest.mark.parametrize("entries", [1, 100, 41 * 41, 3 * 41 * 41])  # a row, two rows, a map, three maps at a time
def test_sigmoid_attention_in_chunks_matches_the_formula(monkeypatch, entries):
    monkeypatch.setattr(chunked_sigmoid, "_ENTRIES", entries)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, 2, n, 8, generator=generator, dtype=torch.float64, requires_grad=True) for n in (41, 30, 30)
    )
    grad = torch.randn(3, 2, 41, 8, generator=generator, dtype=torch.float64)
    hidden = torch.arange(30) >= torch.tensor([[30], [7], [0]])
    for mask in (None, hidden):
        visible = torch.sigmoid(query @ key.mT / 8**0.5)
        if mask is not None:
            visible = visible.masked_fill(mask[:, None, None], 0.0)
        expected = visible @ value
        got = chunked_sigmoid.sigmoid_attention(query, key, value, mask)
        torch.testing.assert_close(got, expected)
        for mine, theirs in zip(
            torch.autograd.grad(got, (query, key, value), grad),
            torch.autograd.grad(expected, (query, key, value), grad),
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # sums of chunks are float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_composition_agrees_with_eager(monkeypatch, lengths, dtype):
    monkeypatch.setattr(chunked_sigmoid, "_ENTRIES", 500)
    case = replace(CASE, lengths=lengths, dtype=dtype)
    agreement.require_agreement({COMPOSITION: IMPLEMENTATIONS[COMPOSITION].build(case)}, case, draw_sets(case)[0])


@pytest.mark.parametrize("mode", [FORWARD, FORWARD_BACKWARD, BACKWARD])
@pytest.mark.parametrize("name", [COMPOSITION, "reference", "cpu"])
def test_gate_vectors_agree_with_eager(name, mode):
    case = replace(CASE, gate=VECTORS, mode=mode)
    if IMPLEMENTATIONS[name].unsupported(case):
        pytest.skip("not available here")
    inputs = draw_sets(case)[0]
    agreement.require_agreement({name: IMPLEMENTATIONS[name].build(case)}, case, inputs)
    assert [tuple(t.shape) for t in inputs.gate] == [(8,)] * 4


def test_wrong_gate_vectors_raise():
    case = replace(CASE, gate=VECTORS)
    eager = IMPLEMENTATIONS[EAGER].build(case)
    with pytest.raises(agreement.ParityError, match=r"swapped.* has error"):
        agreement.require_agreement(
            {"swapped": lambda *operands: eager(*operands[:5], *operands[:4:-1])}, case, draw_sets(case)[0]
        )


@pytest.mark.parametrize("name", ONE_MAP_ON_GPU)
def test_library_baselines_need_a_gpu(name):
    assert IMPLEMENTATIONS[name].unsupported(CASE) == ["it needs a GPU"]


def test_flash_attention_calls_the_installed_package(monkeypatch):
    module = types.ModuleType("flash_attn_interface")
    module.flash_attn_func = lambda query, key, value: query + key + value
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    call = IMPLEMENTATIONS[FLASH_ATTENTION].build(CASE)
    inputs = draw_sets(CASE)[0]
    torch.testing.assert_close(call(*inputs.operands), inputs.query + inputs.key + inputs.value)


def test_composition_does_not_support_dropout():
    (reason,) = IMPLEMENTATIONS[COMPOSITION].unsupported(replace(CASE, dropout=0.1))
    assert "not dropout of their sum" in reason


def test_training_forward_is_timed_with_gradients():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    case = replace(CASE, mode=TRAINING_FORWARD)
    assert timing.make_step(call, case, draw_sets(case)[:1])(0) > 0
    assert seen == [(True, True)]


def test_histogram_is_that_of_sentihood():
    counts = histogram()
    assert sum(counts.values()) == 15008  # examples of train_NLI_M.tsv
    assert max(counts) == LONGEST
    assert sum(n * count for n, count in counts.items()) / 15008 == pytest.approx(28.84, abs=0.01)


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
