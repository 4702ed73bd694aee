"""The study of many aspects: its models against those of the package, its trainings, results and tables."""

import math

import numpy as np
import pytest
import torch
from qacg_models.data import Example, load_data, sample_directory
from qacg_models.data.options import DataOptions
from qacg_models.data.tokenization import encode_examples, load_tokenizer, train_tokenizer
from qacg_models.models.bert import BertForSequenceClassification
from qacg_models.models.qacg_bert import QACGBertForSequenceClassification
from qacg_models.modules.context_fold import Projections
from qacg_models.modules.packing import packing_of
from qacg_models.modules.quasi_self_attention import QuasiSelfAttention, eager_quasi_attention

from benchmarks.many_aspects import __main__ as program, arms, models, speed, training, unseen
from benchmarks.many_aspects.arms import ARMS, BLIND, LAYERS, QUASI, SEEDS, SETTINGS, Trial
from benchmarks.many_aspects.batches import Questions
from benchmarks.many_aspects.models import AspectModel, StudyAttention
from benchmarks.many_aspects.results import Result, load, store
from benchmarks.many_aspects.starts import start_context_projections
from benchmarks.measure.timing import QUICK
from qacg_kernels.call.quasi_bias import MINUS_LOG_KEYS
from qacg_kernels.nn import FusedQuasiAttention

HEADS = 2


@pytest.fixture(scope="module")
def dataset():
    return load_data(sample_directory(), ("train", "dev", "test"), DataOptions())


@pytest.fixture(scope="module")
def checkpoint(dataset, tmp_path_factory):
    """A BERT with the layers of MiniLM, narrow and with random weights."""
    folder = tmp_path_factory.mktemp("minilm")
    sentences = {row.sentence for row in dataset.splits["train"]}
    tokenizer = train_tokenizer([*sorted(sentences), *dataset.contexts], 500)
    torch.manual_seed(0)
    config = BertForSequenceClassification.config_class(
        vocab_size=len(tokenizer),
        hidden_size=8 * HEADS,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=24,
        max_position_embeddings=160,
        initializer_range=0.3,
    )
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def narrow_minilm(checkpoint, monkeypatch):
    for module in (models, speed, training):
        monkeypatch.setattr(module, "located", lambda name: {"minilm": checkpoint}[name])


def built(name, dataset, checkpoint, rows):
    """Returns the model of an arm of the study, and the inputs for some rows."""
    torch.manual_seed(1)
    tokenizer, arm = load_tokenizer(checkpoint), ARMS[name]
    questions = Questions(rows, tokenizer, dataset.contexts, name == "pairs-0")
    return AspectModel(arm, len(dataset.task.labels), dataset.contexts, tokenizer).eval(), questions


def answers(model, questions, rows_of_a_batch):
    with torch.inference_mode():
        batches = list(questions.by_length(rows_of_a_batch))
        found = torch.cat([model(batch) for batch in batches])
    order = np.concatenate([batch.rows for batch in batches])
    return found[np.argsort(order)]


@pytest.mark.parametrize("name", ARMS)
def test_answers_depend_on_text_and_aspect_alone(name, dataset, checkpoint):
    rows = dataset.splits["dev"][:40]
    model, questions = built(name, dataset, checkpoint, rows)
    together = answers(model, questions, 16)
    assert torch.allclose(together, answers(model, questions, 1), atol=1e-5)
    by_text = {}
    for row, answer in zip(rows, together):
        by_text.setdefault(row.sentence, []).append(answer)
    spread = max(float((answer - each[0]).abs().max()) for each in by_text.values() for answer in each)
    assert spread == 0 if ARMS[name].kind == BLIND else spread > 1e-4


def features_of(dataset, checkpoint, rows, standalone):
    tokenizer = load_tokenizer(checkpoint)
    return encode_examples(rows, tokenizer, dataset.contexts, 128, standalone)[0]


