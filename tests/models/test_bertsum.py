"""BertSum over an encoder against its formulas, and as a transformers model."""

import copy

import pytest
import torch
from encoders import FAMILIES, bert_config, build, roberta_config
from errors import error_cases, raises
from oracle import bertsum as oracle
from parity import check_outputs_and_gradients, double_leaves
from qacg_models import BertSumConfig, BertSumForExtractiveSummarization
from safetensors.torch import load_file, save_file

BATCH = {
    "input_ids": torch.tensor([[2, 7, 30, 3, 2, 9, 3, 2, 14, 3], [2, 9, 3, 2, 6, 5, 3, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1] * 10, [1] * 7 + [0] * 3]),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 0, 0, 0]]),
    "sentence_positions": torch.tensor([[0, 4, 7], [0, 3, -1]]),
}
LABELS = torch.tensor([[1, 0, 1], [0, 1, 0]])
SENTENCE = torch.tensor([[True, True, True], [True, True, False]])
FIRST_NORM = ("encoder.transformer_inter.0.layer_norm.weight", "encoder.transformer_inter.0.layer_norm.bias")


def config(encoder=None, **settings):
    return BertSumConfig(encoder=encoder or bert_config(), **{"heads": 2, "ff_size": 20, **settings})


def model(encoder=None, dtype=torch.float32, strong=True, **settings):
    m = build(BertSumForExtractiveSummarization, config(encoder, **settings), dtype, strong)
    m.encoder.pos_emb.reset_table()
    return m


@pytest.mark.parametrize(
    ("family", "dtype"), [("bert", torch.float32), ("electra", torch.float32), ("bert", torch.float64)]
)
@pytest.mark.parametrize("layers", [0, 2])
def test_bertsum_outputs_and_gradients_match_the_formulas(family, dtype, layers):
    m = model(FAMILIES[family](), dtype, inter_layers=layers)
    out = m(**BATCH, labels=LABELS, output_hidden_states=True)
    leaves = double_leaves(m)
    encoder = copy.deepcopy(m.bert).double()
    leaves.update({f"bert.{name}": p for name, p in encoder.named_parameters()})
    hidden = encoder(**{k: v for k, v in BATCH.items() if k != "sentence_positions"}).last_hidden_state
    vectors = torch.stack([h[[max(i, 0) for i in row]] for h, row in zip(hidden, BATCH["sentence_positions"].tolist())])
    exact = oracle.inter_encoder(oracle.below(leaves, "encoder."), vectors, SENTENCE, heads=2, layers=layers)
    outputs = {"loss": out.loss, "scores": out.scores, "logits": out.logits[SENTENCE]}
    expected = {
        "loss": oracle.sentence_loss(exact["logits"], LABELS, SENTENCE),
        "scores": exact["scores"],
        "logits": exact["logits"][SENTENCE],
    }
    check_outputs_and_gradients(m, outputs, leaves, expected, unused=FIRST_NORM if layers else (), roundings=2000)
    assert not out.scores[~SENTENCE].any()


def test_bertsum_trains_all_parameters_but_the_first_norm(tmp_path):
    built = model()
    built.save_pretrained(tmp_path)
    for m in (built, BertSumForExtractiveSummarization.from_pretrained(tmp_path)):
        m.train()(**BATCH, labels=LABELS).loss.backward()
        for name, p in m.named_parameters():
            assert (p.grad is None) == (name in FIRST_NORM), name
            assert p.requires_grad == (name not in FIRST_NORM), name


def test_bertsum_loss_ignores_unlabelled_sentences():
    m = model()
    some = LABELS.clone()
    some[0, 1:], some[1] = -100, -100
    expected = oracle.sentence_loss(m(**BATCH).logits, LABELS, some != -100)
    torch.testing.assert_close(m(**BATCH, labels=some).loss, expected)
    torch.testing.assert_close(m(**BATCH, labels=some.float()).loss, expected)
    assert m(**BATCH, labels=torch.full((2, 3), -100)).loss.item() == 0.0
    assert m(**BATCH).loss is None


def test_bertsum_returns_maps_of_the_encoder():
    m = model()
    with raises("ValueError: output_attentions: expected False with the encoder's attn_implementation 'sdpa', whic"):
        m(**BATCH, output_attentions=True)
    before = m(**BATCH).scores
    m.set_attn_implementation("eager")
    out = m(**BATCH, output_attentions=True)
    assert [t.shape for t in out.attentions] == [(2, 3, 10, 10)] * 2
    torch.testing.assert_close(out.scores, before)


def test_bertsum_blind_queries_option_is_saved(tmp_path):
    model(blind_queries="average").save_pretrained(tmp_path)
    for choice, expected in (({}, "average"), ({"blind_queries": "zeros"}, "zeros")):
        loaded = BertSumForExtractiveSummarization.from_pretrained(tmp_path, **choice)
        assert {layer.self_attn.blind_queries for layer in loaded.encoder.transformer_inter} == {expected}


def test_bertsum_missing_position_table_is_computed(tmp_path):
    m = model()
    m.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.pos_emb.pe"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    loaded, report = BertSumForExtractiveSummarization.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"encoder.pos_emb.pe"}
    torch.testing.assert_close(loaded.encoder.pos_emb.pe, m.encoder.pos_emb.pe)
    torch.testing.assert_close(loaded(**BATCH).scores, m(**BATCH).scores)


@error_cases(
    {
        "TypeError: sentence_positions: expected a torch.Tensor (B, S), got NoneType": {"sentence_positions": None},
        "ValueError: sentence_positions: expected 0 to 9, or -1 for padding, got values from 0 to 10": {
            "sentence_positions": torch.tensor([[0, 10], [0, 1]])
        },
        "ValueError: sentence_positions: expected 0 to 9, or -1 for padding, got values from -2 to 0": {
            "sentence_positions": torch.tensor([[0], [-2]])
        },
        "ValueError: labels: expected shape (B, S) = (2, 3), got shape (2, 4)": {"labels": torch.ones(2, 4)},
        "ValueError: labels: expected 0, 1 or -100, got other values": {"labels": torch.full((2, 3), 2)},
        "TypeError: labels: expected a torch.Tensor or None, got list": {"labels": [[1]]},
    },
)
def test_bertsum_bad_input_raises(error, given):
    with raises(error):
        model()(**{**BATCH, **given})


def test_bertsum_token_types_without_support_raise():
    m = model(roberta_config())
    plain = {k: v for k, v in BATCH.items() if k != "token_type_ids"}
    assert m(**plain).scores.shape == (2, 3)
    with raises(
        "ValueError: token_type_ids: expected None, since RobertaModel has at most one token type, got a tensor"
    ):
        m(**BATCH)
