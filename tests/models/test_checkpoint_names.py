"""Maps of tensor names, compared with tables written by hand."""

import checkpoint_tables as tables
import pytest
from errors import raises
from qacg_models.checkpoints.fitting import Layout, part_of
from qacg_models.errors import CheckpointError

OURS = [*tables.backbone_names(layers=2), "classifier.weight", "classifier.bias"]
CONTEXT = [
    "bert.context_embeddings.weight",
    "bert.encoder.context_layer.1.weight",
    "bert.encoder.layer.11.attention.self.context_for_q.weight",
    "bert.encoder.layer.11.attention.self.lambda_k_context_layer.bias",
    "bert.pooler.attention_gate.0.weight",
    "qa_outputs.weight",
    "cls.predictions.transform.LayerNorm.bias",
]
FORMS = {
    "this package": dict,
    "converted": tables.as_converted,
    "released": lambda state: tables.as_released(state, gate=False),
    "compact": tables.as_compact,
}


@pytest.mark.parametrize("outer", ["", "module.", "0.auto_model."])
@pytest.mark.parametrize("form", FORMS)
def test_layout_maps_published_names_to_ours(form, outer):
    theirs = {outer + name: ours for name, ours in FORMS[form]({name: name for name in [*OURS, *CONTEXT]}).items()}
    layout = Layout.of_bert(theirs)
    assert {name: layout.to_ours(name) for name in theirs} == theirs
    assert layout.attention == ("compact" if form == "compact" else "released")
    assert layout.outer == outer


def test_buffers_are_ignored():
    assert Layout().to_ours("bert.embeddings.position_ids") is None
    assert Layout(encoder="").to_ours("embeddings.position_ids") is None


def test_layout_of_no_bert_or_several_raises():
    with pytest.raises(
        CheckpointError, match=r"expected a BERT .*got 2 other tensors \(the first ones: h\.0\.w, wte\.weight\)"
    ):
        Layout.of_bert(["wte.weight", "h.0.w"])
    with raises("CheckpointError: expected a BERT"):
        Layout.of_bert([])
    twins = [f"{side}.bert.embeddings.word_embeddings.weight" for side in ("query", "passage")]
    with raises("CheckpointError: expected one encoder, got 2, with the prefixes 'passage.bert.', 'query.bert.'"):
        Layout.of_bert(twins)


@pytest.mark.parametrize(
    "name, part",
    [
        ("bert.embeddings.LayerNorm.weight", "backbone"),
        ("bert.encoder.layer.3.attention.self.key.bias", "backbone"),
        ("bert.encoder.layer.3.attention.self.lambda_k_key_layer.bias", "context"),
        ("bert.encoder.layer.3.attention.self.context_for_k.weight", "context"),
        ("bert.encoder.context_layer.3.weight", "context"),
        ("bert.context_embeddings.weight", "context"),
        ("bert.pooler.dense.bias", "pooler"),
        ("bert.pooler.attention_gate.3.bias", "pooler gate"),
        ("classifier.bias", "head"),
    ],
)
def test_part_of_a_tensor_is_its_group(name, part):
    assert part_of(name) == part
