"""AspectSentiment for people with a DataFrame: fit, predict, evaluate, save, upload."""

import csv
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from enum import Enum, IntEnum
from operator import attrgetter
from pathlib import Path

import huggingface_hub
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from docs_pages import snippets
from errors import error_cases, raises
from qacg_models import AspectPrediction, AspectSentiment, AspectSentimentClassifier
from qacg_models.cli.program import main
from qacg_models.errors import InputError
from qacg_models.sentiment import tfidf, trained_model
from qacg_models.sentiment.options import RECIPES
from qacg_models.sentiment.trained_model import load_trained
from untrained import OWN, TEXTS, write_model

NAMES = {"text": "review", "aspect": "topic", "label": "verdict"}
OPTIONS = {"start": "scratch", "max_steps": 3, "eval_every": 3}
TRAIN = ["--from", "scratch", "--max-steps", "3", "--set", "eval_every=3"]


def reviews(count=40):
    """A frame with a row for each of three aspects of a review."""
    rows = [
        (f"{TEXTS[number % 2]} in week {number}", aspect, label)
        for number in range(count)
        for aspect, label in zip(OWN.aspects, ("good", "bad", "none") if number % 2 == 0 else ("none", "none", "bad"))
    ]
    return pd.DataFrame(rows, columns=list(NAMES.values()), index=[f"row {number}" for number in range(len(rows))])


def quiet(line):
    """Receives log lines that a test does not need."""


@pytest.fixture(scope="module")
def fitted():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfidf, "SETTINGS", tfidf.SETTINGS[:1])
        return AspectSentiment.fit(reviews(), **NAMES, **OPTIONS, say=quiet)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    return AspectSentiment.from_pretrained(write_model(tmp_path_factory.mktemp("frames") / "model"))


def test_fit_trains_the_weights_of_qacg_train(fitted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reviews().to_csv("reviews.csv", index=False)
    columns = [part for name, column in NAMES.items() for part in (f"--{name}-column", column)]
    assert main(["train", "--data", "reviews.csv", *columns, *TRAIN, "--output", "trained"]) == 0
    fitted.save_pretrained("fitted")
    for name in ("model.safetensors", "tokenizer.json", "calibration.json", "README.md"):
        assert Path("fitted", name).read_bytes() == Path("trained", name).read_bytes(), name
    mine, other = load_trained("fitted"), load_trained("trained")
    assert mine.record.metrics == other.record.metrics
    assert mine.model.config.to_diff_dict() == other.model.config.to_diff_dict()
    saved, written = ({path.name for path in Path(folder).iterdir()} for folder in ("fitted", "trained"))
    assert saved == written


def test_saved_folder_gives_equal_predictions(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "model")
    again = AspectSentiment.from_pretrained(tmp_path / "model")
    pd.testing.assert_frame_equal(again.predict(reviews()), fitted.predict(reviews()), check_exact=True)


def test_fit_in_two_threads_trains_the_weights_of_one():
    def trained(seed):
        options = OPTIONS | {"max_steps": 12, "eval_every": 12, "seed": seed, "say": quiet}
        return AspectSentiment.fit(reviews(20), **NAMES, **options).trained.model.state_dict()

    alone = [trained(seed) for seed in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(trained, (1, 2)))
    for expected, found in zip(alone, together):
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_save_pretrained_keeps_changed_weights(ask, tmp_path):
    ask.save_pretrained(tmp_path / "model")
    changed = AspectSentiment.from_pretrained(tmp_path / "model")
    changed.trained.model.classifier.bias.data += 1.0
    changed.save_pretrained(tmp_path / "model")
    again = AspectSentiment.from_pretrained(tmp_path / "model").trained.model.classifier.bias
    assert (
        again.tolist() == changed.trained.model.classifier.bias.tolist() != ask.trained.model.classifier.bias.tolist()
    )


def test_save_pretrained_leaves_other_folders_alone(ask, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="expected a new or empty folder, or a model folder to replace, got"):
        ask.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with raises("InputError: notes.txt: cannot be created"):
        ask.save_pretrained(tmp_path / "notes.txt" / "model")


def test_fit_dev_frame_selects(tmp_path):
    lines = []
    AspectSentiment.fit(reviews(), dev=reviews(10), **NAMES, **OPTIONS, output=tmp_path / "m", say=lines.append)
    assert "train: 40 sentences" in lines[0] and "dev: 10 sentences" in lines[0]
    assert (tmp_path / "m" / "training.json").is_file()


def test_fit_wide_frame_reads_aspect_columns(tmp_path):
    frame = reviews().pivot(index="review", columns="topic", values="verdict").reset_index()
    frame.loc[0, "price"] = None
    ask = AspectSentiment.fit(
        frame, text="review", aspect_columns=["food", "price"], on_empty="skip", **OPTIONS, say=quiet
    )
    assert ask.aspects == ("food", "price")
    assert sum(part.rows for part in ask.trained.record.data.values()) == 2 * 40 - 1


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        *(
            ("verdict", empty, "has an empty 'verdict'; ... on_empty='skip'")
            for empty in (None, pd.NA, np.datetime64("NaT"), "  ")
        ),
        ("review", "so \ud83d", "'review': expected text that UTF-8 can encode, got \\ud83d, half"),
    ],
    ids=ascii,
)
def test_fit_unusable_cell_raises_with_its_row(column, cell, message):
    frame = reviews().astype(object)
    frame.loc["row 7", column] = cell
    with raises(f"InputError: frame: index 'row 7': {message}"):
        AspectSentiment.fit(frame, **NAMES, **OPTIONS, say=quiet)


