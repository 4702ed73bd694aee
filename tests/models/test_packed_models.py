"""Padded, packed and unpadded batches against the formulas, and the folded context path, in all encoders."""

from contextlib import contextmanager

import pytest
import torch
from errors import error_cases, raises
from full_members import member
from model_cases import checkpoint_activations
from model_judging import SDPA_GRADIENT_BAND, check_against_formulas, flat
from model_sizes import TINY
from oracle import classifiers as oracle
from parity import strengthen
from qacg_models import (
    AspectBertConfig,
    AspectBertForSequenceClassification,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    token_sensitivity,
)
from qacg_models.layers.batch import Packing
from qacg_models.layers.context import ContextFold, fold_context
from qacg_models.layers.embeddings import Dropout
from qacg_models.sentiment.encoding import PackingCollator
from torch import nn

SIZES = {**TINY, "type_vocab_size": 2, "num_labels": 3}
CLASSES = {
    "aspect": (AspectBertForSequenceClassification, AspectBertConfig),
    "qacg": (QACGBertForSequenceClassification, QACGBertConfig),
    "cg": (CGBertForSequenceClassification, CGBertConfig),
    "bert": (BertForSequenceClassification, PlainBertConfig),
}
VARIANTS = {
    "aspect": ("aspect", {}),
    "aspect in the last layer": ("aspect", {"context_from_layer": 1}),
    "aspect averaged": ("aspect", {"context_from_layer": 1, "pooler": "attention"}),
    "qacg released": ("qacg", {"pooler": "cls", "context_projection": "hidden", "lambda_bias": True}),
    "qacg head slices": ("qacg", {"pooler": "attention", "context_projection": "head", "lambda_bias": False}),
    "qacg mixed": ("qacg", {"pooler": "attention", "lambda_bias": True, "lambda_per_head": True}),
    "qacg scaled": ("qacg", {"context_projection": "head", "quasi_scale": 0.4, "beta": 0.7, "gamma": 1.6}),
    "qacg scaled, gates of heads": ("qacg", {"lambda_per_head": True, "quasi_scale": 0.4, "beta": 0.7, "gamma": 1.6}),
    "qacg bias of the keys": ("qacg", {"quasi_bias": "-log(keys)", "beta": 0.9, "gamma": 0.9}),
    "qacg bias": ("qacg", {"pooler": "attention", "quasi_bias": -1.5, "lambda_per_head": True}),
    "cg code": ("cg", {}),
    "cg paper": ("cg", {"gate_activation": "tanh", "lambda_per_head": True, "pooler": "attention"}),
    "cg whole context": ("cg", {"context_projection": "hidden", "lambda_bias": True, "lambda_per_head": True}),
    "cg tanh with biases": ("cg", {"gate_activation": "tanh", "lambda_bias": True}),
    "bert": ("bert", {}),
    "bert averaged": ("bert", {"pooler": "attention"}),
}


def features(lengths, contexts=True):
    generator = torch.Generator().manual_seed(0)

    def draw(high, count):
        return torch.randint(high, (count,), generator=generator).tolist()

    rows = [
        {"input_ids": draw(31, n), "token_type_ids": draw(2, n), "context_ids": draw(3, 1)[0], "labels": draw(3, 1)[0]}
        for n in lengths
    ]
    return rows if contexts else [{k: v for k, v in row.items() if k != "context_ids"} for row in rows]


def padded(rows, fill=17):
    """Returns rows padded to the longest; the padding is an ordinary token, which must not be read."""
    length = max(len(row["input_ids"]) for row in rows)

    def grid(name, fill):
        return torch.tensor([row[name] + [fill] * (length - len(row[name])) for row in rows])

    batch = {"input_ids": grid("input_ids", fill), "token_type_ids": grid("token_type_ids", 1)}
    batch["attention_mask"] = torch.tensor([[int(j < len(r["input_ids"])) for j in range(length)] for r in rows])
    for name in ("context_ids", "labels"):
        if name in rows[0]:
            batch[name] = torch.tensor([row[name] for row in rows])
    return batch


