"""CG-BERT against its formulas, in every implementation and its published variants."""

import pytest
import torch
from model_judging import SDPA_GRADIENT_BAND, check_against_formulas, dropout_shapes, flat
from model_sizes import CONTEXTS, LABELS, TINY, TOKENS
from oracle import classifiers as oracle
from parity import strengthen
from qacg_models import CGBertConfig, CGBertForSequenceClassification

from qacg_kernels import apply_fused_attention
from qacg_kernels.attention_layers import NAMINGS

SIZES = {**TINY, "contexts": ["price", "safety", "general"], "num_labels": 3}
VARIANTS = {
    "code": {},
    "paper": {"gate_activation": "tanh", "lambda_per_head": True, "pooler": "attention"},
    "whole context": {"context_projection": "hidden", "lambda_bias": True, "lambda_per_head": True},
    "tanh with biases": {"gate_activation": "tanh", "lambda_bias": True},
}
BATCH = TOKENS | CONTEXTS | LABELS


def build(implementation="sdpa", dtype=torch.float32, **settings):
    torch.manual_seed(0)
    config = CGBertConfig(**{**SIZES, **settings}, attn_implementation=implementation)
    return strengthen(CGBertForSequenceClassification(config)).eval().to(dtype)


def results(model):
    out = model(**BATCH, output_gates=True, output_hidden_states=True)
    # A separate call: with maps requested, sdpa would not run.
    maps = model(**BATCH, output_attentions=True).attentions
    found = {"logits": out.logits, "loss": out.loss, "hidden": out.hidden_states, "a": maps}
    return found | {"lq": out.query_gates, "lk": out.key_gates}


def truth(weights, config):
    return oracle.outputs(weights, config, BATCH)


@pytest.mark.parametrize("implementation", ["sdpa", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_cg_bert_outputs_and_gradients_match_the_formulas(variant, dtype, implementation):
    def make(implementation, dtype):
        return build(implementation, dtype, **variant)

    check_against_formulas(make, implementation, dtype, results, truth, SDPA_GRADIENT_BAND)


@pytest.mark.parametrize("implementation", ["sdpa", "fused", "eager"])
def test_cg_bert_float64_matches_the_formulas(implementation):
    model = build(implementation, torch.float64, **VARIANTS["paper"])
    true = flat(truth(model.state_dict(), model.config))
    for name, mine in flat(results(model)).items():
        torch.testing.assert_close(mine, true[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


def test_cg_bert_closed_gates_ignore_the_context():
    model = build(lambda_bias=True)
    logits = {}
    for sign in (-1, 1):
        with torch.no_grad():
            for name, p in model.named_parameters():
                if "lambda" in name:
                    p.fill_(25.0 * sign if name.endswith("bias") else 0.0)
        out = model(**BATCH, output_gates=True)
        assert all(bool(((gate - int(sign > 0)).abs() < 1e-20).all()) for gate in (*out.query_gates, *out.key_gates))
        other = BATCH | {"context_ids": torch.tensor([1, 1])}
        same = torch.allclose(model(**other).logits, out.logits)
        assert same == (sign < 0), "the context counts only if a gate is open"
        logits[sign] = out.logits
    assert not torch.allclose(logits[-1], logits[1])


def test_cg_bert_dropout_is_where_published():
    model = build("eager", hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.4, pooler="attention").train()
    shapes = dropout_shapes(model)
    torch.manual_seed(0)
    out = model(**BATCH, output_attentions=True)
    hidden = (2, 5, 12)
    expected = {
        "bert.embeddings.dropout": [hidden],
        "bert.pooler.attention_gate.2": [(2, 5, 32)],
        "dropout": [(2, 12)],
    }
    for i in (0, 1):
        expected[f"bert.encoder.layer.{i}.attention.output.dropout"] = [hidden]
        expected[f"bert.encoder.layer.{i}.output.dropout"] = [hidden]
    assert shapes == expected, "no dropout of context queries and keys here, unlike in QACG-BERT"
    for a in out.attentions:
        assert 0.35 < float((a[0] != 0).double().mean()) < 0.85


def test_cg_bert_loads_the_compact_names():
    model = build()
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
        apply_fused_attention(build())
