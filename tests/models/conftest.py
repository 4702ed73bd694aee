import os
from pathlib import Path

import browser as browsers
import pytest
from qacg_models.sentiment import tfidf
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.training import start
from untrained import write_model


def _published(name: str) -> Path:
    """Folder or file of published data, which is not part of the repository; skips the test without it."""
    named = os.environ.get("QACG_DATA")
    base = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not (base / name).exists():
        pytest.skip(f"no files at {base / name}; set QACG_DATA to the folder that holds {name}")
    return base / name


@pytest.fixture(autouse=True)
def untuned_baseline(monkeypatch):
    """Trainings fit the TF-IDF baseline with one setting; test_tfidf.py tests the cross-validation."""
    monkeypatch.setattr(tfidf, "SETTINGS", tfidf.SETTINGS[:1])


@pytest.fixture(autouse=True)
def no_automatic_start(monkeypatch):
    """Trainings without --from start from scratch, whether or not MiniLM's package is installed here."""
    monkeypatch.setattr(start, "is_installed", lambda name: False)


@pytest.fixture(scope="session")
def dataset(small_data):
    """The splits of `small_data`."""
    return load_data(small_data)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a model with random weights, which no test changes. Its name has a space."""
    return write_model(tmp_path_factory.mktemp("untrained") / "my model", layers=1)


@pytest.fixture
def sentihood() -> Path:
    return _published("sentihood")


@pytest.fixture
def semeval() -> Path:
    return _published("semeval2014")


@pytest.fixture
def published_file():
    """A function that returns a file of published data by its path in the folder, or skips the test."""
    return _published


@pytest.fixture
def write_split(tmp_path):
    """Writes rows of fields as a TSV file under tmp_path and returns its path."""

    def write(rows, name="train.tsv", header=("id", "sentence1", "sentence2", "label")):
        path = tmp_path / name
        path.write_text("".join("\t".join(fields) + "\n" for fields in (header, *rows)), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """A headless Chromium; skips the test without one."""
    path = browsers.find()
    if path is None:
        pytest.skip(browsers.MISSING)
    one = browsers.Browser(path, tmp_path_factory.mktemp("profile"))
    yield one
    one.close()
