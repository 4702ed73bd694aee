"""Query Attention against its formulas over several encoders, and as a transformers model."""

import copy

import pytest
import torch
import transformers
from encoders import FAMILIES, SIZES, bert_config, build, roberta_config
from errors import error_cases, raises
from full_members import member
from oracle import query_attention as oracle
from parity import check_outputs_and_gradients, double_leaves
from qacg_models import (
    PlainBertConfig,
    QACGBertConfig,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from transformers import AutoConfig

SEP, PAD = 3, 0
BATCH = {
    "input_ids": torch.tensor([[2, 7, 30, SEP, 11, 9, 14, SEP], [2, 9, SEP, 5, 6, SEP, PAD, PAD]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]]),
}
LABELS = {
    "start_positions": torch.tensor([4, 3]),
    "end_positions": torch.tensor([5, 8]),  # the second is out of range
    "question_type": torch.tensor([5, 2]),
}
PUBLISHED = {"question_mean": "length", "attend_padding": True}
HEADS = {"linear": {"head": "linear"}, "convolutional": {"head": "convolutional", "conv_channels": 7}}


def config(encoder=None, **settings):
    return QueryAttentionConfig(encoder=encoder or bert_config(), sep_token_id=SEP, **settings)


def model(encoder=None, dtype=torch.float32, strong=True, **settings):
    return build(QueryAttentionForQuestionAnswering, config(encoder, **settings), dtype, strong)


def oracle_results(m, leaves, batch, labels=None):
    """Computes the head from its formulas, on a float64 copy of the encoder; adds its parameters to `leaves`."""
    encoder = copy.deepcopy(m.backbone).double()
    encoder.zero_grad()
    leaves.update({f"backbone.{name}": p for name, p in encoder.named_parameters()})
    inputs = {k: v for k, v in batch.items() if k != "token_type_ids" or m.takes_token_types}
    hidden = encoder(**inputs).last_hidden_state
    visible = batch["attention_mask"].bool()
    if m.config.attend_padding:
        visible = torch.ones_like(visible)
    mean = oracle.mean_as_published if m.config.question_mean == "length" else oracle.mean_of_the_question
    found = oracle.run(leaves, hidden, (batch["token_type_ids"] == 0) & visible, visible, mean)
    if labels is not None:
        weight = m.config.question_type_loss_weight
        found["loss"] = oracle.loss(found, *(t.tolist() for t in labels.values()), weight)
    return found


ENCODERS = [*((family, torch.float32) for family in FAMILIES), ("bert", torch.float64)]


@pytest.mark.parametrize(("family", "dtype"), ENCODERS, ids=lambda value: str(value).removeprefix("torch."))
@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
def test_query_attention_and_gradients_match_the_formulas(head, family, dtype):
    m = model(FAMILIES[family](), dtype, question_type_loss_weight=0.7, **head)
    out = m(**BATCH, **LABELS)
    leaves = double_leaves(m)
    exact = oracle_results(m, leaves, BATCH, LABELS)
    outputs = {name: out[name] for name in exact}
    assert set(outputs) == set(out.keys())
    unread = [n for n, p in m.named_parameters() if n.startswith("backbone.") and not _is_read(m, n)]
    check_outputs_and_gradients(m, outputs, leaves, exact, unused=unread, roundings=400)


EACH = [PUBLISHED, {"question_mean": "length"}, {"attend_padding": True}]
CHOSEN = [
    member(
        choice,
        implementation,
        id=f"{', '.join(choice)}-{implementation}",
        fast=choice is PUBLISHED or implementation == "sdpa",
    )
    for choice in EACH
    for implementation in ("sdpa", "fused", "eager")
]


@pytest.mark.parametrize("choice, implementation", CHOSEN)
def test_published_variant_and_gradients_match_the_formulas(choice, implementation):
    encoder = PlainBertConfig(**SIZES, attn_implementation=implementation, unpad=True)
    for dtype, head in ((torch.float32, "linear"), (torch.float64, "convolutional")):
        m = model(encoder, dtype, **HEADS[head], **choice)
        assert m.backbone.config._attn_implementation == implementation
        out = m(**BATCH, **LABELS)
        leaves = double_leaves(m)
        exact = oracle_results(m, leaves, BATCH, LABELS)
        check_outputs_and_gradients(m, {name: out[name] for name in exact}, leaves, exact, roundings=400)
        assert bool(out.query_attention[1, 6:].all()) == m.config.attend_padding


