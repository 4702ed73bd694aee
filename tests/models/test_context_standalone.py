"""Models with the aspect as a context id only: input `[CLS] sentence [SEP]`, probabilities and maps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from errors import raises
from oracle import classifiers as oracle
from parity import strengthen
from qacg_models import QACGBertConfig, QACGBertForSequenceClassification
from qacg_models.sentiment.encoding import train_tokenizer
from qacg_models.sentiment.example import SENTIHOOD, Example
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.report.analysis import example_maps
from qacg_models.sentiment.trained_model import TrainedModel, predict_logits, probabilities_of
from untrained import record_of

NAMES = ["location - 1 - price", "location - 1 - safety"]
RECORD = replace(record_of(SENTIHOOD, ["location - 1"], TrainingOptions().resolved()), max_length=32)
SENTENCES = ["location - 1 is cheap but dark at night", "location - 1 feels safe"]


ROWS = [
    Example(str(i), sentence, name, "location - 1", name.rpartition(" - ")[2], 0, 2)
    for i, sentence in enumerate(SENTENCES)
    for name in NAMES
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*SENTENCES, *NAMES] * 2, vocab_size=200)


def model(tokenizer, folder, standalone):
    """A model that was saved and loaded, so that the option comes from the file."""
    config = QACGBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=32,
        num_labels=3,
        contexts=NAMES,
        context_standalone=standalone,
    )
    strengthen(QACGBertForSequenceClassification(config)).save_pretrained(folder)
    return QACGBertForSequenceClassification.from_pretrained(folder)


@pytest.mark.parametrize("standalone", [True, False])
def test_standalone_input_and_probabilities_match_formulas(standalone, tokenizer, tmp_path):
    found = model(tokenizer, tmp_path, standalone)
    assert found.config.context_standalone is standalone
    read = []
    found.register_forward_pre_hook(lambda m, args, kwargs: read.append(kwargs), with_kwargs=True)
    probabilities = probabilities_of(predict_logits(found, tokenizer, ROWS, max_length=32, batch_size=1))
    seen = {}
    for batch in read:
        # A batch of one row has the same tokens, padded or packed.
        ids, types = batch["input_ids"].reshape(1, -1), batch["token_type_ids"].reshape(1, -1)
        tokens = tokenizer.convert_ids_to_tokens(ids[0])
        first = tokens.index("[SEP]") + 1
        name = NAMES[int(batch["context_ids"])]
        expected = [] if standalone else [*tokenizer.tokenize(name), "[SEP]"]
        assert tokens[0] == "[CLS]" and tokens[first:] == expected
        assert types[0].tolist() == [0] * first + [1] * len(expected)
        exact = oracle.outputs(
            {key: p.detach().double() for key, p in found.named_parameters()},
            found.config,
            {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": types}
            | {"context_ids": batch["context_ids"]},
        )
        seen[tuple(tokens[1 : first - 1]), name] = exact["logits"][0].softmax(-1).numpy()
    assert (len(seen), len(ROWS)) == (4, 4)
    for row, found_row in zip(ROWS, probabilities):
        expected = seen[tuple(tokenizer.tokenize(row.sentence)), row.context]
        np.testing.assert_allclose(found_row, expected, rtol=1e-4, atol=1e-5)
    # The context id matters: the same sentence has another prediction for the other aspect.
    assert np.abs(probabilities[0] - probabilities[1]).max() > 1e-3


def test_standalone_first_softmax_map_ignores_the_aspect(tokenizer, tmp_path):
    trained = TrainedModel(model(tokenizer, tmp_path, True), tokenizer, RECORD)
    price, safety = (example_maps(trained, row) for row in ROWS[:2])
    assert price.tokens == ["[CLS]", *tokenizer.tokenize(SENTENCES[0]), "[SEP]"]
    assert safety.tokens == ["[CLS]", *tokenizer.tokenize(SENTENCES[0]), "[SEP]"]
    np.testing.assert_array_equal(price.softmax[0], safety.softmax[0])
    assert np.abs(price.quasi[0] - safety.quasi[0]).max() > 1e-3
    assert np.abs(price.softmax[1] - safety.softmax[1]).max() > 1e-4


def test_standalone_batch_equals_single_rows(tokenizer, tmp_path):
    found = model(tokenizer, tmp_path, True)
    batched = probabilities_of(predict_logits(found, tokenizer, ROWS, max_length=32, batch_size=4))
    single = probabilities_of(predict_logits(found, tokenizer, ROWS, max_length=32, batch_size=1))
    np.testing.assert_allclose(batched, single, rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        inputs = tokenizer([SENTENCES[0]] * 2, return_tensors="pt")
        logits = found(**inputs, context_ids=torch.tensor([0, 1])).logits
    np.testing.assert_allclose(logits.double().softmax(-1).numpy(), single[:2], rtol=1e-4, atol=1e-6)


def test_standalone_model_of_a_sentence_pair_raises(tokenizer, tmp_path):
    found, context = model(tokenizer, tmp_path / "alone", True), torch.tensor([0])
    pair = tokenizer(SENTENCES[0], NAMES[0], return_tensors="pt")
    packed = {name: pair[name][0] for name in ("input_ids", "token_type_ids")}
    offsets = torch.tensor([0, len(packed["input_ids"])])
    for batch in (dict(pair), packed | {"cu_seqlens": offsets, "max_seqlen": int(offsets[1])}):
        with raises("ValueError: token_type_ids: expected 0 for all tokens, since config.context_standalone is True"):
            found(**batch, context_ids=context)
    found(**tokenizer(SENTENCES[0], return_tensors="pt"), context_ids=context)
    model(tokenizer, tmp_path / "pairs", False)(**pair, context_ids=context)
