"""Summaries: from a text to the selected sentences."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from encoders import bert_config, build, roberta_config
from errors import error_cases, raises
from qacg_models import BertSumConfig, BertSumForExtractiveSummarization, ExtractiveSummarizer
from qacg_models.sentiment.encoding import train_tokenizer
from qacg_models.tasks import document_batch, encode_document, select, trigrams
from qacg_models.utils.text import split_sentences

SENTENCES = [
    "The river rose in the night.",
    "A bridge was closed at once.",
    "In the night the river rose in the valley too.",
    "Schools stay open.",
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(SENTENCES * 3, vocab_size=300)


def summarizer(tokenizer, encoder=None, **settings):
    encoder = encoder or bert_config(vocab_size=len(tokenizer), max_position_embeddings=64)
    config = BertSumConfig(encoder=encoder, heads=2, ff_size=20, inter_layers=1)
    return ExtractiveSummarizer(build(BertSumForExtractiveSummarization, config).eval(), tokenizer, **settings)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("It cost 3.5 euro, e.g. here. Yes.", ["It cost 3.5 euro, e.g. here.", "Yes."]),
        ('He said "Go." Then he left.', ['He said "Go."', "Then he left."]),
        ("(Really?) “Quoted.” End.", ["(Really?)", "“Quoted.”", "End."]),
        ("A line\nbroken. Next\n\na title\n\nText.", ["A line broken.", "Next", "a title", "Text."]),
        ("Wait... what? Été. 12 of them.", ["Wait... what?", "Été.", "12 of them."]),
        ("The soup was great. the bill was awful.", ["The soup was great.", "the bill was awful."]),
        ("great!!! :) the bill", ["great!!!", ":) the bill"]),
        ("Great ! ! The bill. :)", ["Great ! !", "The bill. :)"]),
        ("Great! :)", ["Great! :)"]),
        ('"Great!" she said. it (the “soup”). too', ['"Great!" she said.', "it (the “soup”).", "too"]),
        ("so ... good, so... good", ["so ... good, so... good"]),
        ("approx. ten (incl. tax), e.g. at 3 p.m. or so", ["approx. ten (incl. tax), e.g. at 3 p.m. or so"]),
        ("gut, z.B. das Essen bzw. die Suppe usw. und", ["gut, z.B. das Essen bzw. die Suppe usw. und"]),
        ("Все хорошо. Спасибо.", ["Все хорошо.", "Спасибо."]),
        ("很好。服务太差了！！真的？“是。”好", ["很好。", "服务太差了！！", "真的？", "“是。”", "好"]),
        ("e.g.\n\nthe soup", ["e.g.", "the soup"]),
        ("  \n ", []),
    ],
)
def test_split_sentences_finds_the_boundaries(text, expected):
    assert split_sentences(text) == expected


def test_select_keeps_the_order_of_the_text():
    scores = [0.2, 0.9, 0.1, 0.8]
    assert select(SENTENCES, scores, 1) == [1]
    assert select(SENTENCES, scores, 2) == [1, 3]
    assert select(SENTENCES, scores, 9, block_trigrams=False) == [0, 1, 2, 3]
    assert select(SENTENCES, [0.5] * 4, 2) == [0, 1]


def test_select_blocks_repeated_trigrams():
    assert trigrams("The river, rose: in") == {("the", "river", "rose"), ("river", "rose", "in")}
    assert trigrams("Two words") == set()
    scores = [0.8, 0.1, 0.9, 0.2]
    assert select(SENTENCES, scores, 2) == [2, 3]  # sentence 0 repeats "the river rose" of sentence 2
    assert select(SENTENCES, scores, 2, block_trigrams=False) == [0, 2]
    assert select(SENTENCES, scores, 4) == [1, 2, 3]
    assert select(["A b.", "A b."], [0.9, 0.8], 2) == [0, 1]  # no trigram, nothing to block


def test_encode_document_matches_a_worked_example(tokenizer):
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    read = encode_document(SENTENCES, tokenizer, 64)
    assert len(read.positions) == 4 and len(read.input_ids) == len(read.token_type_ids)
    assert [i for i, token in enumerate(read.input_ids) if token == cls] == read.positions
    ends = [i for i, token in enumerate(read.input_ids) if token == sep]
    assert ends == [*(p - 1 for p in read.positions[1:]), len(read.input_ids) - 1]
    for i, (first, last) in enumerate(zip(read.positions, ends)):
        assert set(read.token_type_ids[first : last + 1]) == {i % 2}
        words = tokenizer(SENTENCES[i], add_special_tokens=False)["input_ids"]
        assert read.input_ids[first + 1 : last] == words
    two = encode_document(SENTENCES, tokenizer, read.positions[2] + 3)
    assert two.input_ids == read.input_ids[: read.positions[2]] and two.positions == read.positions[:2]
    cut = encode_document(SENTENCES, tokenizer, 5)
    assert cut.input_ids == [*read.input_ids[:4], sep] and cut.positions == [0]


def test_summary_has_the_best_encoded_sentences(tokenizer):
    s = summarizer(tokenizer)
    summary = s.summarize(" ".join(SENTENCES), count=2, block_trigrams=False)
    model = s.model
    scores = model(**document_batch(encode_document(SENTENCES, tokenizer, 64))).scores[0].tolist()
    assert summary.scores == pytest.approx(scores)
    assert summary.indices == sorted(sorted(range(4), key=lambda i: -scores[i])[:2])
    assert summary.sentences == [SENTENCES[i] for i in summary.indices]
    assert summary.text == " ".join(summary.sentences) and summary.unread == 0
    assert s.summarize(SENTENCES, count=2, block_trigrams=False) == summary
    model.train()
    assert s.summarize(SENTENCES, count=2, block_trigrams=False) == summary  # dropout stays off
    assert model.training


def test_summarizer_accepts_compiled_models_and_arrays(tokenizer):
    s = summarizer(tokenizer)
    expected = s.summarize(SENTENCES, count=2)
    compiled = ExtractiveSummarizer(torch.compile(s.model, backend="eager"), tokenizer, max_length=s.max_length)
    assert compiled.max_length == s.max_length
    assert s.summarize(np.array(SENTENCES, dtype=object), count=2) == expected


def test_summary_counts_unread_sentences(tokenizer):
    short = bert_config(vocab_size=len(tokenizer), max_position_embeddings=24)
    summary = summarizer(tokenizer, short).summarize(SENTENCES * 3, count=3)
    assert len(summary.scores) + summary.unread == 12 and summary.unread > 8
    assert max(summary.indices) < len(summary.scores)


def test_summarizer_of_an_encoder_without_token_types(tokenizer):
    encoder = roberta_config(vocab_size=len(tokenizer), max_position_embeddings=40)
    s = summarizer(tokenizer, encoder)
    assert s.max_length == 38
    assert s.summarize(SENTENCES, count=1).text in SENTENCES


@error_cases(
    {
        "InputError: sentences: expected a list of at least one sentence, got []": lambda s: s.summarize(""),
        "InputError: sentences[1]: expected text, got ' '": lambda s: s.summarize(["One.", " "]),
        "ValueError: count: expected at least 1, got 0": lambda s: s.summarize(SENTENCES, count=0),
        "TypeError: count: expected an integer, got 1.5": lambda s: s.summarize(SENTENCES, count=1.5),
        "TypeError: document: expected text or a list of sentences, got NoneType": lambda s: s.summarize(None),
        "TypeError: model: expected a BertSumForExtractiveSummarization, got NoneType": lambda s: ExtractiveSummarizer(
            None, s.tokenizer
        ),
        "InputError: tokenizer: expected a tokenizer of transformers, got NoneType": lambda s: ExtractiveSummarizer(
            s.model, None
        ),
        "InputError: sentences: expected a list of ..., got 'One": lambda s: encode_document("One.", s.tokenizer, 9),
        "InputError: max_length: expected at least 3, ..., got 2": lambda s: encode_document(["One."], s.tokenizer, 2),
        "InputError: max_length: expected at most 64, as many as the encoder has positions, got 65": lambda s: (
            ExtractiveSummarizer(s.model, s.tokenizer, max_length=65)
        ),
        "InputError: tokenizer: expected a cls_token and a sep_token": lambda s: encode_document(
            ["One."], SimpleNamespace(cls_token_id=None, sep_token_id=1), 9
        ),
    },
)
def test_summarizer_bad_input_raises(tokenizer, error, given):
    with raises(error):
        given(summarizer(tokenizer))