def test_fit_skips_empty_rows_and_prints_their_number():
    frame, lines = reviews().astype(object), []
    frame.loc["row 7", "verdict"] = None  # a skipped row does not shift the later ones
    frame.loc["row 9", "review"] = " "
    frame.loc["row 12", list(NAMES.values())] = frame.loc["row 10"]
    ask = AspectSentiment.fit(frame, dev=reviews(10), **NAMES, **OPTIONS, on_empty="skip", say=lines.append)
    assert lines[0] == "left out of train: 2 rows (1 with an empty 'verdict', 1 with an empty 'review')"
    assert ask.trained.record.data["train"].rows == 118
    (warning,) = (line for line in lines if "repeats the text" in line)
    assert warning.endswith(": index 'row 10' 'none', index 'row 12' 'none')")


def test_fit_repeated_id_raises_with_both_rows_by_index():
    frame = reviews().assign(id=[f"review {number // 3}" for number in range(120)])
    frame.loc["row 8", "topic"] = frame.loc["row 6", "topic"]
    with pytest.raises(InputError, match=r"^frame: index 'row 8': .* already has a row for .* at index 'row 6'; "):
        AspectSentiment.fit(frame, **NAMES, **OPTIONS, id_column="id", say=quiet)


@pytest.mark.parametrize("bars", [True, False], ids=["print", "callback"])
def test_fit_progress_is_shown_only_beside_print(bars, capsys):
    AspectSentiment.fit(reviews(), **NAMES, **OPTIONS, **({} if bars else {"say": quiet}))
    assert ("training:" in capsys.readouterr().err) == bars


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"epoch": 3},
            TypeError,
            "epoch: (?!.*, (delimiter|encoding|format|skip_empty)[,.]).*Available: .*dev_fraction",
        ),
        ({"text_column": "x"}, TypeError, "text_column: expected the argument text"),
        ({"delimiter": ";"}, TypeError, "delimiter: expected an option of qacg train for frames, got the option"),
        ({"label": "stars"}, InputError, "label: expected one column 'stars' in the frame, got 'review', 'topic'"),
        ({"on_empty": "drop"}, InputError, "on_empty: expected one of raise, skip, got 'drop'"),
        ({"aspects": ["food"]}, InputError, "frame: index 'row 1': .*aspect: expected one of food, got 'price'"),
    ],
)
def test_fit_bad_argument_raises(given, error, message):
    with pytest.raises(error, match=message):
        AspectSentiment.fit(reviews(), **NAMES | OPTIONS | given, say=quiet)


def test_predict_frame_has_the_index_of_its_texts(ask):
    frame = pd.DataFrame({"text": TEXTS[:2]}, index=["a", "b"])
    found = ask.predict(frame, aspects=["price", "food"])
    assert found.index.tolist() == ["a", "a", "b", "b"]
    assert found.columns.tolist() == ["text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    expected = [one for answers in ask(list(TEXTS[:2]), aspects=["price", "food"]) for one in answers]
    assert found[["text", "aspect", "label"]].to_records(index=False).tolist() == [
        (one.text, one.aspect, one.label) for one in expected
    ]
    assert found["p(good)"].tolist() == [one.probabilities["good"] for one in expected]


def test_predict_frame_keeps_names_and_dtype_of_the_index(ask):
    days = pd.DatetimeIndex(["2025-05-07", "2025-05-08"], name="day")
    found = ask.predict(pd.Series(TEXTS[:2], index=days), aspects=["food"])
    pd.testing.assert_index_equal(found.index, days)
    pairs = pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["hotel", "number"])
    found = ask.predict(pd.DataFrame({"text": TEXTS[:2]}, index=pairs), aspects=["food"])
    pd.testing.assert_index_equal(found.index, pairs)