def test_pairs_are_those_of_bert(dataset, checkpoint):
    rows = dataset.splits["dev"][:10]
    model, questions = built("pairs-0", dataset, checkpoint, rows)
    bert, _ = BertForSequenceClassification.from_pretrained(checkpoint, output_loading_info=True)
    bert = BertForSequenceClassification(bert.config).eval()
    bert.bert.embeddings, bert.bert.pooler = model.embeddings, model.pooler
    bert.bert.encoder.layer, bert.classifier = model.layer, model.classifier
    found = answers(model, questions, 16)
    for feature, answer in zip(features_of(dataset, checkpoint, rows, False), found):
        ids, types = (torch.tensor([feature[name]]) for name in ("input_ids", "token_type_ids"))
        with torch.inference_mode():
            assert torch.allclose(bert(ids, token_type_ids=types).logits[0], answer, atol=1e-5)


def test_released_start_is_qacg_bert(dataset, checkpoint):
    rows = dataset.splits["dev"][:10]
    model, questions = built("quasi-0", dataset, checkpoint, rows)
    config = QACGBertForSequenceClassification.config_class(
        **{name: getattr(model.config, name) for name in ("vocab_size", "hidden_size", "intermediate_size")},
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=160,
        contexts=list(dataset.contexts),
        num_labels=len(dataset.task.labels),
    )
    published = QACGBertForSequenceClassification(config).eval()
    published.bert.embeddings, published.bert.pooler = model.embeddings, model.pooler
    published.bert.context_embeddings, published.classifier = model.context_embeddings, model.classifier
    published.bert.encoder.context_layer = model.context_layer
    for layer, own in zip(published.bert.encoder.layer, model.layer):
        layer.load_state_dict(own.state_dict())
    found = answers(model, questions, 16)
    for feature, answer in zip(features_of(dataset, checkpoint, rows, True), found):
        with torch.inference_mode():
            one = published(torch.tensor([feature["input_ids"]]), context_ids=torch.tensor([feature["context_ids"]]))
        assert torch.allclose(one.logits[0], answer, atol=1e-5)


@pytest.mark.parametrize(("variant", "value"), [("quasi_bias", MINUS_LOG_KEYS), ("softmax_map", True)])
def test_variants_follow_their_formulas(variant, value, dataset, checkpoint):
    model, _ = built("quasi-0", dataset, checkpoint, dataset.splits["dev"][:4])
    attention = model.layer[0].attention.self
    assert isinstance(attention, StudyAttention)
    hidden, lengths = torch.randn(2, 12, 8 * HEADS).unbind(), [5, 7]
    packing = packing_of(torch.tensor([0, 5, 12]), None, hidden[0])
    setattr(attention, variant, value)
    options = {"first_only": False, "output_attentions": False, "output_gates": False}
    with torch.no_grad():
        projected = attention.project(*hidden)
        found = attention(Projections(projected, None), packing, None, **options)[0].split(lengths)
        heads = [x.split(lengths) for x in projected]
        gate = attention.gate(projected)
        for number, length in enumerate(lengths):
            one = [x[number].transpose(0, 1).unsqueeze(0) for x in heads]
            _, (_, softmax, gated), lam = eager_quasi_attention(one, gate, None, 0.0, 1.0)
            scores = one[3] @ one[4].transpose(-1, -2) * one[3].shape[-1] ** -0.5
            second = (scores - math.log(length)).sigmoid() if variant == "quasi_bias" else scores.softmax(-1)
            expected = (softmax + lam.unsqueeze(-1) * second) @ one[2]
            assert torch.allclose(found[number], expected[0].transpose(0, 1).flatten(1), atol=1e-5)
            assert not torch.allclose(second * lam.unsqueeze(-1), gated, atol=1e-3), "the variant must change the map"


def test_copied_start_equals_the_softmax_scores(dataset, checkpoint):
    model, _ = built("quasi-0-copied", dataset, checkpoint, dataset.splits["dev"][:4])
    for layer, context_layer in zip(model.layer, model.context_layer):
        attention, x = layer.attention.self, torch.randn(3, 8 * HEADS)
        both = torch.cat([torch.randn(3, 8 * HEADS), x], 1)
        assert torch.equal(context_layer(both), x)
        assert torch.equal(attention.layer("context_query")(x), attention.layer("query")(x))
        assert torch.equal(attention.layer("context_key")(x), attention.layer("key")(x))


