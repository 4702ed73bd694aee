"""The examples of the documentation and of docstrings, and the snippets of its pages, run."""

import doctest
import importlib
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from docs_pages import example_module, snippets


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


@pytest.mark.parametrize("name", ["tutorials/operator", "how-to/masks-and-packing"])
def test_snippets_run_in_order(name):
    namespace = {}
    for snippet in snippets(name):
        exec(snippet, namespace)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The model of the example, trained for one epoch, which answers every aspect."""
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("served") / "reviews"
    assert set(example_module("aspect_sentiment").main(folder, "--epochs=1")) == {"food", "price", "service"}
    return folder / "model"


def test_server_answers_each_request_as_the_model_does(trained, monkeypatch):
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient
    from qacg_models import AspectSentiment

    texts = ["the soup was lovely", "   ", "the bill was a shock", "the waiter was kind and the fish was raw"] * 4
    monkeypatch.setenv("MODEL", str(trained))
    with TestClient(example_module("serve").app) as client, ThreadPoolExecutor(12) as pool:
        served = list(pool.map(lambda text: client.post("/predict", json={"text": text}), texts))
    ask = AspectSentiment.from_pretrained(trained)
    for text, response in zip(texts, served):
        assert response.status_code == (200 if text.strip() else 422)
        if text.strip():
            found = [(answer["text"], answer["aspect"], answer["label"]) for answer in response.json()]
            assert found == [(answer.text, answer.aspect, answer.label) for answer in ask(text)]


@pytest.mark.full
def test_onnx_server_gives_the_models_probabilities(trained, monkeypatch):
    for package in ("fastapi", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    from fastapi.testclient import TestClient
    from qacg_models import AspectSentiment
    from qacg_models.cli.program import main

    text = "the soup was lovely and the bill was a shock"
    assert main(["export", str(trained), "--to", "onnx", "--output", str(trained / "model.onnx")]) == 0
    monkeypatch.setenv("FOLDER", str(trained))
    with TestClient(example_module("serve_onnx").app) as client:
        served = client.post("/predict", json={"text": text}).json()
    expected = AspectSentiment.from_pretrained(trained)(text)
    assert [answer["label"] for answer in served] == [answer.label for answer in expected]
    for answer, one in zip(served, expected, strict=True):
        assert answer["probabilities"] == pytest.approx(one.probabilities, abs=1e-5)


@pytest.mark.full
def test_trainer_example_learns_the_aspects(tmp_path):
    pytest.importorskip("transformers")
    assert example_module("trainer").main(str(tmp_path)) > 0.9


def exported():
    for package in ("qacg_kernels", "qacg_models"):
        module = pytest.importorskip(package)
        for name in module.__all__:
            yield f"{package}.{name}"


@pytest.mark.parametrize("path", list(exported()))
def test_exported_name_has_an_example_that_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    package, _, name = path.partition(".")
    found = getattr(importlib.import_module(package), name)
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        pytest.skip("neither a function nor a class")
    source = inspect.getdoc(found) or ""
    assert re.search(r"^Examples?:$", source, re.MULTILINE), "the docstring has no Example section"
    namespace = vars(importlib.import_module(found.__module__)).copy()
    test = doctest.DocTestParser().get_doctest(source, namespace, path, None, 0)
    assert test.examples
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