def test_published_variant_is_saved(tmp_path):
    m = model(**PUBLISHED)
    m.save_pretrained(tmp_path)
    loaded = QueryAttentionForQuestionAnswering.from_pretrained(tmp_path)
    assert {name: getattr(loaded.config, name) for name in PUBLISHED} == PUBLISHED
    assert torch.equal(loaded(**BATCH).start_logits, m(**BATCH).start_logits)
    loaded.config.encoder._attn_implementation_internal = "flash_attention_2"  # the implementation on a GPU
    with raises("ValueError: attend_padding: expected False with the encoder's attn_implementation 'flash_attention_2"):
        loaded(**BATCH)


@pytest.mark.compiles
@pytest.mark.full
def test_published_variant_compiles_without_graph_breaks():
    m = model(PlainBertConfig(**SIZES), **PUBLISHED, outside_positions="clamp")
    inputs = {**BATCH, **LABELS, "head_mask": HEAD_MASK}
    del inputs["input_ids"]
    inputs["inputs_embeds"] = m.get_input_embeddings()(BATCH["input_ids"]).detach()
    compiled = torch.compile(m, fullgraph=True, backend="aot_eager")(**inputs)
    for name, expected in m(**inputs).items():
        torch.testing.assert_close(compiled[name], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_query_attention_accepts_inputs_embeds(family):
    m = model(FAMILIES[family]())
    positions = {}
    if family == "roberta":  # RoBERTa derives positions from the ids; without ids no token counts as padding
        positions = {"position_ids": (BATCH["input_ids"] != 0).long().cumsum(-1) * (BATCH["input_ids"] != 0)}
        m.backbone.config.pad_token_id = 0
    rest = {k: v for k, v in BATCH.items() if k != "input_ids"} | positions
    words = m.get_input_embeddings()(BATCH["input_ids"]).detach().requires_grad_()
    expected = m(**BATCH, **positions, **LABELS)
    out = m(**rest, inputs_embeds=words, **LABELS)
    assert list(out) == list(expected)
    for name in expected:
        assert torch.equal(out[name], expected[name]), name
    out.loss.backward()
    expected.loss.backward()
    rows = torch.zeros_like(m.get_input_embeddings().weight)
    rows.index_add_(0, BATCH["input_ids"].flatten(), words.grad.flatten(0, 1))
    padding = m.get_input_embeddings().padding_idx
    if padding is not None:
        rows[padding] = 0.0
    torch.testing.assert_close(rows, m.get_input_embeddings().weight.grad)


HEAD_MASK = torch.tensor([[1.0, 0.0, 0.5], [0.25, 1.0, 0.0]])


@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
def test_head_mask_reaches_the_encoder(implementation):
    m = model(PlainBertConfig(**SIZES, attn_implementation=implementation))
    mask = HEAD_MASK.clone().requires_grad_()
    out = m(**BATCH, **LABELS, head_mask=mask)
    leaves, exact_mask = double_leaves(m), HEAD_MASK.double().requires_grad_()
    exact = oracle_results(m, leaves, {**BATCH, "head_mask": exact_mask}, LABELS)
    check_outputs_and_gradients(m, {name: out[name] for name in exact}, leaves, exact, roundings=400)
    torch.testing.assert_close(mask.grad.double(), exact_mask.grad, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(m(**BATCH).start_logits, out.start_logits)
    whole = m(**BATCH, head_mask=torch.ones(3))
    torch.testing.assert_close(whole.start_logits, m(**BATCH).start_logits)


def _is_read(m, name):
    """Returns whether a parameter of the encoder is used; DeBERTa has projections that only some variants use."""
    encoder = copy.deepcopy(m.backbone).double()
    inputs = {k: v for k, v in BATCH.items() if k != "token_type_ids" or m.takes_token_types}
    encoder(**inputs).last_hidden_state.sum().backward()
    return dict(encoder.named_parameters())[name.removeprefix("backbone.")].grad is not None


def test_query_attention_trains_every_parameter():
    for head in HEADS.values():
        m = model(**head).train()
        m(**BATCH, **LABELS).loss.backward()
        for name, p in m.named_parameters():
            assert p.grad is not None, name
            assert bool(p.grad.any()), name


def test_token_types_are_derived_from_the_separator():
    m = model(roberta_config())
    assert m.token_types_of(BATCH["input_ids"]).tolist() == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1]]
    plain = {k: v for k, v in BATCH.items() if k != "token_type_ids"}
    given = m(**plain, token_type_ids=m.token_types_of(BATCH["input_ids"]))
    assert torch.equal(m(**plain).start_logits, given.start_logits)
    assert not torch.allclose(
        m(**BATCH).start_logits, given.start_logits
    )  # in BATCH the separator belongs to the question
    with raises("ValueError: token_type_ids: expected a tensor if config.sep_token_id is None, got None"):
        build(QueryAttentionForQuestionAnswering, QueryAttentionConfig(encoder=roberta_config()))(**plain)
    with raises("ValueError: input_ids: expected a separator (3) in every row, got none in row 0"):
        m(torch.tensor([[1, 2, 4]]))


