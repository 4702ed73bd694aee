"""BatchPredictor in one process, and the examples of engines: killed workers, empty cells, labels of `qacg predict`."""

import csv
import importlib.util
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from docs_pages import DOCS, snippets
from errors import error_cases, raises
from processes import ROOT, SUPPORT, run_python
from qacg_models import AspectSentiment, BatchPredictor
from qacg_models.cli.program import main
from qacg_models.sentiment import engines
from untrained import OWN, TEXTS, write_model

SECONDS = 400  # a run takes a minute; the limit is for a busy machine
SHARES = [f"p({label})" for label in OWN.labels]
OPTIONS = {"text": "review", "keep": ["id"], "on_empty": "skip"}


@pytest.fixture
def batch():
    cells = {"review": [TEXTS[0], None, TEXTS[1]], "id": [517, 518, 519], "hotel": ["x", "y", None]}
    return pd.DataFrame(cells, index=[7, 7, 7])


@pytest.fixture
def loads(monkeypatch):
    """The folders of which models were loaded, without those of other tests."""
    found, load = [], AspectSentiment.from_pretrained
    monkeypatch.setattr(
        AspectSentiment, "from_pretrained", lambda name, **options: found.append(name) or load(name, **options)
    )
    engines._loaded.cache_clear()
    yield found
    engines._loaded.cache_clear()


def test_batch_predictor_equals_the_model_and_keeps_columns(model, batch):
    found = BatchPredictor(model, text="review", keep=["id", "hotel"], on_empty="skip", aspects=["food"])(batch)
    expected = AspectSentiment.from_pretrained(model).predict(batch, ["food"], text="review", on_empty="skip")
    assert found.columns.tolist() == ["id", "hotel", "text", "aspect", "label", *SHARES]
    assert found["id"].tolist() == [517, 518, 519] and found["hotel"].isna().tolist() == [False, False, True]
    assert found["label"].isna().tolist() == [False, True, False]
    assert found["label"].dropna().tolist() == expected["label"].dropna().tolist()
    np.testing.assert_array_equal(found[SHARES], expected[SHARES])


def test_page_snippet_predicts_and_its_examples_are_short(tmp_path, batch, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "mine", layers=1)
    found = {"reviews": batch}
    for snippet in snippets("how-to/many-reviews"):
        exec(snippet, found)
    assert capsys.readouterr().out.endswith(" ms of processor time per text\n")
    assert found["predictions"].columns.tolist() == ["id", "text", "aspect", "label", *SHARES]
    for name in ("ray", "spark", "dask"):
        assert len((DOCS / "examples" / f"{name}_predict.py").read_text().splitlines()) <= 60


@pytest.mark.parametrize("dtype", [object, "str", "string", "string[pyarrow]", "arrow", "category"])
def test_batch_predictor_reads_any_dtype_of_texts(model, batch, dtype):
    pa = pytest.importorskip("pyarrow")
    plain = BatchPredictor(model, **OPTIONS)(batch)
    typed = batch.astype({"review": pd.ArrowDtype(pa.large_string()) if dtype == "arrow" else dtype, "id": "Int64"})
    found = BatchPredictor(model, **OPTIONS)(typed)
    assert found["id"].dtype == "Int64"
    pd.testing.assert_frame_equal(found.astype({"id": "int64"}), plain)


def test_empty_batches_have_the_dtypes_of_others(model, batch):
    whole, *parts = (BatchPredictor(model, **OPTIONS)(part) for part in (batch, batch[:0], batch[1:2]))
    for part in parts:
        assert part.dtypes.to_dict() == whole.dtypes.to_dict()


def test_model_is_loaded_once_for_functions_of_main(model, batch, loads):
    """Dask sends a function of `__main__` by value, and every partition unpickles it with new globals."""
    cloudpickle = pytest.importorskip("cloudpickle")
    program = {"__name__": "__main__", "predict": BatchPredictor(model, **OPTIONS)}
    exec("def call(batch):\n    return predict(batch)", program)
    sent = cloudpickle.dumps(program["call"])
    copies = [cloudpickle.loads(sent) for _ in range(2)]
    assert copies[0].__globals__["predict"] is not copies[1].__globals__["predict"]
    for call in copies:
        call(batch)
    assert loads == [str(model)]


def test_replaced_weights_are_loaded_again(tmp_path, batch, loads):
    predict = BatchPredictor(write_model(tmp_path / "m", layers=1), **OPTIONS)
    predict(batch)
    weights = tmp_path / "m" / "model.safetensors"
    os.utime(weights, (1, 1))
    predict(batch)
    assert len(loads) == 2


WORKER = """
import pandas, pickle, sys
predict = pickle.loads(bytes.fromhex(sys.argv[1]))
assert "torch" not in sys.modules
assert len(predict(pandas.DataFrame({"review": ["good food"] * 3000, "id": 1}))) == 9000
"""