@pytest.mark.parametrize("form", [pd.DataFrame, dict])
def test_predict_keeps_requested_columns(ask, form):
    days = pd.to_datetime(["2025-05-07", "2025-05-08"])
    columns = {"id": pd.array([517, None], dtype="Int64"), "text": list(TEXTS[:2]), 5: days, "other": ["x", "y"]}
    frame = form(columns) if form is dict else form(columns, index=[7, 7])
    found = ask.predict(frame, aspects=["price", "food"], keep=["id", 5])
    assert found.columns.tolist() == ["id", 5, "text", "aspect", "label", "p(none)", "p(good)", "p(bad)"]
    assert found["id"].fillna(0).tolist() == [517, 517, 0, 0]
    assert found[5].tolist() == days.repeat(2).tolist()
    if form is pd.DataFrame:
        assert found.dtypes[["id", 5]].tolist() == frame.dtypes[["id", 5]].tolist()
        assert found.index.tolist() == [7, 7, 7, 7]


@pytest.mark.parametrize("progress", [True, False])
def test_predict_shows_progress_on_request_only(ask, monkeypatch, capsys, progress):
    monkeypatch.setattr(trained_model, "SORTED_TOGETHER", 2)
    ask.predict(list(TEXTS[:2]), progress=progress)
    assert ("evaluating: 100% 6/6" in capsys.readouterr().err) == progress


def test_predict_frame_without_rows_has_columns_of_texts(ask):
    new = pd.DataFrame({"text": TEXTS[:1]})
    found = ask.predict(new[:0])
    assert found.columns.tolist() == ask.predict(new).columns.tolist()
    assert [found[name].str.upper().tolist() for name in ("text", "aspect", "label")] == [[]] * 3


def test_predict_series_equals_frame(ask):
    texts = pd.Series(TEXTS[:3], name="anything")
    pd.testing.assert_frame_equal(ask.predict(texts), ask.predict(texts.to_frame("text")))


