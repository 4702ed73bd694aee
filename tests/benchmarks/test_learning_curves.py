"""Learning curves: invented reviews, data of a given size, records and the table."""

import csv
import json
import shutil

import pytest
from errors import raises
from qacg_models.data import DataOptions, load_data, sample_directory
from qacg_models.metrics import judge, tfidf
from qacg_models.runs.options import TrainingOptions

from benchmarks import learning_curves
from benchmarks.learning_curves import FILE, append, read, replace_all, table
from benchmarks.learning_texts import LANGUAGES, as_csv, dataset_of, reviews

SIZES = {"hidden_size": 8, "layers": 1, "heads": 2, "intermediate_size": 16, "max_steps": 2}


def pairs(texts, language):
    """Returns all phrases "THING VERDICT" of the texts, with their aspect and label."""
    every = [
        (f"{thing} {verdict}", aspect, label)
        for aspect, things in language.things.items()
        for thing in things
        for label, verdicts in language.verdicts.items()
        for verdict in verdicts
    ]
    # Longer pairs are found first and removed, so that "is good" is not found in "is good enough".
    every.sort(key=lambda one: -len(one[0]))
    found = []
    for text, labels in texts:
        here = []
        for pair, aspect, label in every:
            if pair in text:
                text = text.replace(pair, "")
                here.append((pair, aspect, label))
        assert {aspect: label for _, aspect, label in here} == {a: one for a, one in labels.items() if one != "none"}
        found += here
    return found


@pytest.mark.parametrize("name", LANGUAGES)
def test_held_out_reviews_have_known_words_in_new_pairs(name):
    language = LANGUAGES[name]
    train = [*reviews(400, 1, held_out=False, language=language)]
    test = [*reviews(200, 0, held_out=True, language=language)]
    assert len({text for text, _ in train}) == 400
    assert train == [*reviews(400, 1, held_out=False, language=language)]
    assert train[:50] != [*reviews(50, 2, held_out=False, language=language)]
    seen, unseen = pairs(train, language), pairs(test, language)
    assert not {pair for pair, *_ in seen} & {pair for pair, *_ in unseen}
    words = {word for text, _ in train for word in text.split()}
    assert {word for text, _ in test for word in text.split()} <= words, (
        "words of the test split must be in the training split"
    )
    for found in (seen, unseen):
        assert {(aspect, label) for _, aspect, label in found} == {
            (aspect, label) for aspect in language.things for label in language.verdicts
        }
    rows = list(csv.DictReader(as_csv(iter(train[:3])).splitlines()))
    assert len(rows) == 3 * len(language.things)
    assert rows[0]["label"] == train[0][1][rows[0]["aspect"]]


def test_dataset_of_has_the_number_of_sentences(tmp_path):
    for size in (50, 100):
        splits = dataset_of("english", size, 3, None, tmp_path).splits
        counts = {split: len({row.sentence for row in rows}) for split, rows in splits.items()}
        assert counts == {"train": size - size // 10, "dev": size // 10, "test": 300}
    with pytest.raises(ValueError, match="data: expected the folder that contains sentihood/"):
        dataset_of("sentihood", 50, 0, None, tmp_path)


def test_training_is_measured_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learning_curves, "TrainingOptions", lambda **given: TrainingOptions(**SIZES, **given))
    command = ["--out", str(tmp_path), "--texts", "english", "--sizes", "50", "--from", "scratch", "--seeds", "4"]
    assert learning_curves.main(command) == 0
    (row,) = read(tmp_path)
    assert (row["text"], row["sentences"], row["begun_from"], row["seed"]) == ("english", 50, "scratch", 4)
    printed = capsys.readouterr().out
    assert row["processor_seconds"] > 0
    score = f"{100 * row['metrics']['test']['macro_f1']:.1f}"
    assert f"| english | 50 | {100 * row['tfidf']['test']['macro_f1']:.1f} | {score} |" in printed
    assert "| not yet measured |" in printed
    assert not [*(tmp_path / "unfinished").iterdir()]
    before = (tmp_path / FILE).read_bytes()
    assert learning_curves.main(command) == 0
    assert (tmp_path / FILE).read_bytes() == before
    assert "english, 50 sentences, from" not in capsys.readouterr().out
    assert str(tmp_path) not in json.dumps(row)


