"""Layers that must be called, because of a hook, an adapter or special weights, keep their effect in every model."""

import copy

import pytest
import torch
from doubled_layers import WAYS, by_its_weights, change
from errors import raises
from parity import strengthen
from qacg_models import (
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from qacg_models.layers.context import fold_context
from torch import nn

from qacg_kernels.attention_layers import CONTEXT_ROLES, GATE_ROLES, NAMINGS

SIZES = {
    "vocab_size": 50,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
GATES, CONTEXT = (tuple(NAMINGS["released"][role] for role in roles) for roles in (GATE_ROLES, CONTEXT_ROLES))
MIXING = ("context_layer.0", "context_layer.1")
LAYERS = {
    "qacg gates": ("qacg", GATES),
    "qacg context projections": ("qacg", CONTEXT),
    "qacg context layers": ("qacg", MIXING),
    "cg gates": ("cg", GATES),
    "cg context projections": ("cg", CONTEXT),
    "cg context layers": ("cg", MIXING),
    "query key": ("query", ("key_layer",)),
}
CLASSES = {
    "qacg": (QACGBertForSequenceClassification, QACGBertConfig),
    "cg": (CGBertForSequenceClassification, CGBertConfig),
}


def built(kind, **fields):
    if kind == "query":
        config = QueryAttentionConfig(encoder=PlainBertConfig(**SIZES), sep_token_id=2, head_dropout=0.0)
        return strengthen(QueryAttentionForQuestionAnswering(config))
    model, config = CLASSES[kind]
    return strengthen(model(config(**SIZES, contexts=3, num_labels=3, context_standalone=True, **fields)))


def batches(kind):
    """A padded batch of 36 tokens, for which `project_apart` folds the weights, and a packed one of 5."""
    ids = torch.randint(3, 50, (3, 12), generator=torch.Generator().manual_seed(0))
    if kind == "query":
        ids[:, 4] = 2
        return [{"input_ids": ids}]
    padded = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "context_ids": torch.arange(3)}
    padded["attention_mask"][1, 7:] = 0
    packed = {"input_ids": ids[0, :5], "cu_seqlens": torch.tensor([0, 2, 5]), "max_seqlen": 3}
    return [padded, {**packed, "context_ids": torch.arange(2)}]


def scores(kind, output):
    return output.start_logits if kind == "query" else output.logits


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize(("kind", "names"), LAYERS.values(), ids=LAYERS)
def test_layer_that_is_not_plain_is_called(kind, names, way):
    model = built(kind).double().eval()
    expected = change(copy.deepcopy(model), names, by_its_weights)
    changed = change(model, names, way)
    for batch in batches(kind):
        results = []
        for each in (changed, expected):
            each.zero_grad()
            out = scores(kind, each(**batch))
            out.square().sum().backward()
            with torch.no_grad():
                results.append([out, scores(kind, each(**batch)), each.base_model.get_input_embeddings().weight.grad])
        torch.testing.assert_close(results[0], results[1])
    inside = [layer for path, layer in changed.named_modules() if path.endswith(names)]
    trained = [p for layer in inside for p in layer.parameters() if not p.is_meta]
    assert all(p.grad is not None for p in trained)


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("way", ["hook", "adapter"])
def test_eager_attention_calls_gate_layers(kind, way):
    model, (padded, _) = built(kind).eval(), batches(kind)
    expected = change(copy.deepcopy(model), GATES, by_its_weights)
    changed = change(model, GATES, WAYS[way])
    for each in (changed, expected):
        each.set_attn_implementation("eager")
    found, right = (each(**padded, output_attentions=True) for each in (changed, expected))
    torch.testing.assert_close((found.logits, found.attentions), (right.logits, right.attentions))


FOLDED = {"key": ("self.key",), "context_query": ("context_for_q",), "context layer": MIXING}


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("way", WAYS)
def test_fold_context_of_a_layer_that_is_not_plain_raises(name, way):
    model = change(built("cg").eval(), FOLDED[name], WAYS[way])
    kinds = {"adapter": "doubled_layers.Adapter", "parametrized": "torch.nn.utils.parametrize.ParametrizedLinear"}
    got = kinds.get(way, "one with hooks, its own forward or special weights")
    with raises(f"TypeError: {name}: expected a plain nn.Linear to fold, got {got}. Remove hooks, and merge adapters."):
        fold_context(model)


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("way", WAYS)
def test_layer_changed_after_the_fold_is_called(name, way):
    model, (padded, _) = built("cg").eval(), batches("cg")
    expected = change(copy.deepcopy(model), FOLDED[name], by_its_weights)
    fold_context(model)
    change(model, FOLDED[name], way=WAYS[way])
    with torch.no_grad():
        torch.testing.assert_close(model(**padded).logits, expected(**padded).logits)


@pytest.mark.parametrize("kind", [*CLASSES, "query"])
def test_model_offloaded_by_accelerate_has_the_same_results(kind):
    accelerate = pytest.importorskip("accelerate")
    model = built(kind).eval()
    with torch.no_grad():
        expected = [scores(kind, model(**batch)) for batch in batches(kind)]
        offloaded = accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
        assert any(p.is_meta for p in model.parameters())
        found = [scores(kind, offloaded(**batch)) for batch in batches(kind)]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kind", [*CLASSES, "query"])
def test_lora_on_every_linear_layer_equals_the_merged_model(kind):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=8, target_modules="all-linear", init_lora_weights=False)
    adapted, (batch, *_) = peft.get_peft_model(built(kind), config), batches(kind)
    out = scores(kind, adapted(**batch))
    out.square().sum().backward()
    without = {name.split(".lora_")[0] for name, p in adapted.named_parameters() if p.requires_grad and p.grad is None}
    assert without <= {"base_model.model.query_classify_layer"}
    merged = copy.deepcopy(adapted).merge_and_unload()
    torch.testing.assert_close(out, scores(kind, merged(**batch)))


@pytest.mark.parametrize("kind", [*CLASSES, "query"])
def test_weights_quantized_by_torchao_are_used(kind):
    quantization = pytest.importorskip("torchao.quantization")
    model, all_batches = built(kind).eval(), batches(kind)
    with torch.no_grad():
        before = [scores(kind, model(**batch)) for batch in all_batches]
        quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
        weights = {path: layer.weight for path, layer in model.named_modules() if isinstance(layer, nn.Linear)}
        found = [scores(kind, model(**batch)) for batch in all_batches]
        for path, weight in weights.items():
            model.get_submodule(path).weight = nn.Parameter(weight.dequantize())
        expected = [scores(kind, model(**batch)) for batch in all_batches]
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert not torch.equal(found[0], before[0])
