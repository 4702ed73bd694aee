"""AspectSentimentClassifier: scikit-learn's own checks, cross-validation, and both forms of X."""

import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from errors import error_cases, raises
from qacg_models import AspectSentiment, AspectSentimentClassifier
from qacg_models.errors import InputError
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils import estimator_checks

OPTIONS = {"max_steps": 12, "eval_every": 12}
# The checks of scikit-learn that pass no numbers as X.
CHECKS = (
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_mixin_order",
    "check_do_not_raise_errors_in_init_or_set_param",
)


def pairs(count=24):
    """Reviews whose label a single word decides, and their labels, which are numbers."""
    rows = [
        (f"the {noun} was {word} on day {day}", aspect, stars)
        for day in range(count)
        for noun, aspect in (("soup", "food"), ("bill", "price"))
        for word, stars in ((("fine", 5), ("awful", 1))[day % 2],)
    ]
    frame = pd.DataFrame(rows, columns=["review", "topic", "stars"])
    return frame[["review", "topic"]], frame["stars"]


def classifier(**options):
    given = {"text": "review", "aspect": "topic", "start": "scratch", "options": OPTIONS}
    return AspectSentimentClassifier(**given | options)


@pytest.fixture(scope="module")
def fitted():
    return classifier().fit(*pairs())


@pytest.mark.parametrize("name", CHECKS)
def test_check_of_scikit_learn_passes(name):
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip(f"this scikit-learn has no {name}")
    check("AspectSentimentClassifier", AspectSentimentClassifier())


def test_clone_has_the_parameters_and_no_model(fitted):
    copy = clone(fitted)
    assert is_classifier(copy) and copy.get_params() == fitted.get_params() and not hasattr(copy, "classes_")
    assert copy.set_params(random_state=3).random_state == 3
    assert fitted.sentiment_.trained.record.options.seed == 0


def test_predict_returns_labels_of_the_type_of_y(fitted):
    X, y = pairs()
    found, shares = fitted.predict(X), fitted.predict_proba(X)
    assert found.dtype == y.dtype and fitted.classes_.tolist() == [1, 5]
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (fitted.classes_[shares.argmax(axis=1)] == found).all()
    assert fitted.score(X, y) == (found == y).mean() > 0.9


@pytest.mark.parametrize("form", ["list", "array"])
def test_predict_pairs_equals_frame(fitted, form):
    X, _ = pairs()
    values = X.to_numpy(dtype=object)
    found = fitted.predict_proba(values if form == "array" else values.tolist())
    np.testing.assert_array_equal(found, fitted.predict_proba(X))


@pytest.mark.parametrize("missing", [pd.NA, pd.NaT, None, float("nan"), " "], ids=repr)
def test_predict_missing_text_raises(fitted, missing):
    with pytest.raises(InputError, match=r"got 1 row with an empty cell: 0 \('text'\)"):
        fitted.predict([[missing, "food"]])


@pytest.mark.parametrize("kind", [pa.array, torch.tensor, lambda stars: [Decimal(f"{one}.0") for one in stars]])
def test_fit_labels_are_named_by_their_values(kind):
    X, stars = pairs(8)
    found = classifier(options={"max_steps": 1}).fit(X, kind(stars.tolist()))
    assert found.sentiment_.labels == ("1", "5")
    assert found.classes_.tolist() == [1, 5] and set(found.predict(X)) <= {1, 5}


def test_fit_equal_labels_of_two_types_are_one_class():
    X, stars = pairs(8)
    mixed = np.array([(one == 5, int(one == 5))[row % 2] for row, one in enumerate(stars.tolist())], dtype=object)
    found = classifier(options={"max_steps": 1}).fit(X, mixed)
    assert len(found.sentiment_.labels) == len(found.classes_) == 2
    np.testing.assert_allclose(found.predict_proba(X).sum(axis=1), 1)


def test_fit_labels_without_an_order_raise_before_training(monkeypatch):
    monkeypatch.setattr(AspectSentiment, "fit", None)
    with pytest.raises(TypeError, match="y: expected labels of one type, got several"):
        classifier().fit([("a", "food"), ("b", "food")], np.array(["good", 1], dtype=object))


def test_cross_val_score_learns_the_words(capsys):
    X, y = pairs()
    scores = cross_val_score(
        classifier(), X, y, groups=X["review"], cv=GroupKFold(2), scoring="f1_macro", error_score="raise"
    )
    assert scores.min() > 0.9
    assert capsys.readouterr().out == ""


@pytest.mark.full
def test_grid_search_prefers_more_steps():
    X, y = pairs()
    grid = {"options": [{"max_steps": 1, "eval_every": 1}, OPTIONS]}
    found = GridSearchCV(classifier(), grid, cv=GroupKFold(2), error_score="raise").fit(X, y, groups=X["review"])
    assert found.best_params_ == {"options": OPTIONS}


def test_pickled_or_saved_model_predicts_the_same(fitted, tmp_path):
    X, _ = pairs()
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
    fitted.sentiment_.save_pretrained(tmp_path / "model")
    assert type(fitted.sentiment_).from_pretrained(tmp_path / "model").aspects == ("food", "price")


FOOD = [("a", "food"), ("b", "food")]


@error_cases(
    {
        "ValueError: requires y to be passed": (FOOD, None),
        "InputError: y: expected 2 labels, one for each row of X, got the shape (1,)": (FOOD, [1]),
        "InputError: got 1 row with an empty cell: 1 ('aspect')": ([FOOD[0], ("b", None)], [1, 2]),
        "InputError: 1 ('y'). Fill in these cells, or drop these rows": (FOOD, [1, None]),
        "InputError: 1 row with an empty cell: 1 ('y')": (FOOD, [1, pd.NaT]),
        "InputError: X: expected a DataFrame, a mapping, or a sequence of pairs of ..., got": (
            ["a", "b"],
            [1, 2],
        ),
        "TypeError: X: text, index 0: expected a text, a finite number or a boolean, got b'a'": ([(b"a", "food")], [1]),
        "TypeError: y, index 0: expected a text, a finite number or a boolean, got b'good'": ([FOOD[0]], [b"good"]),
        "InputError: aspect: expected one column 'aspect' in the frame, got 'text'": ({"text": ["a"]}, [1]),
    }
)
def test_fit_bad_input_raises(error, given):
    with raises(error):
        AspectSentimentClassifier().fit(*given)


def test_fit_options_that_are_no_mapping_raise():
    with raises("TypeError: options: expected a mapping or None, got list"):
        AspectSentimentClassifier(options=["epochs"]).fit(FOOD, ["good", "bad"])


def test_failed_fit_keeps_the_fitted_model(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    with raises("InputError: labels: expected at least 2, got 1"):
        again.fit(FOOD, [7, 7])
    assert again.classes_.tolist() == [1, 5]


def test_predict_without_a_fit_or_the_aspect_raises(fitted):
    with pytest.raises(NotFittedError):
        classifier().predict([("a", "food")])
    with raises("InputError: aspect: expected one of the model's aspects"):
        fitted.predict([("fine", "view")])
