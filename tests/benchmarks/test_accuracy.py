"""Ways to ask about an aspect: data of a given size, records and the tables."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from qacg_models.sentiment import tfidf
from qacg_models.sentiment.dataset import load_data, sample_directory
from qacg_models.sentiment.metrics import judge
from qacg_models.sentiment.options import DataOptions, TrainingOptions

from benchmarks import accuracy
from benchmarks.accuracy import FILE, WHOLE, append, dataset_of, differences, read, table

SIZES = {"hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 16, "max_steps": 2}


@pytest.fixture
def data(tmp_path):
    """A folder with sentihood/: 30 sentences of the sample in train, and all in test."""
    folder = tmp_path / "data" / "sentihood"
    folder.mkdir(parents=True)
    lines = (sample_directory() / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    rows = load_data(sample_directory(), ("train",), DataOptions(format="sentihood-tsv")).splits["train"]
    kept = [*dict.fromkeys(row.sentence for row in rows)][:30]
    train = [lines[0], *(lines[row.line - 1] for row in rows if row.sentence in kept)]
    shutil.copy(sample_directory() / "dev.tsv", folder)  # otherwise dev is a part of train
    for name, content in (("train.tsv", train), ("test.tsv", lines)):
        (folder / name).write_text("".join(content), encoding="utf-8")
    return tmp_path / "data"


def command(data, out, size):
    chosen = ["--texts", "sentihood", "--sizes", str(size), "--ways", "scratch", "--seeds", "4"]
    return ["--data", str(data), "--out", str(out), *chosen]


def test_training_is_measured_once(data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(accuracy, "TrainingOptions", lambda **options: TrainingOptions(**options | SIZES))
    assert accuracy.main(command(data, tmp_path, 30)) == 0
    (row,) = read(tmp_path)
    assert accuracy.key_of(row) == ("sentihood", 30, "scratch", 4)
    printed = capsys.readouterr().out
    assert row["processor_seconds"] > 0
    assert row["texts_per_second"].keys() == {"1", "4", "8"}
    stored, once = row["metrics"]["test"], np.ones((1, len(row["test"]["gold"].split())))
    assert accuracy._macro_f1(row["test"], once) == pytest.approx([stored["macro_f1"]])
    assert accuracy._strict_accuracy(row["test"], once) == pytest.approx([stored["strict_accuracy"]])
    score = f"{100 * row['metrics']['test']['macro_f1']:.1f}"
    assert f"| sentihood | 30 | {100 * row['tfidf']['test']['macro_f1']:.1f} | {score} |" in printed
    assert "| scratch | sentihood | 30 |" in printed
    assert not [*(tmp_path / "unfinished").iterdir()]
    before = (tmp_path / FILE).read_bytes()
    assert accuracy.main(command(data, tmp_path, 30)) == 0
    assert (tmp_path / FILE).read_bytes() == before
    assert "30 sentences, scratch" not in capsys.readouterr().out
    assert str(tmp_path) not in json.dumps(row)


def test_table_has_mean_and_deviation_over_seeds(tmp_path):
    for seed, share in ((0, 0.5), (1, 0.7)):
        metrics = {"test": {"macro_f1": share}}
        row = {"text": "sentihood", "sentences": 100, "way": "aspect-bert", "seed": seed, "seconds": 120}
        cpu_time = {"processor_seconds": 60} if seed else {}
        append(tmp_path, row | cpu_time | {"metrics": metrics, "tfidf": {"test": {"macro_f1": 0.4}}})
    lines = table(read(tmp_path), [("sentihood", 100)], ["pairs", "aspect-bert"]).splitlines()
    assert lines[2] == (
        "| sentihood | 100 | 40.0 ± 0.0 (2 seeds) | not yet measured |  | 60.0 ± 14.1 (2 seeds) | 1.5 ± 0.7 (2 seeds) |"
    )


def test_differences_have_intervals_over_seeds_and_sentences():
    """The second way is better in each of 40 sentences by one target, in one of two seeds."""
    gold = " ".join(["01|11"] * 40)
    worse, same = " ".join(["01|10"] * 40), gold
    rows = [
        {"text": "sentihood", "sentences": WHOLE, "way": way, "seed": seed, "test": {"gold": gold, "predicted": found}}
        for way, answers in (("pairs", (worse, same)), ("aspect-bert", (same, same)))
        for seed, found in enumerate(answers)
    ]
    lines = differences(rows, [("sentihood", WHOLE)], ["pairs", "aspect-bert"], 2).splitlines()
    assert lines[2:] == [
        "| sentihood | all | 75.0 | +25.0 (+0.0 to +50.0) |",
        "| mean |  | 75.0 | +25.0 (+0.0 to +50.0) |",
    ]
    assert not differences(rows[:3], [("sentihood", WHOLE)], ["pairs", "aspect-bert"], 2)


@pytest.fixture
def published():
    named = os.environ.get("QACG_DATA")
    base = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not (base / "sentihood").is_dir():
        pytest.skip(f"no files at {base / 'sentihood'}; set QACG_DATA to the folder that holds sentihood/")
    return base


@pytest.mark.full
def test_baseline_on_sentihood_beats_untuned_scikit_learn(published):
    """Words, word pairs and scikit-learn's defaults give a macro-F1 of 30.2 with 100 sentences."""
    dataset = dataset_of("sentihood", 100, 0, published)
    found = tfidf.TfidfBaseline(dataset.splits["train"], dataset.task).probabilities(dataset.splits["test"])
    assert judge(dataset.task, dataset.splits["test"], found).macro_f1 > 0.4