def test_query_attention_losses_add_up():
    m = model(question_type_loss_weight=0.25)
    span = {k: v for k, v in LABELS.items() if k != "question_type"}
    kind = {"question_type": LABELS["question_type"]}
    total = m(**BATCH, **span).loss + m(**BATCH, **kind).loss
    torch.testing.assert_close(m(**BATCH, **LABELS).loss, total)
    first = m(**{k: v[:1] for k, v in BATCH.items()}, question_type=torch.tensor([5])).loss
    torch.testing.assert_close(m(**BATCH, question_type=torch.tensor([5, -100])).loss, first)
    assert m(**BATCH).loss is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_query_attention_half_precision_is_close(dtype):
    exact, narrow = model(dtype=torch.float64, strong=False)(**BATCH), model(dtype=dtype, strong=False)(**BATCH)
    for name in ("start_logits", "end_logits", "query_logits", "query_attention"):
        assert narrow[name].dtype == dtype
        scale = exact[name].abs().max().item()
        assert (narrow[name].double() - exact[name]).abs().max().item() < 30 * torch.finfo(dtype).eps * scale


def test_query_attention_uses_a_trained_encoder_unchanged(tmp_path):
    encoder = build(transformers.BertModel, bert_config(attn_implementation="eager"))
    expected = encoder(**BATCH).last_hidden_state
    weights = {name: p.clone() for name, p in encoder.named_parameters()}
    m = QueryAttentionForQuestionAnswering.from_encoder(encoder, QueryAttentionConfig(head="convolutional"))
    assert m.config.head == "convolutional" and m.config.encoder is encoder.config
    assert m.backbone.config._attn_implementation == "eager"
    for name, p in m.backbone.named_parameters():
        assert torch.equal(p, weights[name]), name
    hidden = m(**BATCH, output_hidden_states=True).hidden_states
    torch.testing.assert_close(hidden[-1], expected)
    # Weights of the bare encoder load too, and the head is reported as missing.
    build(transformers.BertModel, bert_config()).save_pretrained(tmp_path)
    loaded, report = QueryAttentionForQuestionAnswering.from_pretrained(
        tmp_path, config=config(), output_loading_info=True
    )
    assert all("layer." in n and not n.startswith("backbone.") for n in report["missing_keys"])
    assert len(report["missing_keys"]) == 10
    torch.testing.assert_close(loaded(**BATCH, output_hidden_states=True).hidden_states[-1], expected)
    with raises("TypeError: encoder: expected a transformers PreTrainedModel, got Linear"):
        QueryAttentionForQuestionAnswering.from_encoder(torch.nn.Linear(2, 2))
    with raises("TypeError: config: expected QueryAttentionConfig, got BertConfig"):
        QueryAttentionForQuestionAnswering.from_encoder(encoder, bert_config())


