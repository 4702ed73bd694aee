"""The documentation site: its examples and snippets run, and it builds without warnings."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from docs_pages import DOCS, example_module, snippets

EXAMPLES = sorted((DOCS / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_has_at_most_60_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


def test_toy_transformer_learns_to_count():
    assert example_module("toy_transformer").main(steps=100) < 0.5


def test_patch_released_keeps_the_outputs():
    replaced, difference = example_module("patch_released").main()
    assert replaced == 2
    assert difference < 1e-5


def test_speed_chart_writes_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    example_module("speed_chart").main(tmp_path / "speed.svg", repeats=2)
    assert (tmp_path / "speed.svg").read_text(encoding="utf-8").count("eager PyTorch") >= 1


def test_packed_training_learns_the_aspects():
    pytest.importorskip("transformers")
    assert example_module("packed_training").main() > 0.9


def test_aspect_sentiment_answers_every_aspect(tmp_path):
    pytest.importorskip("transformers")
    answers = example_module("aspect_sentiment").main(tmp_path / "reviews", "--epochs=1")
    assert set(answers) == {"food", "price", "service"}


def test_pictures_are_those_that_their_script_draws(tmp_path):
    shutil.copy(DOCS / "explanation" / "pictures.py", tmp_path)
    subprocess.run([sys.executable, str(tmp_path / "pictures.py")], check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    assert drawn == {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "explanation").glob("*.svg")}


@pytest.mark.parametrize("name", ["tutorials/operator", "how-to/masks-and-packing"])
def test_snippets_run_in_order(name):
    namespace = {}
    for snippet in snippets(name):
        exec(snippet, namespace)


@pytest.mark.full
def test_site_builds_without_warnings(tmp_path):
    for package in ("furo", "myst_parser", "sphinxarg", "sphinx_copybutton"):
        pytest.importorskip(package)
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path / "reference" / "operator.html").is_file()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The model of the example, trained for one epoch."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("served") / "reviews"
    example_module("aspect_sentiment").main(folder, "--epochs=1")
    return folder / "model"


def test_server_answers_concurrent_requests_as_the_model_does(trained, monkeypatch):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient
    from qacg_models import AspectSentiment

    texts = ["the soup was lovely", "the bill was a shock", "the waiter was kind and the fish was raw"] * 4
    monkeypatch.setenv("MODEL", str(trained))
    with TestClient(example_module("serve").app) as client, ThreadPoolExecutor(12) as pool:
        served = list(pool.map(lambda text: client.post("/predict", json={"text": text}).json(), texts))
    expected = AspectSentiment.from_pretrained(trained)(texts)
    labels = [[(answer["text"], answer["aspect"], answer["label"]) for answer in answers] for answers in served]
    assert labels == [[(answer.text, answer.aspect, answer.label) for answer in answers] for answers in expected]


def test_server_answers_a_bad_text_alone_with_422(trained, monkeypatch):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    monkeypatch.setenv("MODEL", str(trained))
    with TestClient(example_module("serve").app) as client:
        assert client.post("/predict", json={"text": "   "}).status_code == 422
        assert client.post("/predict", json={"text": "the soup was lovely"}).status_code == 200


@pytest.mark.full
def test_onnx_server_gives_the_models_probabilities(trained, monkeypatch):
    for package in ("fastapi", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    from fastapi.testclient import TestClient
    from qacg_models import AspectSentiment
    from qacg_models.cli import main

    text = "the soup was lovely and the bill was a shock"
    assert main(["export", str(trained), "--to", "onnx", "--output", str(trained / "model.onnx")]) == 0
    monkeypatch.setenv("FOLDER", str(trained))
    with TestClient(example_module("serve_onnx").app) as client:
        served = client.post("/predict", json={"text": text}).json()
    expected = AspectSentiment.from_pretrained(trained)(text)
    assert [answer["label"] for answer in served] == [answer.label for answer in expected]
    for answer, one in zip(served, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(one.probabilities, abs=1e-5)


def test_trainer_example_learns_the_aspects(tmp_path):
    pytest.importorskip("transformers")
    assert example_module("trainer").main(str(tmp_path)) > 0.9