def test_new_process_unpickles_without_torch_and_prints_nothing(model):
    sent = pickle.dumps(BatchPredictor(model, **OPTIONS))
    done = run_python("-c", WORKER, sent.hex(), paths=(ROOT, ROOT / "python"))
    assert len(sent) < 1000
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("rows", [slice(None), slice(1, 2)])
def test_error_names_the_row_by_its_kept_columns(model, batch, rows):
    with raises("InputError: frame: index {'id': 518}: text: expected a sentence, got an empty text"):
        BatchPredictor(model, text="review", keep=["id"])(batch[rows])


@error_cases(
    {
        "TypeError: keep: expected a sequence of names, got 'id'": {"keep": "id"},
        "TypeError: aspects: expected a sequence of names, got 3": {"aspects": 3},
        "TypeError: threads: expected an int, got str": {"threads": "1"},
        "ValueError: threads: expected at least 1, got 0": {"threads": 0},
        "InputError: on_empty: expected one of raise, skip, got 'no'": {"on_empty": "no"},
    }
)
def test_bad_description_raises_before_any_worker_starts(error, given):
    with raises(error):
        BatchPredictor("mine", **given)


def test_kept_column_that_a_batch_lacks_raises(model):
    with raises("InputError: keep: ..."):
        BatchPredictor(model, text="review", keep=["hotel"])(pd.DataFrame({"review": ["good food"]}))


def run_example(engine, *arguments, folder, **variables):
    """Runs an example in a process group, which is killed after SECONDS; returns the status and what it printed."""
    program = "import killed_worker; killed_worker.main()"
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "python", SUPPORT)))
    environment = os.environ | {"PYTHONPATH": paths, "CALLS": str(folder / "calls"), "KILLED_ID": "-1"} | variables
    command = [sys.executable, "-c", program, str(DOCS / "examples" / f"{engine}_predict.py"), *map(str, arguments)]
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            status = process.wait(SECONDS)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        log.seek(0)
        return status, log.read()


@pytest.fixture(params=["ray", "spark", "dask"])
def engine(request):
    package = {"spark": "pyspark", "dask": "distributed"}.get(request.param, request.param)
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no {package}: make test-engines installs it")
    return request.param


@pytest.fixture
def reviews(tmp_path):
    """600 texts with ids in eight Parquet files, one of them empty."""
    texts = [f"{TEXTS[number % 3]} {'very ' * (number % 7)}" for number in range(600)]
    table = pd.DataFrame({"id": np.arange(600) + 1000, "review": texts, "hotel": "x"})
    table.loc[250, "review"] = None
    (tmp_path / "in").mkdir()
    for part in range(8):
        table[75 * part : 75 * part + 75].to_parquet(tmp_path / "in" / f"{part}.parquet", index=False)
    return table


@pytest.mark.full
def test_engine_with_a_killed_worker_equals_qacg_predict(engine, reviews, tmp_path):
    model = write_model(tmp_path / "m", layers=1)
    flags = ["--text", "review", "--keep", "id", "--rows", "100"]
    status, log = run_example(engine, "m", "in", "out", *flags, folder=tmp_path, KILLED_ID="1300")
    assert status == 0, log[-6000:]
    assert (tmp_path / "calls.killed").exists()
    reviews.to_csv(tmp_path / "in.csv", index=False)
    flags = ["--text-column", "review", "--id-column", "id", "--skip-empty", "--output", str(tmp_path / "one.csv")]
    assert main(["predict", str(model), "--input", str(tmp_path / "in.csv"), *flags]) == 0
    with (tmp_path / "one.csv").open(encoding="utf-8", newline="") as file:
        expected = {(int(row["id"]), row["aspect"]): row for row in csv.DictReader(file)}
    found = pd.read_parquet(tmp_path / "out").fillna({"aspect": "", "label": ""})
    assert len(found) == len(expected) == 599 * len(OWN.aspects) + 1
    rows = found.set_index(["id", "aspect"]).loc[[*expected]]
    assert rows["label"].tolist() == [row["label"] for row in expected.values()]
    shares = [[float(row[name] or "nan") for name in SHARES] for row in expected.values()]
    np.testing.assert_allclose(rows[SHARES], shares, rtol=0, atol=2e-6)
    calls = np.array([line.split() for line in (tmp_path / "calls").read_text().splitlines()], dtype=int)
    assert len(set(calls[:, 0])) >= 2 and calls[:, 1].max() <= 200, "the work is divided"
    assert set(calls[:, 2]) == {1}, "a process loads the model once"


@pytest.mark.full
def test_engine_stops_at_an_empty_cell_and_names_its_id(engine, reviews, tmp_path):
    model = write_model(tmp_path / "m", layers=1)
    flags = ["--text", "review", "--keep", "id", "--on-empty", "raise", "--rows", "300"]
    status, log = run_example(engine, model, tmp_path / "in", tmp_path / "out", *flags, folder=tmp_path)
    assert status
    assert "index {'id': 1250}: text: expected a sentence, got an empty text" in log, log[-6000:]
