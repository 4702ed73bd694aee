"""Question answering: from a question and a text of any length to character positions."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from encoders import roberta_config
from errors import error_cases, raises
from parity import random
from qacg_models import (
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
    QuestionAnswerer,
)
from qacg_models.errors import InputError
from qacg_models.sentiment.encoding import train_tokenizer
from qacg_models.tasks import (
    Answer,
    best_spans,
    pad_windows,
    windows,
)
from torch import nn
from transformers import PreTrainedTokenizerFast


def brute_force(starts, ends, allowed, max_tokens, count):
    spans = [
        (i, j, starts[i] + ends[j])
        for i in range(len(starts))
        for j in range(i, min(i + max_tokens, len(starts)))
        if allowed[i] and allowed[j]
    ]
    return sorted(spans, key=lambda s: -s[2])[:count]


@pytest.mark.parametrize("max_tokens", [1, 3, 50])
def test_best_spans_match_a_full_search(max_tokens):
    starts, ends = random(3, 9, seed=1), random(3, 9, seed=2)
    allowed = torch.ones(3, 9, dtype=torch.bool)
    allowed[:, :3], allowed[1, 7:], allowed[2] = False, False, False
    found = best_spans(starts, ends, allowed, max_tokens, 8)
    for row in range(3):
        expected = brute_force(starts[row].tolist(), ends[row].tolist(), allowed[row].tolist(), max_tokens, 8)
        assert [(s.first, s.last) for s in found[row]] == [w[:2] for w in expected]
        torch.testing.assert_close(torch.tensor([s.score for s in found[row]]), torch.tensor([w[2] for w in expected]))
    assert found[2] == []


@pytest.fixture(scope="module")
def tokenizer():
    texts = [
        "Anna lives in Oslo. Boris and Emil live in Lima. Clara lives in Lima. It rains.",
        "Who went? Where to? When was it? It rains, the garden is green and nobody minds. Frida lives in Hanoi?",
    ]
    return train_tokenizer(texts * 3, vocab_size=400)


@pytest.fixture(scope="module")
def untyped(tokenizer):
    """A copy of the tokenizer without token types."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        pad_token="[PAD]",
        sep_token="[SEP]",
        cls_token="[CLS]",
    )


LONG = (
    "It rains,  the garden is green.\n" * 12 + "Frida lives in\tHanoi. " + "The gärden is GREEN and nobody minds. " * 9
)


def test_windows_cover_the_text_and_overlap(tokenizer):
    parts = windows("Where?", LONG, tokenizer, max_length=40, stride=10)
    assert len(parts) > 5 and all(len(w.input_ids) <= 40 for w in parts)
    whole = tokenizer(LONG, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    places = [[place for place in w.offsets if place is not None] for w in parts]
    assert [places[0][0], places[-1][-1]] == [whole[0], whole[-1]]
    for left, right in pairwise(places):
        assert left[-10:] == right[:10]
    joined = places[0] + [place for part in places[1:] for place in part[10:]]
    assert joined == whole
    for window in parts:
        assert [t for t, place in zip(window.token_type_ids, window.offsets) if place is not None].count(0) == 0
    short = windows("Where?", "In Oslo.", tokenizer, max_length=40, stride=10)
    assert len(short) == 1


class Pointer(nn.Module):
    """A stub model: high logits for chosen token ids, and `nothing` for the first token."""

    def __init__(self, starts, ends, nothing=-9.0, positions=48, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)
        self.position_embeddings = nn.Embedding(positions, 1)
        self.words = nn.Embedding(500, 1)
        self.starts, self.ends, self.nothing = starts, ends, nothing
        self.device = torch.device("cpu")
        self.batches = []

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids, attention_mask, token_type_ids=None):
        assert not self.training and not torch.is_grad_enabled()
        assert not (input_ids * (1 - attention_mask)).any() and input_ids.shape[1] <= 48
        self.batches.append(len(input_ids))

        def logits(expected):
            scores = sum(value * (input_ids == token) for token, value in expected.items()).float()
            scores[:, 0] = self.nothing
            return scores

        return SimpleNamespace(start_logits=logits(self.starts), end_logits=logits(self.ends))


def token(tokenizer, word):
    (one,) = tokenizer(word, add_special_tokens=False)["input_ids"]
    return one


def test_answer_in_a_later_window_has_its_characters(tokenizer):
    frida, hanoi = token(tokenizer, "Frida"), token(tokenizer, "Hanoi")
    model = Pointer({frida: 5.0}, {hanoi: 4.0}).train()
    answerer = QuestionAnswerer(model, tokenizer, stride=16, batch_size=2)
    assert answerer.max_length == 48  # the positions that the model has
    answer = answerer.answer("Frida lives in Hanoi?", LONG)
    assert answer == Answer("Frida lives in\tHanoi", LONG.index("Frida"), LONG.index("Hanoi") + 5, 9.0)
    assert LONG[answer.start : answer.end] == answer.text
    assert max(model.batches) == 2 and len(model.batches) > 3
    assert model.training, "the training mode is restored"


def test_answers_are_distinct_and_sorted(tokenizer):
    oslo, lima = token(tokenizer, "Oslo"), token(tokenizer, "Lima")
    text = "Emil lives in Oslo. " + "It rains. " * 20 + "Clara lives in Lima. " + "It rains. " * 20
    model = Pointer({oslo: 2.0, lima: 6.0}, {oslo: 3.0, lima: 6.0})
    answerer = QuestionAnswerer(model, tokenizer, stride=20, max_answer_tokens=1)
    found = answerer.answers("Where?", text, count=3)
    assert [(a.text, a.score) for a in found[:2]] == [("Lima", 12.0), ("Oslo", 5.0)]
    assert (len({(a.start, a.end) for a in found}), len(found)) == (3, 3)
    assert all(text[a.start : a.end] == a.text for a in found)


