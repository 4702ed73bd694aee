"""Models that read the aspect from a later layer on, so that the layers before it run once per text."""

import numpy as np
import pytest
import torch
from errors import raises
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    AspectSentiment,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    fold_context,
)
from qacg_models.layers import batch as encoder_batch
from qacg_models.layers.attention import QuasiSelfAttention
from qacg_models.models.bert import BertForSequenceClassification
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.encoding import PackingCollator, PaddingCollator
from qacg_models.sentiment.export import trace
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.trained_model import load_trained, predict_logits
from qacg_models.sentiment.training import train
from qacg_models.sentiment.training.rows import EpochSampler
from untrained import OWN, write_model

KINDS = {
    "aspect-bert": (AspectBertConfig, AspectBertForSequenceClassification),
    "qacg-bert": (QACGBertConfig, QACGBertForSequenceClassification),
    "cg-bert": (CGBertConfig, CGBertForSequenceClassification),
}
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 16,
    "num_labels": 3,
}
TEXT_IDS = torch.tensor([0, 0, 1, 2, 1, 1])
CONTEXT_IDS = torch.tensor([0, 1, 2, 3, 4, 0])


def built(kind, layer, **fields):
    config, model = KINDS.get(kind, (PlainBertConfig, BertForSequenceClassification))
    contexts = {"contexts": 5, "context_standalone": True, "context_from_layer": layer} if kind in KINDS else {}
    return strengthen(model(config(**SIZES | contexts | fields))).eval()


def texts():
    """Three texts of 7, 4 and 7 tokens, padded."""
    ids = torch.randint(5, 50, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 4:] = 0
    return ids, mask


def packed(ids, mask):
    lengths = mask.sum(1)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    return {"input_ids": ids[mask.bool()], "cu_seqlens": cu_seqlens, "max_seqlen": int(lengths.max())}