def test_resumed_training_has_no_cpu_time(tmp_path, monkeypatch):
    """The CPU time of the first process, which was killed, is unknown."""
    (tmp_path / "unfinished" / "english-50-scratch-4").mkdir(parents=True)
    learning_curves.measure(tmp_path, ("english", 50, "scratch", 4), None, TrainingOptions(**SIZES))
    (row,) = read(tmp_path)
    assert row["processor_seconds"] is None
    assert row["seconds"] > 0


def test_table_has_mean_and_deviation_over_seeds(tmp_path):
    for seed, share in ((0, 0.5), (1, 0.7)):
        metrics = {"test": {"macro_f1": share}}
        row = {"text": "english", "sentences": 100, "begun_from": "minilm", "seed": seed, "seconds": 120}
        cpu_time = {"processor_seconds": 60} if seed else {}
        append(tmp_path, row | cpu_time | {"metrics": metrics, "tfidf": {"test": {"macro_f1": 0.4}}})
    lines = table(read(tmp_path), ["english"], [100]).splitlines()
    assert lines[2] == (
        "| english | 100 | 40.0 ± 0.0 (2 seeds) | not yet measured |  | 60.0 ± 14.1 (2 seeds) | 1.5 ± 0.7 (2 seeds) |"
    )


def test_published_texts_without_data_exit(tmp_path, capsys):
    with pytest.raises(SystemExit):
        learning_curves.main(["--out", str(tmp_path), "--texts", "sentihood"])
    assert "--data: expected the folder of sentihood/" in capsys.readouterr().err


