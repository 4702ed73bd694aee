"""Word dropout: which words are hidden, how many, and in training only."""

from dataclasses import replace

import pytest
import torch
from errors import raises
from qacg_models import training
from qacg_models.data import load_data
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.augmentation import WordDropout
from qacg_models.training.trainer import AspectTrainer

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
    tiny = TrainingOptions(max_steps=3, batch_size=64, hidden_size=16, layers=1, heads=2, intermediate_size=32)
    dataset = load_data(small_data)
    training.train(dataset, tmp_path / "m", replace(tiny, word_dropout=0.5), say=lambda line: None)
    assert min(seen[True]) > 0.3 and max(seen[False]) < 0.1, "many in training, next to none in evaluation"
