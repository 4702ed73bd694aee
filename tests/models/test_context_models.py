"""QACG-BERT, CG-BERT and Aspect-BERT as transformers models; test_packed_models.py has their formulas."""

import pytest
import torch
from errors import raises
from model_sizes import CONTEXTS, LABELS, TINY, TOKENS
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    BertForSequenceClassification,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    QACGBertModel,
)

from qacg_kernels import apply_fused_attention
from qacg_kernels.attention_layers import NAMINGS

SIZES = {**TINY, "contexts": ["price", "safety", "general"], "num_labels": 3}
SLICED = {"pooler": "attention", "context_projection": "head", "lambda_bias": False}
BATCH = TOKENS | CONTEXTS | LABELS
CLASSES = {
    "qacg": (QACGBertForSequenceClassification, QACGBertConfig),
    "cg": (CGBertForSequenceClassification, CGBertConfig),
    "aspect": (AspectBertForSequenceClassification, AspectBertConfig),
}


def build(attn_implementation=None, kind="qacg", strong=True, **settings):
    """A model in evaluation mode, with large weights if `strong`."""
    torch.manual_seed(0)
    model_class, config_class = CLASSES[kind]
    model = model_class(config_class(**{**SIZES, **settings}, attn_implementation=attn_implementation)).eval()
    return strengthen(model) if strong else model


def test_qacg_bert_accepts_int32_and_one_context_per_row():
    model, logits = build(), build()(**BATCH).logits
    same = {**BATCH, "context_ids": BATCH["context_ids"][:, None], "position_ids": torch.arange(5).expand(2, 5)}
    assert torch.equal(model(**same).logits, logits)
    assert torch.equal(model(**{k: v.int() if k != "labels" else v for k, v in BATCH.items()}).logits, logits)


def test_qacg_bert_parameter_names_are_released_ones():
    names = set(build(strong=False).state_dict())
    layer = "bert.encoder.layer.1."
    attention = ("query", "key", "value", "context_for_q", "context_for_k")
    gates = ("lambda_q_query_layer", "lambda_q_context_layer", "lambda_k_key_layer", "lambda_k_context_layer")
    modules = [
        *(f"{layer}attention.self.{name}" for name in attention + gates),
        *(f"{layer}{name}" for name in ("attention.output.dense", "attention.output.LayerNorm")),
        *(f"{layer}{name}" for name in ("intermediate.dense", "output.dense", "output.LayerNorm")),
        "bert.encoder.context_layer.1",
        "bert.embeddings.LayerNorm",
        "bert.pooler.dense",
        "classifier",
    ]
    expected = {f"{name}.{kind}" for name in modules for kind in ("weight", "bias")}
    expected |= {f"bert.embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")}
    expected |= {"bert.context_embeddings.weight"}
    assert {n for n in names if ".0." not in n} == expected
    pooled = {n for n in build(strong=False, pooler="attention").state_dict() if "pooler" in n}
    assert pooled == {
        f"bert.pooler.{name}.{kind}"
        for name in ("attention_gate.0", "attention_gate.3", "dense")
        for kind in ("weight", "bias")
    }


def test_qacg_bert_attn_implementation_defaults_to_fused():
    assert build().config._attn_implementation == "fused"
    assert QACGBertModel(QACGBertConfig(**SIZES)).config._attn_implementation == "fused"
    assert QACGBertModel(QACGBertConfig(**SIZES, output_attentions=True)).config._attn_implementation == "eager"
    with raises("ValueError: attn_implementation: expected one of 'fused', 'eager', got 'sdpa'"):
        build("sdpa")


@pytest.mark.parametrize("implementation", ["fused", "eager"])
@pytest.mark.parametrize("pooler", ["cls", "attention"])
def test_qacg_bert_sequences_of_a_batch_are_independent(implementation, pooler):
    model = build(implementation, pooler=pooler)
    expected = model(**BATCH).logits
    blank = dict(BATCH, attention_mask=BATCH["attention_mask"].clone())
    blank["attention_mask"][1] = 0
    out = model(**blank)
    assert bool(out.logits.isfinite().all())
    torch.testing.assert_close(out.logits[0], expected[0])
    out.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[9] = float("nan")  # a token of the second sequence only
    poisoned = model(**BATCH).logits
    assert bool(poisoned[1].isnan().all())
    torch.testing.assert_close(poisoned[0], expected[0])


@pytest.mark.parametrize(("kind", "implementation"), [("qacg", "fused"), ("qacg", "eager"), ("cg", "eager")])
def test_dropout_is_where_published(kind, implementation):
    rates = {"hidden_dropout_prob": 0.5, "attention_probs_dropout_prob": 0.4, "pooler": "attention"}
    model, shapes = build(implementation, kind, **rates).train(), {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda m, args, out, n=name: shapes.setdefault(n, []).append(tuple(out.shape)))
    torch.manual_seed(0)
    out = model(**BATCH, output_attentions=True)
    hidden, heads = (2, 5, 12), (2, 5, 3, 4)
    expected = {
        "bert.embeddings.dropout": [hidden],
        "bert.pooler.attention_gate.2": [(2, 5, 32)],
        "dropout": [(2, 12)],
    }
    for i in (0, 1):
        if kind == "qacg":  # dropout of context queries and keys
            expected[f"bert.encoder.layer.{i}.attention.self.dropout"] = [heads, heads]
        expected[f"bert.encoder.layer.{i}.attention.output.dropout"] = [hidden]
        expected[f"bert.encoder.layer.{i}.output.dropout"] = [hidden]
    assert shapes == expected
    for a in out.attentions:
        assert 0.35 < float((a[0] != 0).double().mean()) < 0.85
    if kind == "qacg":
        for a, p, g in zip(out.attentions, out.softmax_maps, out.quasi_maps):
            kept = a != 0
            torch.testing.assert_close(a[kept], ((p + g) / 0.6)[kept], rtol=1e-4, atol=1e-6)
            assert bool((p.sum(-1) - 1).abs().max() < 1e-5)


def test_cg_bert_loads_the_compact_names():
    model = build(kind="cg")
    renamed = {}
    for name, p in model.state_dict().items():
        for role, ours in NAMINGS["released"].items():
            name = name.replace(f".self.{ours}.", f".self.{NAMINGS['compact'][role]}.")
        renamed[name] = p
    assert "bert.encoder.layer.1.attention.self.lambda_Qc.weight" in renamed
    other = CGBertForSequenceClassification(model.config)
    other.load_state_dict(renamed)
    torch.testing.assert_close(other.eval()(**BATCH).logits, model(**BATCH).logits)


def test_cg_bert_patch_with_quasi_attention_raises():
    with pytest.raises(ValueError, match=r"attention\.self: .*expected a module that can be called"):
        apply_fused_attention(build(kind="cg"))


def test_aspect_bert_zero_vectors_give_the_outputs_of_bert():
    model = build(kind="aspect", context_from_layer=1)
    torch.nn.init.zeros_(model.bert.context_embeddings.weight)
    state = {name: value for name, value in model.state_dict().items() if "context" not in name}
    bert = BertForSequenceClassification(PlainBertConfig(**TINY, num_labels=3)).eval()
    bert.load_state_dict(state)
    assert torch.equal(model(**BATCH).logits, bert(**TOKENS, **LABELS).logits)


def test_aspect_bert_gates_are_refused():
    with raises("ValueError: output_gates: expected False, got True. Aspect-BERT has no gates."):
        build(kind="aspect")(**BATCH, output_gates=True)