def test_answer_length_is_limited(tokenizer):
    anna, oslo = token(tokenizer, "Anna"), token(tokenizer, "Oslo")
    text = "Anna lives in Oslo."
    model = Pointer({anna: 5.0}, {oslo: 4.0})
    assert QuestionAnswerer(model, tokenizer, stride=8).answer("Who?", text).text == "Anna lives in Oslo"
    short = QuestionAnswerer(model, tokenizer, stride=8, max_answer_tokens=3).answer("Who?", text)
    assert short.score == 5.0
    assert short.text.startswith("Anna")
    assert "Oslo" not in short.text


def test_no_answer_requires_the_option(tokenizer):
    oslo = token(tokenizer, "Oslo")
    scores = ({oslo: 4.0}, {oslo: 4.0})
    text = "Emil lives in Oslo. " + "It rains. " * 30

    def answer(nothing, **config):
        return QuestionAnswerer(Pointer(*scores, nothing=nothing, **config), tokenizer, stride=8).answer("?", text)

    assert answer(6.0).text == "Oslo"
    assert answer(6.0, allow_no_answer=True, no_answer_threshold=0.0) == Answer("", None, None, 12.0)
    assert answer(6.0, allow_no_answer=True, no_answer_threshold=4.0).text == "Oslo"
    assert answer(3.0, allow_no_answer=True, no_answer_threshold=0.0).text == "Oslo"
    assert answer(3.0, allow_no_answer=True, no_answer_threshold=-3.0).text == ""


def test_no_answer_requires_every_window(tokenizer):
    class Window(Pointer):
        def forward(self, input_ids, attention_mask, token_type_ids=None):
            out = super().forward(input_ids, attention_mask, token_type_ids)
            here = (input_ids == oslo).any(-1)
            out.start_logits[:, 0] = torch.where(here, -5.0, 20.0)
            return out

    oslo = token(tokenizer, "Oslo")
    text = "It rains. " * 30 + "Emil lives in Oslo. "
    model = Window({oslo: 4.0}, {oslo: 4.0}, nothing=0.0, allow_no_answer=True, no_answer_threshold=0.0)
    assert QuestionAnswerer(model, tokenizer, stride=8).answer("Where?", text).text == "Oslo"


def test_answers_of_models_without_token_types(tokenizer, untyped):
    torch.manual_seed(0)
    config = QueryAttentionConfig(
        encoder=roberta_config(vocab_size=len(tokenizer), max_position_embeddings=40),
        sep_token_id=tokenizer.sep_token_id,
    )
    model = QueryAttentionForQuestionAnswering(config)
    answerer = QuestionAnswerer(model, untyped, stride=8)
    assert answerer.max_length == 38  # positions start after the id of padding
    assert "token_type_ids" not in pad_windows(windows("?", LONG, untyped, 38, 8), 0)
    for chosen in (answerer, QuestionAnswerer(model, tokenizer, stride=8)):
        found = chosen.answer("Where does Frida live?", LONG)
        assert found.text and LONG[found.start : found.end] == found.text
    bare = QueryAttentionForQuestionAnswering(QueryAttentionConfig(encoder=roberta_config(vocab_size=len(tokenizer))))
    with raises("ValueError: token_type_ids: expected a tensor if config.sep_token_id is None, got None"):
        QuestionAnswerer(bare, untyped, max_length=14, stride=1).answer("?", "It rains.")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.answer("", "Text."), "question: expected text, got ''"),
        (lambda a: a.answer("Where?", " \n"), r"context: expected text, got ' \\n'"),
        (lambda a: a.answer(None, "Text."), "question: expected text, got None"),
        (lambda a: a.answers("Where?", "Text.", 0), "count: expected at least 1, got 0"),
        (lambda a: a.answer("Where? " * 20, "Text."), r"max_length: expected more than 59 \(.*\), got 48\. Increase"),
    ],
)
def test_answers_bad_question_raises(tokenizer, call, message):
    with pytest.raises(InputError, match=message):
        call(QuestionAnswerer(Pointer({}, {}), tokenizer, stride=16))


@error_cases(
    {
        "InputError: max_length: expected at most 48, as many as the encoder has positions, got 49": {"max_length": 49},
        "InputError: max_answer_tokens: expected at least 1, got 0": {"max_answer_tokens": 0},
        "TypeError: max_length: expected an integer, got '8'": {"max_length": "8"},
        "TypeError: batch_size: expected an integer, got True": {"batch_size": True},
        "TypeError: model: expected a question-answering model, got NoneType": {"model": None},
        "InputError: tokenizer: expected a tokenizer of transformers, got NoneType": {"tokenizer": None},
    }
)
def test_answerer_bad_setting_raises(tokenizer, error, given):
    with raises(error):
        QuestionAnswerer(**{"model": Pointer({}, {}), "tokenizer": tokenizer} | given)


def test_answerer_bad_tokenizer_raises(tokenizer):
    with raises("InputError: stride: expected at least 0, got -1"):
        QuestionAnswerer(Pointer({}, {}), tokenizer, stride=-1).answer("?", "Text.")
    small = Pointer({}, {})
    small.words = nn.Embedding(10, 1)
    with raises(f"InputError: expected at most 10 tokens as in the model, got {len(tokenizer)}"):
        QuestionAnswerer(small, tokenizer)
    slow = SimpleNamespace(is_fast=False)
    with raises("InputError: tokenizer: expected a fast tokenizer, got SimpleNamespace"):
        windows("?", "Text.", slow, 40, 8)
    padless = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with raises("InputError: tokenizer: expected a pad_token, got none"):
        QuestionAnswerer(Pointer({}, {}), padless)