def build(kind, implementation=None, dtype=torch.float32, **settings):
    torch.manual_seed(0)
    model_class, config_class = CLASSES[kind]
    contexts = {} if kind == "bert" else {"contexts": 3}
    config = config_class(**SIZES, **contexts, **settings, attn_implementation=implementation)
    return strengthen(model_class(config)).eval().to(dtype)


def results(model, batch, visible=None):
    """Returns every output of a batch by name; if `visible` is given, the outputs at the tokens of a padded batch."""
    extra = {"output_gates": True} if hasattr(model.config, "lambda_bias") else {}
    out = model(**batch, output_hidden_states=True, **extra)
    maps = model(**batch, output_attentions=True)  # a separate call: maps use other code
    found = {"logits": out.logits, "loss": out.loss, "hidden": out.hidden_states, "a": maps.attentions}
    # Without hidden states to return, the last layer may skip tokens.
    found["logits alone"] = model(**batch).logits
    for name, field in {"lam": "lambdas", "lq": "query_gates", "lk": "key_gates"}.items():
        if field in out:
            found[name] = out[field]
    if "softmax_maps" in maps:
        found |= {"p": maps.softmax_maps, "g": maps.quasi_maps}
    if visible is not None:
        return at_tokens(found, visible)
    return flat(found | only_pairs(found, batch)) if "cu_seqlens" in batch else flat(found)


def only_pairs(found, batch):
    """Returns the maps of a packed batch, (B, H, S, S), with only the pairs of tokens of the same sequence."""
    pairs = Packing.of(batch["cu_seqlens"], batch["max_seqlen"], len(batch["input_ids"])).pairs()[:, 0]
    maps = {name: found[name] for name in ("a", "p", "g") if name in found}
    for layers in maps.values():
        assert not any(bool(m.transpose(0, 1)[:, ~pairs].any()) for m in layers), "entries between sequences"
    return {name: [m.transpose(0, 1)[:, pairs] for m in layers] for name, layers in maps.items()}


def at_tokens(found, visible):
    """Returns padded outputs in packed order: hidden states (T, hidden), gates (T, H), maps (H, pairs)."""
    pairs = visible.unsqueeze(2) & visible.unsqueeze(1)
    picked = dict(found)
    for name in ("a", "p", "g"):
        if name in found:
            picked[name] = [m.transpose(0, 1)[:, pairs] for m in found[name]]
    for name in ("lam", "lq", "lk"):
        if name in found:
            picked[name] = [m.transpose(1, 2)[visible] for m in found[name]]
    return flat(picked | {"hidden": [h[visible] for h in found["hidden"]]})


def truth(batch, packed):
    def compute(weights, config):
        found = oracle.outputs(weights, config, batch)
        found["logits alone"] = found["logits"]
        return at_tokens(found, batch["attention_mask"].bool()) if packed else flat(found)

    return compute


def implementations(kind):
    return ("fused", "eager") if kind == "qacg" else ("sdpa", "fused", "eager")


EACH = [
    pytest.param(kind, settings, implementation, id=f"{name}-{implementation}")
    for name, (kind, settings) in VARIANTS.items()
    for implementation in implementations(kind)
]


