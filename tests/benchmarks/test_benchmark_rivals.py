"""What kernels are raced against and on what: the chunked composition, sentences of real lengths."""

from dataclasses import replace

import pytest
import torch

from benchmarks.cases.case import FORWARD_BACKWARD, LENGTHS, TRAINING_FORWARD, Case, Shape
from benchmarks.cases.inputs import draw_sets
from benchmarks.cases.lengths import LONGEST, histogram, sentence_lengths
from benchmarks.measure import timing, verify
from benchmarks.providers import chunked_sigmoid
from benchmarks.providers.names import COMPOSITION
from benchmarks.providers.registry import PROVIDERS

CASE = Case(Shape(3, 2, 41, 8), mode=FORWARD_BACKWARD)


@pytest.mark.parametrize("cells", [1, 100, 41 * 41, 3 * 41 * 41])  # a row, two rows, a map, three maps at a time
def test_chunks_of_every_size_give_the_map_and_its_gradients(monkeypatch, cells):
    monkeypatch.setattr(chunked_sigmoid, "_CELLS", cells)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(3, 2, n, 8, generator=generator, dtype=torch.float64, requires_grad=True) for n in (41, 30, 30)
    )
    grad = torch.randn(3, 2, 41, 8, generator=generator, dtype=torch.float64)
    hidden = torch.arange(30) >= torch.tensor([[30], [7], [0]])
    for mask in (None, hidden):
        cells_seen = torch.sigmoid(query @ key.mT / 8**0.5)
        if mask is not None:
            cells_seen = cells_seen.masked_fill(mask[:, None, None], 0.0)
        wanted = cells_seen @ value
        got = chunked_sigmoid.sigmoid_attention(query, key, value, mask)
        torch.testing.assert_close(got, wanted)
        for mine, theirs in zip(
            torch.autograd.grad(got, (query, key, value), grad), torch.autograd.grad(wanted, (query, key, value), grad)
        ):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)  # sums of chunks are float32


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lengths", LENGTHS)
def test_the_composition_is_quasi_attention(monkeypatch, lengths, dtype):
    monkeypatch.setattr(chunked_sigmoid, "_CELLS", 500)
    case = replace(CASE, lengths=lengths, dtype=dtype)
    verify.require_agreement({COMPOSITION: PROVIDERS[COMPOSITION].build(case)}, case, draw_sets(case)[0])


def test_the_composition_refuses_what_it_would_get_wrong():
    (reason,) = PROVIDERS[COMPOSITION].reasons_against(replace(CASE, dropout=0.1))
    assert "not dropout of their sum" in reason


def test_a_forward_of_training_is_timed_with_what_its_backward_needs():
    seen = []

    def call(query, *_others):
        seen.append((torch.is_grad_enabled(), query.requires_grad))
        return query * 2

    case = replace(CASE, mode=TRAINING_FORWARD)
    assert timing.make_step(call, case, draw_sets(case)[:1])(0) > 0
    assert seen == [(True, True)]


def test_the_histogram_is_sentihoods():
    rows = histogram()
    assert sum(rows.values()) == 15008  # rows of train_NLI_M.tsv
    assert max(rows) == LONGEST
    assert sum(n * count for n, count in rows.items()) / 15008 == pytest.approx(28.84, abs=0.01)


def test_sentences_follow_the_histogram():
    lengths = sentence_lengths(1000, 128)
    assert lengths[-1] == max(lengths) == 128
    ordered = sorted(lengths)
    assert sum(lengths) / 1000 == pytest.approx(28.8, abs=0.3)
    assert (ordered[500], ordered[950]) == (27, 49)  # median and 95 % of the histogram
    assert list(lengths) != ordered
    assert sentence_lengths(1, 7) == (7,)
    stretched = sorted(sentence_lengths(1000, 256))
    assert (stretched[500], stretched[-1]) == (54, 256)
