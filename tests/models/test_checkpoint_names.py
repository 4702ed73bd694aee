"""Maps of tensor names, compared with tables written by hand, and their inverses."""

import checkpoint_tables as tables
import pytest
from errors import raises
from qacg_models.checkpoints.tensor_names import HUGGING_FACE, RELEASED, TENSORFLOW, Layout, part_of
from qacg_models.errors import CheckpointError

CONVERTED = Layout(base="", gamma_beta=True)
ROWS = tables.rows(layers=2)
OURS = [ours for ours, *_ in ROWS]
CONTEXT = [
    "bert.context_embeddings.weight",
    "bert.encoder.context_layer.1.weight",
    "bert.encoder.context_layer.1.bias",
    "bert.encoder.layer.11.attention.self.context_for_q.weight",
    "bert.encoder.layer.11.attention.self.lambda_k_context_layer.bias",
    "bert.pooler.attention_gate.0.weight",
    "bert.pooler.attention_gate.3.bias",
    "qa_outputs.weight",
    "cls.predictions.transform.dense.weight",
    "cls.predictions.transform.LayerNorm.bias",
    "cls.predictions.bias",
    "cls.seq_relationship.weight",
]


@pytest.mark.parametrize("ours, path, transposed, converted", ROWS, ids=OURS)
def test_layouts_map_published_names(ours, path, transposed, converted):
    assert TENSORFLOW.from_ours(ours) == (path, transposed)
    assert TENSORFLOW.to_ours(path) == (ours, transposed)
    assert TENSORFLOW.to_ours(path + ":0") == (ours, transposed)
    assert CONVERTED.from_ours(ours) == (converted, False)
    assert CONVERTED.to_ours(converted) == (ours, False)
    assert HUGGING_FACE.from_ours(ours) == (ours, False)
    assert HUGGING_FACE.to_ours(ours) == (ours, False)
    with_prefix = converted if ours.startswith("classifier") else f"bert.{converted}"
    assert RELEASED.from_ours(ours) == (with_prefix, False)
    assert RELEASED.to_ours(with_prefix) == (ours, False)


LAYOUTS = [
    Layout(outer, base, gamma_beta, attention, tensorflow)
    for outer in ("", "module.", "0.auto_model.")
    for base in ("bert.", "")
    for gamma_beta in (False, True)
    for attention in ("released", "compact")
    for tensorflow in (False, True)
    if not (tensorflow and (outer or gamma_beta))
]


@pytest.mark.parametrize("layout", LAYOUTS, ids=Layout.describe)
def test_layout_is_detected_and_invertible(layout):
    names = [*OURS, *CONTEXT]
    theirs = [layout.from_ours(name)[0] for name in names]
    assert len(set(theirs)) == len(names)
    assert [layout.to_ours(name)[0] for name in theirs] == names
    assert [layout.to_ours(name)[1] for name in theirs] == [layout.from_ours(name)[1] for name in names]
    found = Layout.of(theirs)
    # TensorFlow's names always have gamma and beta.
    assert found == layout or (layout.tensorflow and [found.to_ours(name)[0] for name in theirs] == names)


@pytest.mark.parametrize(
    "path, ours",
    [
        ("cls/predictions/output_bias", "cls.predictions.bias"),
        ("cls/predictions/transform/dense/kernel", "cls.predictions.transform.dense.weight"),
        ("cls/predictions/transform/LayerNorm/gamma", "cls.predictions.transform.LayerNorm.weight"),
        ("cls/seq_relationship/output_weights", "cls.seq_relationship.weight"),
        ("cls/squad/output_weights", "qa_outputs.weight"),
        ("cls/squad/output_bias", "qa_outputs.bias"),
    ],
)
def test_tensorflow_head_names_are_mapped(path, ours):
    assert TENSORFLOW.to_ours(path)[0] == ours


@pytest.mark.parametrize(
    "name",
    ["global_step", "bert/embeddings/word_embeddings/adam_m", "bert/encoder/layer_0/output/dense/kernel/adam_v"],
)
def test_tensorflow_optimizer_state_is_ignored(name):
    assert TENSORFLOW.to_ours(name) is None


def test_buffers_are_ignored():
    assert HUGGING_FACE.to_ours("bert.embeddings.position_ids") is None
    assert CONVERTED.to_ours("embeddings.position_ids") is None


def test_layout_of_no_bert_or_several_raises():
    with pytest.raises(
        CheckpointError, match=r"expected a BERT .*got 2 other tensors \(the first ones: h\.0\.w, wte\.weight\)"
    ):
        Layout.of(["wte.weight", "h.0.w"])
    with raises("CheckpointError: expected a BERT"):
        Layout.of([])
    twins = [f"{side}.bert.embeddings.word_embeddings.weight" for side in ("query", "passage")]
    with raises("CheckpointError: expected one encoder, got 2, with the prefixes 'passage.bert.', 'query.bert.'"):
        Layout.of(twins)


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