def published(tmp_path, sentences):
    """Writes data/sentihood with rows of this many sentences of the sample in train, and all rows in test."""
    folder = tmp_path / "data" / "sentihood"
    folder.mkdir(parents=True)
    lines = (sample_directory() / "train.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    rows = load_data(sample_directory(), ("train",), DataOptions(format="sentihood-tsv")).splits["train"]
    kept = [*dict.fromkeys(row.sentence for row in rows)][:sentences]
    train = [lines[0], *(lines[row.line - 1] for row in rows if row.sentence in kept)]
    shutil.copy(sample_directory() / "dev.tsv", folder)  # otherwise dev is a part of train
    for name, content in (("train.tsv", train), ("test.tsv", lines)):
        (folder / name).write_text("".join(content), encoding="utf-8")
    return tmp_path / "data"


def test_dataset_of_missing_published_set_raises(tmp_path):
    with raises(f"DataError: {tmp_path / 'sentihood'}: no such folder or file"):
        dataset_of("sentihood", 50, 0, tmp_path, tmp_path)


def test_dataset_of_published_set_has_the_sentences(tmp_path):
    splits = dataset_of("sentihood", 20, 0, published(tmp_path, 30), tmp_path).splits
    counts = {split: len({row.sentence for row in rows}) for split, rows in splits.items()}
    assert counts == {"train": 18, "dev": 2, "test": 300}


def test_dataset_of_fewer_published_sentences_is_none(tmp_path):
    data = published(tmp_path, 30)
    assert dataset_of("sentihood", 31, 0, data, tmp_path) is None
    assert dataset_of("sentihood", 30, 0, data, tmp_path) is not None


def test_learning_curves_skip_sizes_without_data(tmp_path, capsys):
    command = ["--out", str(tmp_path), "--data", str(published(tmp_path, 30)), "--texts", "sentihood", "--sizes", "31"]
    assert learning_curves.main([*command, "--from", "scratch", "--seeds", "0"]) == 0
    assert "skipped: the data has fewer sentences" in capsys.readouterr().out
    assert read(tmp_path) == []


def test_learning_curves_missing_data_print_one_line(tmp_path, capsys):
    command = ["--out", str(tmp_path), "--data", str(tmp_path / "gone"), "--texts", "sentihood", "--sizes", "31"]
    assert learning_curves.main(command) == 1
    assert capsys.readouterr().err == f"{tmp_path / 'gone' / 'sentihood'}: no such folder or file\n"


@pytest.mark.parametrize("size", ["0", "-5"])
def test_learning_curves_size_below_one_exits(size, tmp_path, capsys):
    with pytest.raises(SystemExit):
        learning_curves.main(["--out", str(tmp_path), "--texts", "english", f"--sizes={size}"])
    assert f"--sizes: expected at least 1 sentence, got {size}" in capsys.readouterr().err


def test_learning_curves_bad_minutes_print_one_line(tmp_path, capsys):
    assert learning_curves.main(["--out", str(tmp_path), "--texts", "english", "--minutes", "nan"]) == 1
    assert capsys.readouterr().err == "minutes: expected a finite number of at least 0, got nan.\n"


def test_learning_curves_interrupted_have_their_status(tmp_path, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(learning_curves, "measure", interrupt)
    assert learning_curves.main(["--out", str(tmp_path), "--texts", "english"]) == 130
    assert "interrupted; --out has the records so far; the same command resumes" in capsys.readouterr().out


def test_refit_baseline_with_fewer_sentences_raises(tmp_path):
    data = published(tmp_path, 30)
    append(tmp_path, {"text": "sentihood", "sentences": 31, "begun_from": "scratch", "seed": 0})
    with raises("ValueError: data: expected at least the 31 sentences of the record ('sentihood', 31, 0), got fewer"):
        learning_curves.refit_baseline(tmp_path, data, ["sentihood"])


@pytest.mark.full
def test_published_sentences_are_reproducible(sentihood_folder, tmp_path):
    splits = dataset_of("sentihood", 60, 0, sentihood_folder, tmp_path).splits
    sentences = {split: {row.sentence for row in rows} for split, rows in splits.items()}
    assert len(sentences["train"] | sentences["dev"]) == 60
    assert not sentences["train"] & sentences["dev"]
    assert len(sentences["test"]) == 300
    assert dataset_of("sentihood", 60, 0, sentihood_folder, tmp_path).splits == splits
    assert dataset_of("sentihood", 60, 1, sentihood_folder, tmp_path).splits["train"] != splits["train"]
    assert dataset_of("sentihood", 5000, 0, sentihood_folder, tmp_path) is None


@pytest.fixture
def sentihood_folder():
    import os
    from pathlib import Path

    named = os.environ.get("QACG_DATA")
    base = Path(named) if named else Path(__file__).resolve().parents[2].parent / "shared" / "data"
    if not (base / "sentihood").is_dir():
        pytest.skip(f"no files at {base / 'sentihood'}; set QACG_DATA to the folder that holds sentihood/")
    return base


def test_baseline_only_replaces_only_baseline_metrics(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(learning_curves, "TrainingOptions", lambda **given: TrainingOptions(**SIZES, **given))
    monkeypatch.setattr(tfidf, "SETTINGS", tfidf.SETTINGS[:2])
    command = ["--out", str(tmp_path), "--texts", "english", "--sizes", "50", "--from", "scratch", "--seeds", "4"]
    learning_curves.main(command)
    (row,) = read(tmp_path)
    replace_all(tmp_path, [row | {"tfidf": {split: None for split in row["tfidf"]}}])
    assert learning_curves.main([*command, "--baseline-only"]) == 0
    (again,) = read(tmp_path)
    refitted = again.pop("tfidf_refitted")
    assert again == row
    assert refitted.keys() == {"commit", "written", "setting"}
    assert "C = " in refitted["setting"]
    replace_all(tmp_path, [row | {"data": dict.fromkeys(row["data"], "another")}])
    assert learning_curves.main([*command, "--baseline-only"]) == 1
    assert "expected the data files of the record" in capsys.readouterr().err


@pytest.mark.full
def test_baseline_on_sentihood_beats_untuned_scikit_learn(sentihood_folder, tmp_path):
    """Words, word pairs and scikit-learn's defaults give a macro-F1 of 30.2 with 100 sentences."""
    dataset = dataset_of("sentihood", 100, 0, sentihood_folder, tmp_path)
    found = tfidf.TfidfBaseline(dataset.splits["train"], dataset.task).probabilities(dataset.splits["test"])
    assert judge(dataset.task, dataset.splits["test"], found).macro_f1 > 0.4