@pytest.mark.parametrize("unpad", [True, False], ids=["unpadded", "padded"])
@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_shared_texts_give_the_outputs_of_repeated_ones(kind, layer, unpad):
    model, (ids, mask) = built(kind, layer, unpad=unpad), texts()
    every = {"output_attentions": True, "output_gates": kind != "aspect-bert", "output_hidden_states": True}
    for options in ({}, every):
        with torch.no_grad():
            shared = model(ids, mask, context_ids=CONTEXT_IDS, text_ids=TEXT_IDS, **options)
            repeated = model(ids[TEXT_IDS], mask[TEXT_IDS], context_ids=CONTEXT_IDS, **options)
            packs = model(**packed(ids, mask), context_ids=CONTEXT_IDS, text_ids=TEXT_IDS, **options)
        assert shared.keys() == repeated.keys() == packs.keys()
        assert torch.allclose(packs.logits, shared.logits, atol=1e-5)
        for name in shared:
            pairs = [(shared[name], repeated[name])] if name == "logits" else list(zip(shared[name], repeated[name]))
            assert len(pairs) == {"logits": 1, "hidden_states": 4}.get(name, 3)
            for one, other in pairs:
                assert one.shape == other.shape
                assert torch.allclose(one, other, atol=1e-5), name


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("batch", ["padded", "packed"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_shared_texts_are_sums(kind, batch, layer):
    (ids, mask), labels, gradients = texts(), torch.tensor([0, 1, 2, 0, 1, 2]), []
    for shares in (True, False):
        model = built(kind, layer).double()
        texts_of_batch = {"text_ids": TEXT_IDS} if shares else {}
        rows = slice(None) if shares else TEXT_IDS
        inputs = {"input_ids": ids[rows], "attention_mask": mask[rows]}
        if shares and batch == "packed":
            inputs = packed(ids, mask)
        model(**inputs, context_ids=CONTEXT_IDS, labels=labels, **texts_of_batch).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-9), name
    assert gradients[0]["bert.encoder.layer.0.attention.self.query.weight"].abs().max() > 0


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("projection", ["hidden", "head"])
@pytest.mark.parametrize("bias", [0.0, 0.7, "-log(keys)"])
def test_first_tokens_of_texts_follow_the_equations(bias, projection, layer, monkeypatch):
    fields = {"quasi_bias": bias, "context_projection": projection, "lambda_per_head": True, "lambda_bias": True}
    model, (ids, mask) = built("qacg-bert", layer, **fields), texts()
    queries = []
    attend = QuasiSelfAttention._attend_from_first
    monkeypatch.setattr(
        QuasiSelfAttention,
        "_attend_from_first",
        lambda module, heads, *given: (queries.append(heads.first[0].shape), attend(module, heads, *given))[1],
    )
    with torch.no_grad():
        if projection == "head":
            fold_context(model)  # without the fold, the layers are called, and all tokens attend
        fused = model(**packed(ids, mask), context_ids=CONTEXT_IDS, text_ids=TEXT_IDS).logits
        model.set_attn_implementation("eager")
        eager = model(ids[TEXT_IDS], mask[TEXT_IDS], context_ids=CONTEXT_IDS).logits
    assert torch.allclose(fused, eager, atol=1e-5)
    assert queries == [(6, 1, 2, 12)], "the last layer has one query for each sequence"


def test_short_texts_are_not_padded_to_a_long_one(monkeypatch):
    model, lengths = built("qacg-bert", 2), [16, 2, 3, 2, 2]  # 16 times 5 padded keys for 25
    batch = {"input_ids": torch.arange(25) + 5, "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0), "max_seqlen": 16}
    context_ids = torch.arange(5)
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**batch, context_ids=context_ids).logits
        model.set_attn_implementation("fused")
        monkeypatch.setattr(QuasiSelfAttention, "_attend_from_first", None)
        assert torch.allclose(model(**batch, context_ids=context_ids).logits, expected, atol=1e-5)


def test_gradients_of_first_tokens_equal_those_of_all_tokens(monkeypatch):
    model, (ids, mask) = built("qacg-bert", 2).double(), texts()
    gradients = []
    for attends in (True, False):
        if not attends:
            monkeypatch.setattr(QuasiSelfAttention, "attends_from_first", lambda *_: False)
        model.zero_grad()
        model(**packed(ids, mask), context_ids=CONTEXT_IDS, text_ids=TEXT_IDS).logits.sum().backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.allclose(gradient, gradients[1][name], atol=1e-9), name


LENGTHS = [31, 9, 17, 2, 26, 38]  # 123 tokens: filler of 1; 213 of the questions below: filler of 3
QUESTIONS = {"context_ids": torch.arange(9) % 4, "text_ids": torch.tensor([0, 0, 5, 2, 1, 4, 4, 3, 1])}
ROUNDED = [("bert", 0), ("qacg-bert", 1), ("qacg-bert", 2), ("aspect-bert", 1), ("cg-bert", 1)]


def long_batch(kind, pads):
    rows = [torch.randint(5, 50, (length,), generator=torch.Generator().manual_seed(length)) for length in LENGTHS]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = (ids > 0).long()
    inputs = {"input_ids": ids, "attention_mask": mask} if pads else packed(ids, mask)
    return inputs | (QUESTIONS if kind in KINDS else {})


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


@pytest.mark.parametrize("pads", [False, True], ids=["packed", "padded"])
@pytest.mark.parametrize("kind, layer", ROUNDED)
def test_rounding_changes_no_output_and_gradient(kind, layer, pads, request):
    model = built(kind, layer, max_position_embeddings=40, unpad=True).double()
    inputs = long_batch(kind, pads)
    labels = torch.arange(len(LENGTHS if kind == "bert" else QUESTIONS["text_ids"])) % 3
    requested = {"output_hidden_states": True} | ({"output_gates": True} if kind in ("qacg-bert", "cg-bert") else {})
    found = []
    for rounds in (False, True):
        fillers = request.getfixturevalue("rounding") if rounds else []
        model.zero_grad()
        out = model(**inputs, labels=labels)
        out.loss.backward()
        every = model(**inputs, **requested)
        found.append([out.logits, *(t for name in requested for t in every[NAMES.get((kind, name), "hidden_states")])])
        found[-1] += [p.grad.clone() for p in model.parameters()]
    assert fillers == ([1, 1] if kind == "bert" else [1, 3, 1, 3])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)


NAMES = {("qacg-bert", "output_gates"): "lambdas", ("cg-bert", "output_gates"): "query_gates"}


def test_filler_is_in_sequences_no_longer_than_the_longest(rounding):
    ends = torch.tensor([0, *[3] * 171]).cumsum(0)
    with torch.no_grad():
        found = built("bert", 0)(input_ids=torch.arange(513) % 40 + 5, cu_seqlens=ends, max_seqlen=3)
    assert rounding == [31]
    assert found.logits.shape == (171, 3)


def test_batches_are_rounded_for_bfloat16_autocast_only():
    model, inputs, tokens = built("qacg-bert", 1, max_position_embeddings=40), long_batch("qacg-bert", False), []
    model.bert.encoder.layer[0].register_forward_hook(lambda module, args, out: tokens.append(args[0].shape[0]))
    with torch.no_grad():
        model(**inputs)
        with torch.autocast("cpu", torch.bfloat16):
            model(**inputs)
            model(**inputs, output_attentions=True)
    assert tokens == [123, 124, 123], "maps are returned for every sequence, so a call for them has no filler"


