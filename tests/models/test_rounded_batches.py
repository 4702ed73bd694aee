"""Filler that rounds the number of tokens of a packed batch where new shapes are slow."""

import pytest
import torch
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
)
from qacg_models.layers import batch as encoder_batch
from qacg_models.models.bert import BertForSequenceClassification

SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
    "num_labels": 3,
}
CONTEXT = {"contexts": 4, "context_standalone": True}
MODELS = {
    "bert": (BertForSequenceClassification, PlainBertConfig, {}),
    "qacg-bert": (QACGBertForSequenceClassification, QACGBertConfig, CONTEXT | {"context_from_layer": 1}),
    "qacg-bert last layer": (QACGBertForSequenceClassification, QACGBertConfig, CONTEXT | {"context_from_layer": 2}),
    "aspect-bert": (AspectBertForSequenceClassification, AspectBertConfig, CONTEXT | {"context_from_layer": 1}),
    "cg-bert": (CGBertForSequenceClassification, CGBertConfig, CONTEXT | {"context_from_layer": 1}),
}
LENGTHS = [31, 9, 17, 2, 26, 38]  # 123 tokens: filler of 1; 213 of the questions below: filler of 3
TEXT_IDS = torch.tensor([0, 0, 5, 2, 1, 4, 4, 3, 1])


def built(name, **fields):
    kind, config, own = MODELS[name]
    torch.manual_seed(0)
    return strengthen(kind(config(**SIZES, **own, **fields))).eval()


def batch(name, padded):
    rows = [torch.randint(5, 50, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    context = {} if name == "bert" else {"context_ids": torch.arange(len(TEXT_IDS)) % 4, "text_ids": TEXT_IDS}
    if padded:
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long()} | context
    ends = torch.tensor([0, *LENGTHS]).cumsum(0)
    return {"input_ids": torch.cat(rows), "cu_seqlens": ends, "max_seqlen": max(LENGTHS)} | context


@pytest.fixture
def rounding(monkeypatch):
    """Rounds every batch, whatever its dtype; lists the number of tokens in filler of each batch that is rounded."""
    fillers = []
    rounded = encoder_batch.EncoderBatch.rounded

    def recorded(self):
        found = rounded(self)
        fillers.append(found.filler)
        return found

    monkeypatch.setattr(encoder_batch.EncoderBatch, "rounded", recorded)
    monkeypatch.setattr(encoder_batch, "rounding_pays", lambda device: True)
    return fillers


@pytest.mark.parametrize("padded", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("name", MODELS)
def test_rounding_changes_no_output(name, padded, request):
    model, inputs = built(name, unpad=True).double(), batch(name, padded)
    gates = {} if name in ("bert", "aspect-bert") else {"output_gates": True}
    requested = {"output_hidden_states": True} | gates
    with torch.no_grad():
        expected = [model(**inputs), model(**inputs, **requested)]
        fillers = request.getfixturevalue("rounding")
        found = [model(**inputs), model(**inputs, **requested)]
    assert fillers == [1, 1] if name == "bert" else [1, 3, 1, 3]
    for one, other in zip(found, expected):
        assert one.keys() == other.keys()
        for field in one:
            pairs = [(one[field], other[field])] if field == "logits" else zip(one[field], other[field])
            for x, y in pairs:
                assert x.shape == y.shape
                assert torch.allclose(x, y, atol=1e-9), field


@pytest.mark.parametrize("name", MODELS)
def test_rounding_changes_no_gradient(name, request):
    inputs, gradients = batch(name, padded=False), []
    labels = torch.arange(len(LENGTHS if name == "bert" else TEXT_IDS)) % 3
    for rounds in (False, True):
        if rounds:
            request.getfixturevalue("rounding")
        model = built(name).double()
        model(**inputs, labels=labels).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for parameter, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][parameter], atol=1e-9), parameter


def test_filler_is_in_sequences_no_longer_than_the_longest(rounding):
    model, lengths = built("bert"), [3] * 171
    ends = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.arange(513) % 40 + 5
    with torch.no_grad():
        found = model(input_ids=ids, cu_seqlens=ends, max_seqlen=3)
    assert rounding == [31]
    assert found.logits.shape == (171, 3)


def test_batches_are_rounded_for_bfloat16_autocast_only():
    model, inputs, tokens = built("qacg-bert"), batch("qacg-bert", padded=False), []
    model.bert.encoder.layer[0].register_forward_hook(lambda module, args, out: tokens.append(args[0].shape[0]))
    with torch.no_grad():
        model(**inputs)
        with torch.autocast("cpu", torch.bfloat16):
            model(**inputs)
            model(**inputs, output_attentions=True)
    assert tokens == [123, 124, 123], "maps are returned for every sequence, so a call for them has no filler"
