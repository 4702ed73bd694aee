"""The TF-IDF row: what scikit-learn gives by hand, its limits, and where a training shows it."""

import numpy as np
import pytest
from qacg_models.data import load_data
from qacg_models.data.example import Example
from qacg_models.metrics import judge, tfidf
from qacg_models.metrics.tfidf import TfidfBaseline
from qacg_models.reporting.result_tables import stored_results, weaker_than_tfidf
from qacg_models.runs.options import TrainingOptions
from qacg_models.training import run, train
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

TINY = TrainingOptions(max_steps=2, hidden_size=16, layers=1, heads=2, intermediate_size=32, learning_rate=1e-9)


def rows(*triples):
    return [Example(str(n), text, aspect, "", aspect, label, n) for n, (text, aspect, label) in enumerate(triples)]


@pytest.fixture(scope="module")
def dataset(small_data):
    return load_data(small_data)


def test_the_row_is_what_scikit_learn_gives_by_hand(dataset):
    train_rows, test_rows = dataset.splits["train"], dataset.splits["test"]
    found = TfidfBaseline(train_rows, 3).probabilities(test_rows)
    labels = {context: {row.label for row in train_rows if row.context == context} for context in dataset.contexts}
    contexts = [context for context in dataset.contexts if len(labels[context]) > 1]
    assert len(contexts) > 4
    for context in contexts:
        seen = [row for row in train_rows if row.context == context]
        asked = [index for index, row in enumerate(test_rows) if row.context == context]
        counter, weights = CountVectorizer(ngram_range=(1, 2)), TfidfTransformer()
        inputs = weights.fit_transform(counter.fit_transform(row.sentence for row in seen))
        model = LogisticRegression(max_iter=1000).fit(inputs, [row.label for row in seen])
        outputs = weights.transform(counter.transform(test_rows[index].sentence for index in asked))
        np.testing.assert_allclose(found[asked][:, model.classes_], model.predict_proba(outputs), rtol=1e-9)
        assert found[asked].sum() == pytest.approx(len(asked))


def test_contexts_that_no_regression_can_be_fitted_to():
    known = rows(
        ("good soup", "food", 1), ("bad soup", "food", 2), ("a b", "wine", 0), ("c", "wine", 2), ("far off", "place", 1)
    )  # fmt: skip
    found = TfidfBaseline(known, 3).probabilities(
        rows(("good", "food", 0), ("x y", "wine", 0), ("near", "place", 0), ("dear", "price", 0))
    )
    assert found[0].argmax() == 1 and found[0][0] == 0
    assert found[1].tolist() == [0.5, 0, 0.5], "no word of two letters: the shares of the context"
    assert found[2].tolist() == [0, 1, 0], "one label only"
    assert found[3].tolist() == [0.2, 0.4, 0.4], "never seen: the shares of all rows"


def test_of_very_many_rows_as_many_are_taken_as_take_seconds(dataset, monkeypatch):
    half = TfidfBaseline(dataset.splits["train"], 3, most_rows=120)
    assert 100 <= half.used <= 120 and half.models.keys() == {row.context for row in dataset.splits["train"]}
    said = []
    monkeypatch.setattr(tfidf, "MOST_ROWS", 120)
    monkeypatch.setattr(run, "TfidfBaseline", lambda rows, classes: TfidfBaseline(rows, classes, tfidf.MOST_ROWS))
    run._tfidf_figures(dataset, ["dev"], said.append)
    assert said == [f"TF-IDF + logistic regression: fitted to {half.used} of 240 training rows, to take seconds"]


def test_every_training_has_the_row_and_says_when_the_model_does_worse(dataset, tmp_path):
    record = train(dataset, tmp_path / "m", TINY, say=lambda line: None).record
    baseline = TfidfBaseline(dataset.splits["train"], 3)
    for split in ("dev", "test"):
        wanted = judge(dataset.task, dataset.splits[split], baseline.probabilities(dataset.splits[split]))
        assert record.tfidf[split].to_json() == wanted.to_json()
        assert [*stored_results(record, split)] == ["QACG-BERT", "TF-IDF + logistic regression", "majority"]
    assert record.tfidf["test"].strict_accuracy > record.metrics["test"].strict_accuracy, "two tiny steps learn nothing"
    assert any(line.startswith("test: TF-IDF + logistic regression does better") for line in weaker_than_tfidf(record))