def test_projections_run_once_for_each_text():
    model, seen = built("qacg-bert", 1), []
    for layer in model.bert.encoder.layer:
        layer.attention.self.value.register_forward_hook(lambda module, args, out: seen.append(args[0].shape[0]))
    ids, mask = texts()
    model(**packed(ids, mask), context_ids=CONTEXT_IDS, text_ids=TEXT_IDS)
    assert seen == [18, 18, 7 + 7 + 4 + 7 + 4 + 4], "tokens of three texts, and in the last layer of six questions"


def test_a_text_without_tokens_has_the_same_answer():
    model, (ids, mask) = built("qacg-bert", 2), texts()
    batch = packed(ids, mask)
    batch["cu_seqlens"] = torch.cat([batch["cu_seqlens"], batch["cu_seqlens"][-1:]])
    empty = {"input_ids": ids[:1, :0].flatten(), "cu_seqlens": torch.tensor([0, 0]), "max_seqlen": 0}
    with torch.no_grad():
        found = model(**batch, context_ids=torch.tensor([3, 1]), text_ids=torch.tensor([3, 0])).logits
        alone = model(**empty, context_ids=torch.tensor([3])).logits
    assert torch.allclose(found[:1], alone, atol=1e-5)


def test_lower_layers_are_those_of_bert(tmp_path):
    bert = strengthen(BertForSequenceClassification(PlainBertConfig(**SIZES))).eval()
    bert.save_pretrained(tmp_path / "bert")
    options = {"contexts": 5, "context_standalone": True, "context_from_layer": 2}
    model, loading = QACGBertForSequenceClassification.from_pretrained(
        tmp_path / "bert", output_loading_info=True, **options
    )
    new = {name for name in loading["missing_keys"] if ".layer." in name or "context_layer" in name}
    assert new and all(".2." in name for name in new), "only the last layer has new parameters"
    ids, mask = texts()
    with torch.no_grad():
        states = bert(ids, mask, output_hidden_states=True).hidden_states
        found = model(ids, mask, context_ids=CONTEXT_IDS[:3], output_hidden_states=True).hidden_states
    for one, other in zip(states[:3], found[:3]):
        assert torch.allclose(one, other, atol=1e-5)
    model.save_pretrained(tmp_path / "model")
    again = QACGBertForSequenceClassification.from_pretrained(tmp_path / "model").eval()
    assert again.config.context_from_layer == 2
    assert torch.equal(
        again(ids, mask, context_ids=CONTEXT_IDS[:3]).logits, model(ids, mask, context_ids=CONTEXT_IDS[:3]).logits
    )


def test_folding_skips_layers_without_a_context():
    model, (ids, mask) = built("qacg-bert", 1), texts()
    with torch.inference_mode():
        before = model(ids, mask, context_ids=CONTEXT_IDS, text_ids=TEXT_IDS).logits
        assert fold_context(model) == 2
        assert torch.allclose(model(ids, mask, context_ids=CONTEXT_IDS, text_ids=TEXT_IDS).logits, before, atol=1e-5)


def test_wrong_text_ids_and_layers_are_named():
    model, (ids, mask) = built("qacg-bert", 1), texts()
    with raises("ValueError: text_ids: expected 0 to 2 (the number of texts is 3), got values from 0 to 3"):
        model(ids, mask, context_ids=CONTEXT_IDS, text_ids=TEXT_IDS + (TEXT_IDS == 2))
    with raises("TypeError: text_ids: expected a torch.Tensor, got list"):
        model(ids, mask, context_ids=CONTEXT_IDS, text_ids=[0])
    with raises("ValueError: text_ids: expected shape (N,), got shape (3, 1)"):
        model(ids, mask, context_ids=CONTEXT_IDS, text_ids=TEXT_IDS[:3, None])
    with raises("ValueError: context_ids: expected shape (6,), got shape (3,)"):
        model(ids, mask, context_ids=CONTEXT_IDS[:3], text_ids=TEXT_IDS)
    with raises("ValueError: num_tokens: expected 33, the tokens of the sequences of text_ids, got 35"):
        model(**packed(ids, mask), context_ids=CONTEXT_IDS, text_ids=TEXT_IDS, num_tokens=35)
    with raises("ValueError: num_tokens: expected None without text_ids and cu_seqlens, got 18. Omit it."):
        model(**packed(ids, mask), context_ids=CONTEXT_IDS[:3], num_tokens=18)
    with raises("ValueError: context_from_layer: expected less than 3, got 3"):
        built("cg-bert", 3)
    with raises("TypeError: context_from_layer: expected an integer, got True"):
        built("cg-bert", True)
    with raises("InputError: context_from_layer: expected none for the model 'bert', which cannot use it, got 1."):
        TrainingOptions(model="bert", context_from_layer=1)