def test_new_parameters_are_those_that_minilm_lacks(dataset, checkpoint):
    model, _ = built("quasi-0", dataset, checkpoint, dataset.splits["dev"][:4])
    new = model.new_parameters()
    names = {name.split(".")[0] if "layer.0" not in name else name for name, p in model.named_parameters() if p in new}
    gates = {name for name, _ in model.layer[0].attention.self.named_parameters() if "lambda" in name}
    assert gates, "a QACG-BERT has gates"
    assert {f"layer.0.attention.self.{name}" for name in gates} <= names
    assert not {"embeddings", "pooler"} & names
    assert all(isinstance(layer.attention.self, QuasiSelfAttention) for layer in model.layer)


def test_every_arm_has_the_same_settings():
    tried = {}
    for trial in arms.searches():
        tried.setdefault(trial.arm, []).append(trial.setting)
    assert tried == {name: list(SETTINGS) for name in ARMS}


def test_best_setting_is_evaluated(monkeypatch):
    monkeypatch.setitem(SETTINGS, "other", arms.Setting(1e-3, 1.0))
    dev = {trial.name: 0.5 for trial in arms.searches() if trial.arm == "heads"}
    dev[Trial("sentihood", "heads", "other", 0).name] = 0.6
    found = arms.evaluated(dev | {Trial("sentihood", "blind", "other", 0).name: 0.9})
    assert [(one.data, one.arm, one.setting, one.seed) for one in found] == [
        (data, "heads", "other", seed) for data in arms.DATA for seed in SEEDS
    ]


def test_other_setting_that_is_better_on_dev_is_evaluated_too():
    first, other = next(iter(SETTINGS)), next(iter(arms.OTHER_SETTINGS))
    better, worse = arms.OTHER_SETTINGS_OF[:2]
    dev = {Trial("sentihood", arm, first, 0).name: 0.5 for arm in (better, worse)}
    dev |= {Trial("sentihood", arm, other, 0).name: value for arm, value in ((better, 0.6), (worse, 0.4))}
    found = [one for one in arms.evaluated(dev) if one.setting == other]
    assert found == [Trial("sentihood", better, other, seed) for seed in SEEDS]


def test_context_enters_at_every_layer():
    assert {arm.from_layer for arm in ARMS.values() if arm.kind == QUASI} == set(range(LAYERS))


def test_study_from_training_to_tables(small_data, tmp_path, monkeypatch, capsys):
    for name in [*ARMS]:
        if name not in ("pairs-0", "token-5"):
            monkeypatch.delitem(ARMS, name)
    for name in [*SETTINGS][1:]:
        monkeypatch.delitem(SETTINGS, name)
    monkeypatch.setattr(arms, "SEEDS", (1,))
    monkeypatch.setattr(arms, "OTHER_SETTINGS_OF", ("token-5",))
    monkeypatch.setattr(training, "EPOCHS", 1)
    monkeypatch.delitem(arms.DATA, "semeval2014")
    monkeypatch.setitem(arms.DATA, "sentihood", DataOptions())
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sentihood").symlink_to(small_data, target_is_directory=True)
    out = tmp_path / "out"
    arguments = ["--data", str(tmp_path / "data"), "--out", str(out)]
    assert program.main(arguments) == 0
    results = load(out)
    setting = next(iter(SETTINGS))
    chosen = {f"sentihood_{name}_{setting}_{seed}" for name in ("pairs-0", "token-5") for seed in (0, 1)}
    assert set(results) == chosen | {f"sentihood_token-5_{other}_0" for other in arms.OTHER_SETTINGS}
    assert [one.scores is None for one in results.values()] == [one.trial.is_search for one in results.values()]
    assert results[f"sentihood_token-5_{setting}_1"].scores.shape == (80, 3)
    monkeypatch.setattr(training, "fit", None)
    speed.measure(tmp_path / "data", out, effort=QUICK)
    assert program.main([*arguments, "--table"]) == 0
    text = (out / "many_aspects.md").read_text()
    assert text in capsys.readouterr().out
    assert text.count("| aspect as a token from layer 5 |") == 3
    assert (out / "many_aspects.svg").read_text().startswith("<?xml")
    assert program.main(arguments) == 0, "a finished study trains nothing"


