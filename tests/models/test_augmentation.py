"""Joined texts and word dropout: which texts are joined, which words are hidden, and when."""

from dataclasses import replace

import pytest
import torch
from errors import raises
from model_sizes import SMALL
from qacg_models import training
from qacg_models.data import Example, load_data
from qacg_models.data.tokenization import Encoding, FeatureTable, train_tokenizer
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.augmentation import JoinedTexts, WordDropout
from qacg_models.training.resolve_options import resolve_options
from qacg_models.training.sampling import EpochSampler
from qacg_models.training.trainer import AspectTrainer

ASPECTS = ("food", "price")
ROWS = [
    Example(str(number), text, aspect, "", aspect, label, number + 2)
    for number, (text, aspect, label) in enumerate(
        [
            ("a fine soup", "food", 1),
            ("a fine soup", "price", 0),
            ("the bill was a shock", "food", 0),
            ("the bill was a shock", "price", 2),
            ("we came by bus", "food", 0),
            ("we came by bus", "price", 2),
        ]
    )
]


def features(standalone, rows=ROWS):
    tokenizer = train_tokenizer([row.sentence for row in ROWS] * 2 + [*ASPECTS] * 2, 200)
    encoding = Encoding(tokenizer, ASPECTS, 64, standalone)
    return FeatureTable(rows, encoding), encoding


@pytest.mark.parametrize("standalone", [True, False])
def test_joined_pair_equals_one_text_of_both(tmp_path, standalone):
    table, _ = features(standalone)
    joined = JoinedTexts(table, 0.5, 64)
    (tmp_path / "whole").mkdir()
    expected = [("a fine soup we came by bus", 0, 4, 1), ("we came by bus a fine soup", 4, 0, 1)]
    expected += [("the bill was a shock we came by bus", 2, 4, 0), ("a fine soup the bill was a shock", 1, 3, 2)]
    whole = [replace(ROWS[a], sentence=text, label=label) for text, a, _, label in expected]
    whole_table, _ = features(standalone, whole)
    assert [joined[a, b] for _, a, b, _ in expected] == list(whole_table)
    assert [joined[number] for number in range(len(joined))] == list(table)
    most = len(joined[0, 4]["input_ids"])
    assert JoinedTexts(table, 0.5, most)[0, 4] == joined[0, 4]
    short = JoinedTexts(table, 0.5, most - 1)
    assert short[0, 4] == table[0], "the one with an opinion stays"
    assert short[4, 0] == table[0], "the one with an opinion stays"


def test_without_rows_without_an_opinion_none_is_joined(tmp_path):
    table, _ = features(True, [row for row in ROWS if row.label])
    drawn = torch.arange(len(table)).repeat(20)
    assert list(JoinedTexts(table, 0.9, 64).pairs(drawn, torch.Generator())) == drawn.tolist()


def test_joined_texts_pairs_rows_without_an_opinion(tmp_path):
    table, _ = features(True)
    drawn = torch.arange(6).repeat(2000)
    keys = list(JoinedTexts(table, 0.3, 64).pairs(drawn, torch.Generator().manual_seed(0)))
    pairs = [(row, key) for row, key in zip(drawn.tolist(), keys) if isinstance(key, tuple)]
    assert len(pairs) / len(keys) == pytest.approx(0.3, abs=0.02)
    assert all(key == row for row, key in zip(drawn.tolist(), keys) if not isinstance(key, tuple))
    partners = {row: {a if b == row else b for other, (a, b) in pairs if other == row} for row in range(6)}
    # Food rows 2 and 4 and price row 1 have no opinion; row 1 may be joined with itself.
    assert partners == {0: {2, 4}, 2: {2, 4}, 4: {2, 4}, 1: {1}, 3: {1}, 5: {1}}
    assert sum(key[0] == row for row, key in pairs if row in (0, 3, 5)) / len(pairs) == pytest.approx(0.25, abs=0.02)


def test_joined_texts_without_absent_rows_stay_single(tmp_path):
    rows = [row for row in ROWS if row.aspect == "food" or row.label]
    table, _ = features(True, rows)
    keys = list(JoinedTexts(table, 0.9, 64).pairs(torch.arange(len(rows)).repeat(50), torch.Generator().manual_seed(0)))
    single = {key for key in keys if not isinstance(key, tuple)}
    assert {row for row in range(len(rows)) if rows[row].aspect == "price"} <= single
    assert all(rows[number].aspect == "food" for key in keys if isinstance(key, tuple) for number in key)


def test_joined_texts_depend_on_the_epoch(tmp_path):
    table, _ = features(True)
    sampler = EpochSampler(table.labels, 0.3, 0, JoinedTexts(table, 0.5, 64))
    first = [list(sampler) for _ in range(2)]
    sampler.epoch = 1
    assert first[0] == first[1]
    assert first[0] != list(sampler)
    assert len(first[0]) == len(sampler)


def test_joined_texts_default_from_scratch(small_data):
    data = load_data(small_data)
    assert resolve_options(TrainingOptions(), data).join_texts == 0.5
    assert resolve_options(TrainingOptions(epochs=1), data).join_texts == 0
    assert resolve_options(TrainingOptions(model="bert"), data).join_texts == 0
    always = replace(data, task=replace(data.task, has_absent=False))
    assert resolve_options(TrainingOptions(), always).join_texts == 0
    with raises("InputError: join_texts: expected 0 for data without a label for 'no opinion', got 0.2."):
        resolve_options(TrainingOptions(join_texts=0.2), always)
    with raises("InputError: join_texts: expected none for the model 'bert'"):
        TrainingOptions(model="bert", join_texts=0.2)
    with raises("InputError: join_texts: expected a number in [0, 1), got 1"):
        TrainingOptions(join_texts=1.0)


UNKNOWN, SPECIAL = 1, (0, 1, 2, 3)


def test_word_dropout_hides_words_of_the_first_segment():
    torch.manual_seed(0)
    pieces = torch.randint(0, 50, (40, 200))
    types = (torch.arange(200) >= 150).long().expand(40, 200)
    batch = {"input_ids": pieces, "token_type_ids": types, "labels": torch.zeros(40)}
    found = WordDropout(0.25, UNKNOWN, SPECIAL)(batch)
    changed = found["input_ids"] != pieces
    may = (types == 0) & (pieces > 3)
    assert (found["input_ids"][changed] == UNKNOWN).all() and not changed[~may].any()
    assert changed[may].float().mean() == pytest.approx(0.25, abs=0.02)
    assert found["labels"] is batch["labels"] and WordDropout(0.0, None, SPECIAL)(batch) is batch
    with raises("InputError: word_dropout: expected 0 for a tokenizer without an unknown token, got 0.1"):
        WordDropout(0.1, None, SPECIAL)
    with raises("InputError: word_dropout: expected a number in [0, 1), got 1"):
        TrainingOptions(word_dropout=1.0)


@pytest.mark.full
def test_word_dropout_is_off_in_evaluation(small_data, tmp_path, monkeypatch):
    seen = {True: [], False: []}
    plain = AspectTrainer.compute_loss

    def spy(self, model, inputs, *args, **kwargs):
        seen[model.training].append((inputs["input_ids"] == 1).float().mean().item())  # the share of [UNK]
        return plain(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(AspectTrainer, "compute_loss", spy)
    tiny = TrainingOptions(max_steps=3, batch_size=64, **SMALL)
    dataset = load_data(small_data)
    training.train(dataset, tmp_path / "m", replace(tiny, word_dropout=0.5), say=lambda line: None)
    assert min(seen[True]) > 0.3 and max(seen[False]) < 0.1, "many in training, next to none in evaluation"