def test_predict_booleans_are_names_as_in_evaluate(tmp_path):
    model = AspectSentiment.from_pretrained(write_model(tmp_path / "m", replace(OWN, aspects=("False", "True"))))
    frame = pd.DataFrame({"text": TEXTS[:2], "aspect": [True, False], "label": ["good", "bad"]})
    assert model.evaluate(frame).accuracy >= 0
    assert model.predict(frame, aspect="aspect")["aspect"].tolist() == ["True", "False"]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A model whose aspects are the texts of numbers and booleans."""
    task = replace(OWN, aspects=("1", "0.5", "1000", "True", "food"))
    return AspectSentiment.from_pretrained(write_model(tmp_path_factory.mktemp("numbered") / "model", task))


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        *((one, "1") for one in (1, 1.0, np.int8(1), np.float32(1), Decimal("1.0"), torch.tensor(1), pa.scalar(1))),
        *((one, "0.5") for one in (0.5, Decimal("0.50"), torch.tensor(0.5), pa.scalar(Decimal("0.50")))),
        *((one, "1000") for one in (Decimal("1E+3"), IntEnum("Size", {"large": 1000}).large)),
        *((one, "True") for one in (True, np.True_, torch.tensor(True), pa.scalar(True))),
        *((one, "food") for one in (np.str_("food"), Enum("Aspect", {"first": "food"}, type=str).first)),
    ],
    ids=repr,
)
def test_predict_cell_becomes_the_text_of_its_value(numbered, cell, text):
    assert numbered.predict({"text": TEXTS[:1], "topic": [cell]}, aspect="topic")["aspect"].tolist() == [text]


ENTRIES = {
    "fit": lambda ask, frame: AspectSentiment.fit(frame, **OPTIONS, say=quiet),
    "dev": lambda ask, frame: AspectSentiment.fit(
        reviews().rename(columns=dict(zip(NAMES.values(), NAMES))), dev=frame, **OPTIONS, say=quiet
    ),
    "evaluate": lambda ask, frame: ask.evaluate(frame),
    "predict": lambda ask, frame: ask.predict(frame, aspect="label"),
    "classifier": lambda ask, frame: AspectSentimentClassifier(aspect="label").fit(frame, TEXTS[:2]),
}
OTHER_TYPES = [b"good", pd.Timestamp(2025, 5, 7), float("inf")]


@pytest.mark.parametrize("cell", OTHER_TYPES, ids=repr)
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_cell_of_another_type_raises_with_its_place(ask, entry, cell):
    columns = {"text": TEXTS[:2], "aspect": ["food"] * 2, "label": pd.Series(["good", cell], dtype=object)}
    frame = pd.DataFrame({name: list(values) for name, values in columns.items()}, index=["a", "b"], dtype=object)
    value = re.escape(repr(frame.loc["b", "label"]))
    with pytest.raises(TypeError, match=rf"^frame: column 'label', index 'b': expected a text, .* got {value}\. "):
        entry(ask, frame)


@pytest.mark.parametrize("kind", [np.array, pd.Series, pd.array])
def test_predict_aspects_of_an_array_equal_those_of_a_list(ask, kind):
    assert ask.predict(TEXTS[:1], aspects=kind(["price", "food"])) == ask.predict(TEXTS[:1], aspects=["price", "food"])


@pytest.mark.parametrize("kind", [list, tuple, np.array], ids=["list", "tuple", "array"])
def test_predict_texts_equals_a_call(ask, kind):
    assert ask.predict(kind(TEXTS[:2])) == ask(list(TEXTS[:2]))


def test_predict_skipped_text_of_a_list_is_empty(ask):
    first, second = ask.predict([float("nan"), TEXTS[0]], on_empty="skip")
    assert first == [] and all(isinstance(one, AspectPrediction) for one in second)


FRAME = {"text": TEXTS[:2], "topic": ["price", "service"]}


@error_cases(
    {
        "TypeError: frame: expected a pandas DataFrame or a mapping of ..., got list": lambda ask: ask.fit([1]),
        "TypeError: texts, index 1: expected a text, a finite number or a boolean, got b'x'. Convert": lambda ask: (
            ask.predict([TEXTS[0], b"x"])
        ),
        "TypeError: frame: column 'text': expected a sequence, a Series or an array, got str.": lambda ask: ask.predict(
            {"text": TEXTS[0]}
        ),
        "TypeError: keep: expected a sequence of names, got 'id'": lambda ask: ask.predict(FRAME, keep="id"),
        "InputError: keep: expected one column 'id' in the frame, got 'text', 'topic'": lambda ask: ask.predict(
            FRAME, keep=["id"]
        ),
        "InputError: keep: expected distinct names that no column of the predictions has, got 'text'": lambda ask: (
            ask.predict(FRAME, keep=["text"])
        ),
        "InputError: text, aspect, target, keep: expected no column names for texts without columns": lambda ask: (
            ask.predict(list(TEXTS[:2]), keep=["id"])
        ),
        "InputError: aspect, aspects: expected one of them, got both": lambda ask: ask.predict(
            FRAME, aspect="topic", aspects=["food"]
        ),
        "InputError: frame: index 'b': text: expected a sentence, got ... (also unusable: index 'c')": lambda ask: (
            ask.predict(pd.Series([TEXTS[0], None, ""], index=["a", "b", "c"]))
        ),
        "InputError: text, aspect, target, keep: expected no column names for texts": lambda ask: ask.predict(
            [TEXTS[0]], text="review"
        ),
    }
)
def test_bad_input_raises(ask, error, given):
    with raises(error):
        given(ask)


@pytest.mark.parametrize("table", ["pyarrow.table", "polars.DataFrame", "datasets.Dataset.from_dict"])
@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
def test_table_of_another_library_raises_with_the_way_out(ask, entry, table):
    columns = {"text": [*TEXTS[:2]], "aspect": ["food"] * 2, "label": ["good", "bad"]}
    package, name = table.split(".", 1)
    made = attrgetter(name)(pytest.importorskip(package))(columns)
    with pytest.raises(TypeError, match=r"expected a pandas DataFrame.*got .*\. Convert .* with to_pandas\(\)\.$"):
        entry(ask, made)


def test_predict_names_of_columns_are_never_replaced(ask):
    assert ask.predict(FRAME, aspect="topic")["aspect"].tolist() == ["price", "service"]
    frame = pd.DataFrame({0: [TEXTS[0]], "": [TEXTS[1]], "text": [TEXTS[2]]})
    for name in (0, ""):
        assert ask.predict(frame, aspects=["food"], text=name)["text"].tolist() == frame[name].tolist()


def test_evaluate_names_of_columns_are_never_replaced(ask):
    frame = pd.DataFrame({"text": TEXTS[:2], "aspect": "food", "label": "good", "": ["", " "]})
    for argument in ("text", "aspect", "label"):
        with raises("InputError: frame: index 0: has an empty '' (also index 1)"):
            ask.evaluate(frame, **{argument: ""})
        with raises(f"InputError: {argument}_column: expected a str, got 0."):
            ask.evaluate(frame, **{argument: 0})


def test_evaluate_equals_qacg_evaluate(ask, tmp_path, capsys):
    frame = reviews(12).rename(columns={"review": "text"})
    rows = list(frame[["text", "topic", "verdict"]].itertuples(index=False, name=None))
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([("text", "aspect", "label"), *rows])
    ask.save_pretrained(tmp_path / "model")
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "model"), "--data", str(tmp_path / "rows.csv"), "--json"]) == 0
    found = ask.evaluate(frame, aspect="topic", label="verdict").to_json()
    assert f'"accuracy": {found["accuracy"]}' in capsys.readouterr().out


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Simulates the hub: uploads are copied to a folder, from which downloads are copied."""
    stored, calls = tmp_path / "hub", []

    def create_repo(self, repo_id, *, private, exist_ok):
        calls.append(("create", repo_id, private, self.token, exist_ok))
        return huggingface_hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, *, repo_id, folder_path, commit_message):
        calls.append(("upload", repo_id, commit_message))
        shutil.copytree(folder_path, stored / repo_id)
        return f"https://huggingface.co/{repo_id}/commit/1"

    def snapshot_download(repo_id, *, revision, token, allow_patterns):
        calls.append(("download", repo_id, revision, token))
        if not (stored / repo_id).is_dir():
            raise OSError("404: no such repository\nlong trace")
        ignored = shutil.ignore_patterns(*allow_patterns)
        found = shutil.copytree(
            stored / repo_id, tmp_path / "cache", ignore=lambda folder, names: {*names} - ignored(folder, names)
        )
        return str(found)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(huggingface_hub.HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.chdir(tmp_path)
    return calls


def test_push_to_hub_uploads_what_from_pretrained_loads(ask, hub):
    assert ask.push_to_hub("me/mine", private=True, token="t") == "https://huggingface.co/me/mine/commit/1"
    again = AspectSentiment.from_pretrained("me/mine", revision="1", token="t")
    assert again(TEXTS[0]) == ask(TEXTS[0])
    assert hub == [
        ("create", "me/mine", True, "t", True),
        ("upload", "me/mine", "Upload AspectSentiment"),
        ("download", "me/mine", "1", "t"),
    ]


def test_from_pretrained_unknown_repository_raises(hub):
    with pytest.raises(InputError, match=r"me/none: no such folder, and the download from the hub failed: 404.*tory$"):
        AspectSentiment.from_pretrained("me/none")


def test_snippets_of_the_documentation_run(tmp_path, monkeypatch):
    """The snippets run with fewer training steps than on the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(RECIPES, "scratch", replace(RECIPES["scratch"], patience=1))
    fit = AspectSentiment.fit.__func__
    monkeypatch.setattr(
        AspectSentiment,
        "fit",
        classmethod(lambda cls, *frames, **options: fit(cls, *frames, **options | {"max_steps": 2})),
    )
    found = {"reviews": reviews(), "new": reviews(3).drop_duplicates("review")}
    for snippet in snippets("how-to/dataframes"):
        exec(snippet, found)
    assert found["answers"]["aspect"].tolist() == [*OWN.aspects] * 3
    assert found["food"].index.tolist() == found["new"].index.tolist()
    assert len(found["scores"]) == 3 and not np.isnan(found["scores"]).any()


@pytest.mark.parametrize("kind", [pa.array, lambda values: pd.array(values, "string").to_numpy()], ids=["arrow", "NA"])
def test_fit_null_labels_of_an_array_are_skipped(kind):
    columns = reviews().reset_index(drop=True).to_dict("list")
    columns["verdict"] = kind([None, *columns["verdict"][1:]])
    ask = AspectSentiment.fit(columns, **NAMES, **OPTIONS, on_empty="skip", say=quiet)
    assert sorted(ask.labels) == ["bad", "good", "none"]
    assert sum(part.rows for part in ask.trained.record.data.values()) == 119