@pytest.mark.parametrize("kind, settings, implementation", [one for one in EACH if one.values[2] != "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_outputs_and_gradients_match_the_formulas(kind, settings, implementation, dtype):
    batch = padded(features((5, 3), contexts=kind != "bert"))
    # With the attention pooler, the error of eager QACG-BERT is 4 to 40 roundings, depending on the weights.
    band = SDPA_GRADIENT_BAND if kind != "qacg" else 32 if settings.get("pooler") == "attention" else 16
    check_against_formulas(
        lambda implementation, dtype: build(kind, implementation, dtype, **settings),
        *(implementation, dtype, lambda model: results(model, batch), truth(batch, packed=False), band),
    )


@pytest.mark.parametrize("kind, settings, implementation", EACH)
def test_float64_matches_the_formulas(kind, settings, implementation):
    model, batch = build(kind, implementation, torch.float64, **settings), padded(features((5, 3), kind != "bert"))
    true = truth(batch, packed=False)(model.state_dict(), model.config)
    for name, mine in results(model, batch).items():
        torch.testing.assert_close(mine, true[name], rtol=1e-9, atol=1e-11, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize(
    ("lengths", "dtype"),  # (5, 9, 1, 7, 4) has more than 2 x 12 tokens, so the context is folded
    [
        member((5, 1, 3), torch.float32, id="few tokens-float32", fast=True),
        member((5, 9, 1, 7, 4), torch.float32, id="many tokens-float32", fast=False),
        member((5, 1, 3), torch.bfloat16, id="few tokens-bfloat16", fast=False),
        member((5, 9, 1, 7, 4), torch.bfloat16, id="many tokens-bfloat16", fast=True),
    ],
)
@pytest.mark.parametrize("kind, settings", VARIANTS.values(), ids=VARIANTS)
def test_packed_outputs_and_gradients_match_the_formulas(kind, settings, lengths, dtype):
    rows = features(lengths, contexts=kind != "bert")
    batch = PackingCollator()(rows)
    check_against_formulas(
        lambda implementation, dtype: build(kind, implementation, dtype, **settings),
        *(implementations(kind)[0], dtype, lambda model: results(model, batch), truth(padded(rows), packed=True)),
        SDPA_GRADIENT_BAND,
        draws=1 if dtype == torch.bfloat16 and len(lengths) > 3 else 5,  # the error of few tokens is random
    )


@pytest.mark.parametrize("kind, settings", VARIANTS.values(), ids=VARIANTS)
def test_unpadded_batch_gives_the_same_outputs(kind, settings):
    batch = padded(features((5, 9, 1, 7, 4), contexts=kind != "bert"))
    visible = batch["attention_mask"].bool()
    found, seen = {}, []
    for unpad in (False, True):
        model = build(kind, unpad=unpad, **settings)
        model.bert.embeddings.register_forward_hook(lambda m, args, out: seen.append(tuple(out.shape)))
        found[unpad] = results(model, batch, visible)
        found[unpad]["loss"].backward()
        found[unpad] |= {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
        if unpad:
            assert not model.bert(**{k: v for k, v in batch.items() if k != "labels"})[0][~visible].any()
    assert seen[0] == (5, 9, 12)
    assert seen[3:] == [(26, 12), (5, 9, 12), (26, 12), (26, 12)], "padding stays when maps are requested"
    for name, expected in found[False].items():
        torch.testing.assert_close(found[True][name], expected, rtol=1e-3, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")


@contextmanager
def output_rows(layers):
    """Collects the number of rows of each output, in the order of the calls."""
    seen = []
    handles = [layer.register_forward_hook(lambda m, args, out: seen.append(out[0].shape[0])) for layer in layers]
    yield seen
    for handle in handles:
        handle.remove()


@pytest.mark.parametrize("kind", CLASSES)
def test_last_layer_computes_only_the_tokens_it_needs(kind):
    batch = PackingCollator()(features((5, 4, 3), contexts=kind != "bert"))
    for pooler, asked, rows in (("cls", {}, 3), ("attention", {}, 12), ("cls", {"output_hidden_states": True}, 12)):
        model = build(kind, pooler=pooler)
        with output_rows(model.bert.encoder.layer) as seen:
            model(**batch, **asked)
        assert seen == [12, rows]
    given = {k: v for k, v in batch.items() if k != "labels"}
    assert model.bert(**given, pooled_only=True).last_hidden_state is None
    assert model.bert(**given).last_hidden_state.shape == (12, 12)
    if kind == "bert":
        with raises("ValueError: pooled_only: expected False without a pooler"):
            BertModel(model.config, add_pooling_layer=False)(**given, pooled_only=True)


@pytest.mark.parametrize("unpad", [False, True])
def test_padding_in_front_or_inside_is_ignored(unpad):
    mask = torch.tensor([[0, 1, 1, 0, 1], [1, 1, 1, 1, 1]])
    ids, types = torch.randint(31, (2, 5)), torch.randint(2, (2, 5))
    positions = torch.tensor([[4, 0, 2, 8, 7], [1, 3, 5, 7, 0]])
    model = build("qacg", unpad=unpad, pooler="attention")
    both = {"token_type_ids": types, "position_ids": positions, "context_ids": torch.tensor([2, 1])}
    together = model(ids, mask, **both).logits
    kept = mask[0].bool()
    alone = model(ids[:1, kept], None, types[:1, kept], torch.tensor([2]), positions[:1, kept]).logits
    torch.testing.assert_close(together[0], alone[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pooler", ["cls", "attention"])
@pytest.mark.parametrize("lengths", [(0, 4, 3), (4, 0, 3), (4, 3, 0)])
def test_sequence_without_tokens_pools_to_zero(pooler, lengths):
    model = build("qacg", pooler=pooler)
    rows = features((4, 3))
    batch = PackingCollator()(rows)
    expected = model(**batch).logits
    blank = lengths.index(0)
    contexts = batch["context_ids"].tolist()
    contexts.insert(blank, 1)
    given = {name: batch[name] for name in ("input_ids", "token_type_ids")}
    ends = torch.tensor([0, *lengths]).cumsum(0)
    logits = model(**given, context_ids=torch.tensor(contexts), cu_seqlens=ends).logits
    torch.testing.assert_close(logits[[i for i in range(3) if i != blank]], expected)
    nothing = model.classifier(torch.tanh(model.bert.pooler.dense(torch.zeros(12))))
    torch.testing.assert_close(logits[blank], nothing)


def test_row_of_padding_only_pools_to_zero():
    batch = padded(features((4, 3)))
    batch["attention_mask"][1] = 0
    model = build("qacg", unpad=True)
    out = model(**batch)
    nothing = model.classifier(torch.tanh(model.bert.pooler.dense(torch.zeros(12))))
    torch.testing.assert_close(out.logits[1], nothing)
    batch["attention_mask"][0] = 0
    torch.testing.assert_close(model(**batch).logits, nothing.expand(2, 3))
    out.loss.backward()
    assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)


def test_packed_sequences_do_not_mix():
    model = build("qacg")
    batch = PackingCollator()(features((5, 4, 3)))
    batch["input_ids"] = batch["input_ids"] % 8
    expected = model(**batch).logits
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[30] = float("nan")
    batch["input_ids"][6] = 30
    logits = model(**batch).logits
    assert bool(logits[1].isnan().all())
    torch.testing.assert_close(logits[[0, 2]], expected[[0, 2]])


def test_packed_inputs_embeds_and_any_max_seqlen_match():
    model = build("qacg")
    batch = PackingCollator()(features((5, 4, 3)))
    expected = model(**batch).logits
    embeds = model.bert.embeddings.word_embeddings(batch["input_ids"])
    rest = {k: v for k, v in batch.items() if k not in ("input_ids", "position_ids")}
    torch.testing.assert_close(model(inputs_embeds=embeds, **rest).logits, expected)
    for longest in (None, 9):
        torch.testing.assert_close(model(**batch | {"max_seqlen": longest}).logits, expected)


@pytest.mark.parametrize("kind", ["qacg", "cg"])
@pytest.mark.parametrize("projection", ["hidden", "head"])
def test_fold_context_matches_and_is_dropped_by_training(kind, projection):
    model = build(kind, context_projection=projection, pooler="attention")
    rows = features((5, 4, 3))
    batch, grid = PackingCollator()(rows), padded(rows)
    exact = build(kind, "eager", torch.float64, context_projection=projection, pooler="attention")(**grid).logits
    plain = model(**batch).logits
    names = set(model.state_dict())
    assert fold_context(model) == 2
    assert set(model.state_dict()) == names
    with torch.no_grad():
        calls = []
        for layer in model.bert.encoder.layer:
            layer.fold.register_forward_hook(lambda *_: calls.append(1))
        for given in (batch, grid):
            folded = model(**given).logits
            error, own = ((x.double() - exact).abs().max() for x in (folded, plain))
            assert float(error) <= 2 * float(own) + 32 * torch.finfo(torch.float32).eps * float(exact.abs().max())
        assert len(calls) == 4
    model(**batch).loss.backward()
    assert len(calls) == 4, "gradients require the parameters"
    assert all(bool(layer.any()) for layer in (c.weight.grad for c in model.bert.encoder.context_layer))
    model.train()
    assert all(layer.fold is None for layer in model.bert.encoder.layer)
    model.eval()
    fold_context(model)
    model.load_state_dict(model.state_dict())
    assert all(layer.fold is None for layer in model.bert.encoder.layer)


def test_fold_context_of_unsupported_model_raises():
    with raises("ValueError: model: expected evaluation mode, got training mode"):
        fold_context(build("qacg").train())
    with raises("ValueError: model: expected a QACG-BERT or CG-BERT, got a BertForSequenceClassification"):
        fold_context(build("bert"))
    model = build("qacg")

    class Adapted(nn.Linear):
        pass

    model.bert.encoder.layer[1].attention.self.key.__class__ = Adapted
    with raises("TypeError: key: expected a plain nn.Linear to fold, got test_packed_models."):
        fold_context(model)
    assert not any(isinstance(module, ContextFold) for module in model.modules())


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("reentrant", [False, True])
def test_packed_gradient_checkpointing_repeats_dropout(kind, reentrant):
    batch = PackingCollator()(features((5, 9, 7, 4), contexts=kind != "bert"))
    gradients = []
    for checkpointing in (False, True):
        model = build(kind, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3).train()
        if checkpointing:
            checkpoint_activations(model, reentrant)
        torch.manual_seed(7)
        model(**batch).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.compiles
@pytest.mark.full
@pytest.mark.parametrize("kind", CLASSES)
def test_packed_model_compiles_without_graph_breaks(kind):
    torch._dynamo.reset()
    rows = features((5, 9, 7, 4), contexts=kind != "bert")
    batch = PackingCollator()(rows)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = build(kind, pooler="attention" if kind == "qacg" else "cls", unpad=True, **none).train()
    expected = model(**batch)
    expected.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    mine = compiled(**batch)
    mine.loss.backward()
    torch.testing.assert_close(mine.logits, expected.logits)
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, gradients[name], msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(compiled(**padded(rows)).logits, expected.logits, rtol=1e-4, atol=1e-5)
    with pytest.raises(Exception, match="max_seqlen: expected the length of the longest sequence, got None"):
        compiled(**batch | {"max_seqlen": None})


def test_dropout_has_its_rate_mean_and_seed():
    drop = Dropout(0.3).train()
    x = torch.full((501, 403), 2.0, requires_grad=True)
    torch.manual_seed(5)
    out = drop(x)
    kept = out != 0
    share = round(0.3 * 65536) / 65536
    deviation = (share * (1 - share) / x.numel()) ** 0.5
    assert abs(1 - float(kept.double().mean()) - share) < 5 * deviation
    torch.testing.assert_close(out[kept], torch.full_like(out[kept], 2 / (1 - share)))
    # Neighbours are independent: pairs along rows and columns are dropped at the expected rate.
    for pair in (~kept[:, 1:] & ~kept[:, :-1], ~kept[1:] & ~kept[:-1]):
        assert abs(float(pair.double().mean()) - share**2) < 5 * share / pair.numel() ** 0.5
    out.backward(torch.ones_like(out))
    torch.testing.assert_close(x.grad, kept * (1 / (1 - share)))
    torch.manual_seed(5)
    assert torch.equal(drop(x), out)
    assert not torch.equal(drop(x), out)
    assert drop.eval()(x) is x
    assert bool((Dropout(0.0).train()(x) == x).all())
    assert drop.train()(torch.zeros(0, 3)).shape == (0, 3)
    assert drop(x.bfloat16()).dtype == torch.bfloat16
    with torch.device("meta"):
        assert drop(x).device.type == "cpu"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_dropout_of_one_drops_every_entry(dtype):
    x = torch.full((300, 1000), 2.0, dtype=dtype, requires_grad=True)
    torch.manual_seed(0)
    out = Dropout(1.0).train()(x)
    out.sum().backward()
    assert torch.equal(out, torch.zeros_like(x))
    assert torch.equal(x.grad, torch.zeros_like(x))


def test_packed_dropout_repeats_with_the_seed():
    batch = PackingCollator()(features((5, 9, 7, 4)))
    model = build("qacg", hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.3).train()

    def logits(seed):
        torch.manual_seed(seed)
        return model(**batch).logits

    assert torch.equal(logits(1), logits(1))
    assert not torch.allclose(logits(1), logits(2))


def test_packing_collator_joins_features():
    rows = features((5, 1, 3))
    batch = PackingCollator()(rows)
    assert next(iter(batch)) == "labels", "Trainer reads the batch size from the first tensor"
    assert batch["input_ids"].tolist() == [i for row in rows for i in row["input_ids"]]
    assert (batch["cu_seqlens"].tolist(), batch["cu_seqlens"].dtype) == ([0, 5, 6, 9], torch.int32)
    assert batch["max_seqlen"] == 5
    assert batch["context_ids"].tolist() == [row["context_ids"] for row in rows]
    assert set(PackingCollator()([{"input_ids": [1, 2]}])) == {"input_ids", "cu_seqlens", "max_seqlen"}
    with raises("ValueError: features: expected at least one, got none"):
        PackingCollator()([])
    with raises("ValueError: features: expected at least one token each, got none in feature 1"):
        PackingCollator()([{"input_ids": [1]}, {"input_ids": []}])


def test_sensitivity_of_an_unpadded_model_keeps_padding():
    batch = padded(features((5, 2)))
    expected = token_sensitivity(build("qacg"), batch, 1)
    model = build("qacg", unpad=True)
    torch.testing.assert_close(token_sensitivity(model, batch, 1), expected)
    assert model.config.unpad


def test_answer_logits_of_an_unpadded_model_keep_padding():
    torch.manual_seed(0)
    batch = {k: v for k, v in padded(features((5, 2), contexts=False)).items() if k != "labels"}
    settings = {k: v for k, v in SIZES.items() if k != "num_labels"}
    found = []
    for unpad in (False, True):
        model = strengthen(BertForQuestionAnswering(PlainBertConfig(**settings, unpad=unpad))).eval()
        found.append(model(**batch).start_logits)
    assert torch.equal(*found)


BAD_INPUTS = {
    "TypeError: cu_seqlens: expected a torch.Tensor, got list": {"cu_seqlens": [0, 9]},
    "ValueError: cu_seqlens: expected shape (B + 1,) with 0 and the end of each sequence": {
        "cu_seqlens": torch.tensor([0])
    },
    "ValueError: expected offsets from 0 to T = 9 that never decrease, got ... smallest difference of -1": {
        "cu_seqlens": torch.tensor([0, 6, 5, 9])
    },
    "ValueError: max_seqlen: expected at least 5, the longest sequence, got 4": {"max_seqlen": 4},
    "ValueError: max_seqlen: expected None without cu_seqlens, got 5": {
        "cu_seqlens": None,
        "input_ids": torch.zeros(3, 4).long(),
    },
    "ValueError: attention_mask: expected None with cu_seqlens, got": {"attention_mask": torch.ones(9).long()},
    "ValueError: input_ids: expected one dimension (T) with cu_seqlens, got shape (1, 9)": {
        "input_ids": torch.zeros(1, 9).long()
    },
    "ValueError: max_seqlen: expected at most max_position_embeddings = 9, got 10": {
        "position_ids": None,
        "max_seqlen": 10,
    },
    "ValueError: inputs_embeds: expected shape (T, hidden_size = 12), got shape (3, 3, 12)": {
        "input_ids": None,
        "inputs_embeds": torch.zeros(3, 3, 12),
    },
}


@error_cases(BAD_INPUTS)
def test_packed_bad_input_raises(error, given):
    with raises(error):
        build("qacg")(**PackingCollator()(features((5, 1, 3))) | given)


def test_unpad_must_be_a_boolean_and_is_saved(tmp_path):
    with raises("TypeError: unpad: expected True or False, got 1"):
        QACGBertConfig(**SIZES, unpad=1)
    build("qacg", unpad=True).save_pretrained(tmp_path)
    assert QACGBertForSequenceClassification.from_pretrained(tmp_path).config.unpad
    assert not QACGBertForSequenceClassification.from_pretrained(tmp_path, unpad=False).config.unpad