FEATURES = [
    {"input_ids": [2, text, 3][: 2 + text % 2], "token_type_ids": [0] * (2 + text % 2), "labels": label}
    | {"context_ids": label + 1}
    for text, label in ((7, 0), (8, 1), (7, 2), (9, 0), (7, 1), (8, 0))
]


@pytest.mark.parametrize(
    "collate", [PackingCollator, lambda shares: PaddingCollator(0, shares)], ids=["packed", "padded"]
)
def test_batches_of_shared_texts(collate):
    shared, repeated = collate(True)(FEATURES), collate(False)(FEATURES)
    assert shared["text_ids"].tolist() == [0, 1, 0, 2, 0, 1]
    for name in ("labels", "context_ids"):
        assert torch.equal(shared[name], repeated[name])
    model = built("qacg-bert", 2)
    with torch.no_grad():
        expected = model(**repeated).logits
        assert torch.allclose(model(**shared).logits, expected, atol=1e-5)


@pytest.mark.parametrize("balance", [0.0, 0.5])
def test_rows_of_a_text_are_drawn_together(balance):
    texts_of_rows, labels = [0, 1, 0, 2, 2, 2, 1, 3], [0, 0, 0, 0, 1, 0, 0, 0]
    sampler = EpochSampler(labels, balance, seed=1, texts=texts_of_rows)
    rows = [[row for row, text in enumerate(texts_of_rows) if text == one] for one in range(4)]
    drawn = []
    for epoch in range(200):
        sampler.epoch = epoch
        order = [*sampler]
        assert len(order) == len(labels)
        drawn += order
        place = 0
        while place < len(order):
            whole = rows[texts_of_rows[order[place]]]
            assert order[place : place + len(whole)] == whole[: len(order) - place]
            place += len(whole)
    counts = np.bincount(drawn, minlength=8)
    assert (counts == 200).all() if not balance else counts[3] > 1.2 * counts[7], (
        "a text with a rare label is drawn more"
    )


def test_training_names_a_layer_that_does_not_exist(small_data, tmp_path):
    dataset = load_data(small_data, ("train", "dev"), DataOptions())
    checkpoint = str(write_model(tmp_path / "start", layers=2))
    for start in ({"from_checkpoint": "scratch", "layers": 2}, {"from_checkpoint": checkpoint}):
        options = TrainingOptions(max_steps=2, context_from_layer=2, **start)
        with raises("InputError: context_from_layer: expected 0 to 1, for a model of 2 layers, got 2."):
            train(dataset, tmp_path / "model", options, say=lambda line: None)


@pytest.fixture(scope="module")
def trained(small_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared") / "model"
    dataset = load_data(small_data, ("train", "dev"), DataOptions())
    options = TrainingOptions(
        from_checkpoint="scratch", max_steps=6, context_from_layer=1, batch_size=16, threads=1, join_texts=0.0
    )
    train(dataset, folder, options, say=lambda line: None)
    return folder, dataset


def test_training_and_prediction_share_texts(trained, monkeypatch):
    folder, dataset = trained
    model = load_trained(folder)
    assert model.model.config.shares_texts
    rows, sizes = dataset.splits["dev"], []
    model.model.bert.encoder.layer[0].register_forward_hook(lambda module, args, out: sizes.append(args[0].shape[0]))
    shared = model.logits(rows)
    tokens = sum(len(feature["input_ids"]) for feature in model.features(rows))
    assert sum(sizes) < tokens / 2, "dev has several questions about each text"
    apart = predict_logits(model.model, model.tokenizer, rows, model.record.max_length, batch_size=1)
    assert np.allclose(shared, apart, atol=1e-5)
    ask = AspectSentiment.from_pretrained(folder)
    row = rows[0]
    found = ask(row.sentence, targets=[row.target], aspects=[row.aspect])[0]
    expected = model.probabilities(rows[:1])[0]
    assert np.allclose(list(found.probabilities.values()), expected, atol=1e-4)


def test_exported_graph_of_a_shared_model(tmp_path):
    folder = write_model(tmp_path / "model", OWN, fields={"context_from_layer": 1, "context_standalone": True})
    model = load_trained(folder)
    program, (ids, mask) = trace(model).exported_program, texts()
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    contexts = torch.tensor([0, 1, 2])
    with torch.no_grad():
        expected = model.model(**inputs, context_ids=contexts).logits
        assert torch.allclose(program.module()(**inputs, context_ids=contexts).logits, expected, atol=1e-5)