def test_left_out_aspect_is_not_trained_on(small_data, tmp_path, monkeypatch, capsys):
    small = {"sentihood": load_data(small_data, ("train", "test"), DataOptions())}
    monkeypatch.setattr(unseen, "load_datasets", lambda data: small)
    monkeypatch.setattr(unseen, "UNSEEN_ARMS", ("quasi-4-computed",))
    monkeypatch.setattr(unseen, "DRAWS", 20)
    trained = []

    def fit(model, questions, trial):
        trained.append({model.names[row["context_ids"]] for row in questions.features})

    class Named(AspectModel):
        def __init__(self, arm, classes, contexts, tokenizer):
            super().__init__(arm, classes, contexts, tokenizer)
            self.names = contexts

    monkeypatch.setattr(training, "AspectModel", Named)
    monkeypatch.setattr(unseen, "fit", fit)
    arguments = ["--unseen", "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    assert program.main(arguments) == 0
    aspects = ("general", "price", "safety", "transit location")
    everything = {f"location - {number} - {aspect}" for number in (1, 2) for aspect in aspects}
    assert sorted(map(sorted, trained)) == sorted(
        sorted(name for name in everything if not name.endswith(aspect)) for aspect in aspects
    )
    assert (tmp_path / "out" / "unseen.md").read_text().strip() in capsys.readouterr().out
    assert program.main(arguments) == 0
    assert len(trained) == len(aspects), "a finished run trains nothing"
    assert program.main([*arguments, "--only", "nothing"]) == 1
    assert "--only: expected one of sentihood_general_quasi-4-computed_1" in capsys.readouterr().err


def asked(*labels):
    """Questions about "food" with these labels, and one about "price" with label 0 for each text."""
    return [
        Example(f"{number} {aspect}", f"text {number}", aspect, "", aspect, label * (aspect == "food"), number)
        for number, label in enumerate(labels)
        for aspect in ("food", "price")
    ]


def test_measures_of_an_unseen_aspect():
    rows = asked(0, 1, 2, 0, 1)
    right = np.log([[0.9, 0.05, 0.05], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.8, 0.1, 0.1], [0.2, 0.6, 0.2]])
    price = np.log([0.5, 0.25, 0.25])
    scores = np.array([one for row in right for one in (row, price)])
    known = unseen.Answers(rows, scores, "food", (1, 2))
    assert known.values() == [1.0, 0.5, 1.0], "the other aspect has the same score for every text"
    assert known.texts == [f"text {number}" for number in range(5)]
    first_two, praise_and_blame = scores.copy(), scores.copy()
    first_two[[0, 2]] = scores[[2, 0]]
    praise_and_blame[[2, 4]] = scores[[4, 2]]
    found, gain, _ = unseen.Answers(rows, first_two, "food", (1, 2)).values()
    # Of six pairs of a text about food and one that is not, two are in order and one is a tie.
    assert (found, gain) == (pytest.approx(2.5 / 6), pytest.approx(2.5 / 6 - 0.5))
    assert unseen.Answers(rows, praise_and_blame, "food", (1, 2)).values() == [1.0, 0.5, 0.0]


def test_unknown_trial_is_named(tmp_path, capsys):
    arguments = ["--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert program.main([*arguments, "--only", "nothing"]) == 1
    assert "--only: expected one of sentihood_pairs-0_1e-4-x5_0" in capsys.readouterr().err


def test_results_are_read_back_unchanged(tmp_path):
    trial = Trial("sentihood", "heads", "1e-4-x1", 1)
    stored = Result(trial, 0.5, 60.0, {"versions": {}}, np.zeros((2, 3), np.float16))
    store(tmp_path, stored)
    found = load(tmp_path)[trial.name]
    assert (found.trial, found.dev, found.seconds, found.machine) == (trial, 0.5, 60.0, {"versions": {}})
    assert np.array_equal(found.scores, stored.scores)


@pytest.mark.parametrize("keys", [None, 27])
def test_projections_start_as_copies_with_a_bias(keys):
    attention, states = FusedQuasiAttention(16, 2).eval(), torch.randn(6, 16)
    start_context_projections(attention, keys)
    query, key, _, context_query, context_key = attention.project(states, states)
    for head in range(2):
        scores = context_query[:, head] @ context_key[:, head].T / 8**0.5
        copied = query[:, head] @ key[:, head].T / 8**0.5
        constant = (context_query[:, head].std(0) < 1e-6).nonzero().flatten()
        assert len(constant) == (0 if keys is None else 1)
        for feature in constant:
            copied = copied - torch.outer(query[:, head, feature], key[:, head, feature]) / 8**0.5 - math.log(keys)
        assert torch.allclose(scores, copied, atol=1e-5)
