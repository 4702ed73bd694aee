"""Predictor: from a DataFrame to a DataFrame, in chunks, with rows that cannot be used."""

import pickle

import pandas as pd
import pytest
from errors import raises
from qacg_models.sentiment.predictor import Predictor, UnusableRows
from qacg_models.sentiment.trained_model import load_trained
from untrained import OWN, TEXTS

SHARES = [f"p({label})" for label in OWN.labels]


@pytest.fixture(scope="module")
def predictor(model):
    return Predictor(load_trained(model))


@pytest.fixture
def frame():
    return pd.DataFrame({"id": list("xyz"), "text": [*TEXTS[:2], "The bill. The food was fine."]}, index=[7, 7, 3])


def test_predict_has_a_row_for_each_text_and_aspect(predictor, frame):
    found = predictor.predict(frame, aspects=["price", "food"], min_confidence=0.5, keep=["id"])
    assert found.index.tolist() == [7, 7, 7, 7, 3, 3]
    assert found.columns.tolist() == ["id", "text", "aspect", "label", "certainty", *SHARES]
    assert found["id"].tolist() == list("xxyyzz") and found["aspect"].tolist() == ["price", "food"] * 3
    best = found[SHARES].to_numpy()
    assert found["label"].tolist() == [OWN.labels[place] for place in best.argmax(axis=1)]
    assert (found["certainty"] == "certain").tolist() == (best.max(axis=1) >= 0.5).tolist()


@pytest.mark.parametrize("by", ["text", "sentence", "document"])
def test_predict_by_chunks_equals_the_whole_frame(predictor, frame, by):
    """As an engine divides a table; batches of other sizes round differently."""
    whole = predictor.predict(frame, by=by)
    chunks = [predictor.predict(frame[start : start + 1], by=by) for start in range(len(frame))]
    pd.testing.assert_frame_equal(pd.concat(chunks), whole, rtol=0, atol=1e-6)


def test_predict_leaves_its_input_unchanged(predictor, frame):
    before = frame.copy()
    predictor.predict(frame, by="sentence", min_confidence=0.9)
    pd.testing.assert_frame_equal(frame, before)


def test_predict_skipped_rows_have_no_prediction(predictor):
    cells = {"text": [TEXTS[0], None, TEXTS[1], " "], "aspect": ["food", "food", float("nan"), "price"]}
    found = predictor.predict(pd.DataFrame(cells), by="sentence", min_confidence=0.5, on_empty="skip")
    assert found.index.tolist() == [0, 1, 2, 3] and found["sentence"].dtype == "Int64"
    for name in ("sentence", "label", "certainty", *SHARES):
        assert found[name].isna().tolist() == [False, True, True, True]
    assert found["aspect"].isna().tolist() == [False, False, True, False]
    assert found["text"].isna().tolist() == [False, True, False, True]


def test_predict_lists_unusable_rows(predictor):
    frame = pd.DataFrame({"text": ["fine", "", "so so"], "aspect": ["food", "food", "view"]}, index=["a", "b", "c"])
    message = "InputError: frame: index 'b': text: expected a sentence, got ... (also unusable: index 'c')"
    with raises(message) as caught:
        predictor.predict(frame)
    assert caught.value.reasons.keys() == {1, 2} and caught.value.reasons[2].endswith("got 'view'")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value), "a worker can report it"
    with pytest.raises(UnusableRows, match=r"index 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 19 more\)$"):
        predictor.predict(pd.DataFrame({"text": [""] * 30}))


def test_predict_packs_texts_by_length(predictor, monkeypatch):
    seen, forward = [], predictor.trained.model.forward
    monkeypatch.setattr(
        predictor.trained.model, "forward", lambda **batch: seen.append(batch["cu_seqlens"].diff()) or forward(**batch)
    )
    texts = ["slow " * (number % 5 + 1) for number in range(10)]
    predictor.predict(pd.DataFrame({"text": texts}), aspects=["food"], batch_size=4)
    lengths = [length for batch in seen for length in batch.tolist()]
    assert [len(batch) for batch in seen] == [4, 4, 2] and lengths == sorted(lengths) != lengths[::-1]


@pytest.mark.parametrize(
    ("frame", "options", "error"),
    [
        ([TEXTS[0]], {}, "TypeError: frame: expected a pandas DataFrame, got list"),
        (pd.DataFrame({"words": ["a"]}), {}, "InputError: frame: expected the column 'text', got 'words'"),
        (pd.DataFrame({"text": [b"a"]}), {}, "TypeError: frame: column 'text', index 0: expected a text"),
        (pd.DataFrame({"text": ["a"]}), {"on_empty": "drop"}, "InputError: on_empty: expected one of raise, skip"),
    ],
)
def test_predict_bad_arguments_raise(predictor, frame, options, error):
    with raises(error):
        predictor.predict(frame, **options)