def test_initial_weights_follow_the_encoder():
    m = model(bert_config(initializer_range=0.1), strong=False, head="convolutional", conv_channels=40)
    for name in ("query_layer", "key_layer", "value_layer", "conv1d_layer5"):
        layer = getattr(m, name)
        assert 0.07 < float(layer.weight.detach().std()) < 0.13, name
        assert not layer.bias.any(), name


def test_query_attention_config_contains_the_encoder_config(tmp_path):
    written = config(head="convolutional")
    assert written.head_dropout == 0.3 and config().head_dropout == 0.7
    written.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded.encoder) is transformers.BertConfig and loaded.encoder.hidden_size == SIZES["hidden_size"]
    mine = bert_config()
    assert QueryAttentionConfig(encoder=mine).encoder is not mine


@error_cases(
    {
        "TypeError: heads: expected a field of QueryAttentionConfig, got an unknown name. Did you mean 'head'": {
            "heads": "linear"
        },
        "ValueError: head: expected one of 'linear', 'convolutional', got 'deep'": {"head": "deep"},
        "ValueError: sep_token_id: expected less than 31, got 31": {"sep_token_id": 31},
        "TypeError: encoder: expected a configuration or a dict of its fields, got int": {"encoder": 3},
        "ValueError: encoder: Validation error for field 'hidden_size'": {
            "encoder": {"model_type": "bert", "hidden_size": "a"}
        },
        "ValueError: encoder: expected the configuration of a text encoder": {"encoder": transformers.ViTConfig()},
        "ValueError: encoder.num_hidden_layers: expected at least 1, got -2": {
            "encoder": {"model_type": "bert", "num_hidden_layers": -2}
        },
        "ValueError: encoder: expected the configuration of a text encoder, got QACGBertConfig, whose model": {
            "encoder": QACGBertConfig()
        },
        "ValueError: model_type: expected 'query_attention', got 'bert'": {"model_type": "bert"},
    },
)
def test_query_attention_bad_config_raises(error, given):
    with raises(error):
        QueryAttentionConfig(**{"encoder": bert_config(), **given})


@error_cases(
    {
        "ValueError: token_type_ids: expected a token of type 0 in every row": {
            "token_type_ids": torch.ones(2, 8).long()
        },
        "ValueError: input_ids, inputs_embeds: expected exactly one, got both": {"inputs_embeds": torch.ones(2, 8, 12)},
        "ValueError: inputs_embeds: expected shape (B, L, hidden_size = 12), got shape (2, 8, 11)": {
            "input_ids": None,
            "inputs_embeds": torch.zeros(2, 8, 11),
        },
        "ValueError: question_type: expected 0 to 5 (num_question_types is 6), or -100 ..., got values from 0 to 6": {
            "question_type": torch.tensor([0, 6])
        },
        "ValueError: token_type_ids: expected 0 for the question and 1 for the text": {
            "input_ids": None,
            "inputs_embeds": torch.zeros(2, 8, 12),
            "token_type_ids": None,
        },
        "ValueError: head_mask: expected None for BertModel of type 'bert', ...An encoder of type 'plain_bert'": {
            "head_mask": torch.ones(3)
        },
    },
)
def test_query_attention_bad_input_raises(error, given):
    with raises(error):
        model()(**{**BATCH, **given})


def test_head_mask_bad_shape_raises():
    m = model(PlainBertConfig(**SIZES))
    with raises("ValueError: head_mask: expected shape (3,) or (2, 3), got shape (2,)"):
        m(**BATCH, head_mask=torch.ones(2))
    with raises("TypeError: head_mask: expected a torch.Tensor or None, got list"):
        m(**BATCH, head_mask=[1, 1, 0])


def test_query_attention_limits_depend_on_the_encoder():
    assert model(roberta_config()).max_length == 14  # positions start after the id of padding
    deberta = model(FAMILIES["deberta-v2"]())
    assert deberta.max_length is None
    long = torch.full((1, 40), 5)
    long[0, 4] = SEP
    assert deberta(long).start_logits.shape == (1, 40)
    distil = model(FAMILIES["distilbert"]())
    assert distil.max_length == 16
    with raises("ValueError: token_type_ids: expected 0 to 1 (number of segments is 2), got values from 0 to 2"):
        distil(**{**BATCH, "token_type_ids": BATCH["token_type_ids"] * 2})
