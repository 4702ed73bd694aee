"""`qacg check`: its output for data with known faults, and the precision of its doubtful labels."""

import csv
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from commands import fails
from qacg_models.cli.program import main
from qacg_models.sentiment.checks import (
    baseline_doubts,
    check_data,
    check_tokens,
    find_doubts,
)
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.encoding import load_tokenizer
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from tokenizer_kinds import KINDS
from untrained import write_model

OTHER = {"positive": "negative", "negative": "positive", "none": "positive"}


def write(path, rows, header=("text", "aspect", "label"), delimiter=","):
    with open(path, "w", encoding="utf-8", newline="") as handle:
        csv.writer(handle, delimiter=delimiter).writerows([header, *rows])


CLAUSES = {
    "food": {"positive": ("the soup was lovely", "we loved the fish"), "negative": ("stale bread", "the fish was raw")},
    "price": {"positive": ("it was cheap", "the bill was a bargain"), "negative": ("a dear bill", "it costs too much")},
}


def reviews(count=150):
    """Rows (text, aspect, label) of reviews whose words decide the labels."""
    draw, rows = random.Random(1), []
    for number in range(count):
        labels = {aspect: draw.choice(("none", "positive", "negative")) for aspect in CLAUSES}
        parts = [draw.choice(CLAUSES[aspect][label]) for aspect, label in labels.items() if label != "none"]
        text = ", ".join([f"visit {number}", *parts])
        rows += [(text, aspect, label) for aspect, label in labels.items()]
    return rows


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Reviews with ten flipped labels, a duplicate, a contradiction, a long text; the numbers of the flipped lines."""
    monkeypatch.chdir(tmp_path)
    rows = reviews()
    flipped = random.Random(0).sample(range(len(rows)), 10)
    for place in flipped:
        rows[place] = (*rows[place][:2], OTHER[rows[place][2]])
    text, aspect, label = rows[0]
    rows += [("word " * 200, "food", "none"), rows[0], (text.upper(), aspect, OTHER[label])]
    write("reviews.csv", rows, delimiter=";")
    return {place + 2 for place in flipped}


def test_check_prints_every_finding(faulty, capsys):
    assert main(["check", "reviews.csv"]) == 0
    out = capsys.readouterr().out
    for part in (
        "format: columns\n",
        "rows of train  none  negative  positive",
        "1 pair of text and aspect has different labels in different rows",
        "the text, aspect and label of an earlier row",
        "start: random weights",
        "tokens: the longest of",
        "warning: 1 text is longer than 128 tokens",
        " and truncated",
        "doubtful labels: ",
    ):
        assert part in out, part


def test_check_balance_counts_rows(faulty):
    found = check_data(load_data("reviews.csv", ("train", "dev")), TrainingOptions()).balance
    with open("reviews.csv", encoding="utf-8", newline="") as handle:
        expected = Counter((row["aspect"], row["label"]) for row in csv.DictReader(handle, delimiter=";"))
    for aspect, labels in found["train"].items():
        for label, count in labels.items():
            assert count + found["dev"][aspect][label] == expected[aspect, label]


def test_check_doubts_find_flipped_labels(faulty, capsys):
    assert main(["check", "reviews.csv", "--output", "doubts.csv"]) == 0
    with open("doubts.csv", encoding="utf-8", newline="") as handle:
        found = [(int(row["line"]), row["label"], row["suggested"]) for row in csv.DictReader(handle)]
    assert f"{len(found):,} doubtful labels in doubts.csv" in capsys.readouterr().out
    assert len(faulty & {line for line, _, _ in found}) >= 9
    assert len(faulty & {line for line, _, _ in found[:12]}) >= 8
    assert all(label != suggested for _, label, suggested in found)


def test_check_folder_reports_leaks(tmp_path, capsys):
    rows = reviews(60)
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.csv", rows)
    write(tmp_path / "data" / "test.csv", rows[:8])
    assert main(["check", str(tmp_path / "data")]) == 0
    assert "sentences of train are in test too, so the metrics on test are too high" in capsys.readouterr().out


def checked(tmp_path, capsys, rows, *flags):
    """What the command prints for a file of rows."""
    write(tmp_path / "rows.csv", rows)
    assert main(["check", str(tmp_path / "rows.csv"), *map(str, flags)]) == 0
    return capsys.readouterr().out


def labelled(texts):
    return [(text, "food", ("good", "bad")[number % 2]) for number, text in enumerate(texts)]


def test_check_foreign_vocabulary_warns(tmp_path, capsys):
    """German texts with an English vocabulary."""
    rows = labelled(f"die Zimmerdecke war höchst ungewöhnlich, Nummer {number}" for number in range(60))
    out = checked(tmp_path, capsys, rows, "--from", write_model(tmp_path / "start"), "--max-length", 48)
    assert "the vocabulary does not suit the language of the texts" in out


@pytest.mark.parametrize("kind", KINDS)
def test_check_counts_the_tokens_of_words(kind, tmp_path, dataset):
    """In texts: byte-level BPE has other tokens for a separate "food"."""
    start = write_model(tmp_path / "start", kind="bert", tokenizer=kind)
    rows = [replace(dataset.splits["train"][0], sentence=text) for text in ("the food 12 !", "菜很 12")]
    options = TrainingOptions(from_checkpoint=str(start), max_length=48)
    found = check_tokens(replace(dataset, splits={"train": rows}), options)
    assert (found.words, found.texts) == (4, 2)
    tokenizer = load_tokenizer(start)
    assert found.pieces == len(tokenizer.tokenize("the food")) + len(tokenizer.tokenize("菜很"))
    assert (found.unknown > 0) == (kind in ("xlm-roberta", "electra"))


def test_check_chinese_texts_count_characters_as_words(tmp_path, capsys):
    texts = ["菜很好吃", "服务员态度很差", "价格太贵了", "汤是冷的"]
    out = checked(tmp_path, capsys, labelled(f"{texts[n % 4]} {n}" for n in range(60)), "--from", "scratch")
    assert ": 1.00 tokens per word" in out
    assert "does not suit" not in out


def test_check_names_unknown_symbols(tmp_path, capsys):
    """The vocabulary has no emoji."""
    rows = labelled(f"the food {n} was great 🙂" for n in range(60))
    out = checked(tmp_path, capsys, rows, "--from", write_model(tmp_path / "start"), "--max-length", 48)
    assert "% of the tokens unknown (most often '🙂'" in out
    assert "warning: the vocabulary lacks words or symbols of the texts ('🙂'" in out


def test_check_counts_unknown_tokens(tmp_path):
    """The vocabulary has no emoji."""
    start = write_model(tmp_path / "start")
    rows = [(f"the food was great {('👍', '👎', '💩')[n % 3]}", "food", ("good", "bad")[n % 2]) for n in range(6)]
    rows += [("The food was slow 🙂", "food", "bad"), ("the food was slow 🙂", "food", "bad"), ("slow", "food", "bad")]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.csv", rows)
    write(tmp_path / "data" / "dev.csv", rows[:2])
    options = TrainingOptions(from_checkpoint=str(start), max_length=48)
    tokens = check_tokens(load_data(tmp_path / "data", ("train", "dev")), options)
    out = "\n".join(tokens.lines())
    assert tokens.unknown == tokens.texts - 1 and tokens.tokens > tokens.unknown
    assert f"{tokens.unknown / tokens.tokens:.2%} of the tokens unknown (most often '🙂', " in out


@pytest.mark.parametrize(
    "flags", [(["--output", "reviews.csv"], "output: "), (["--max-length", "0"], "max_length: expected at least 1")]
)
def test_check_bad_flags_raise(faulty, flags, capsys):
    fails(capsys, ["check", "reviews.csv", *flags[0]], flags[1])


# Thresholds, the mean probability of a label over its rows: 0.6 for label 0 and 0.55 for label 1; none has label 2.
SHARES = np.array([[0.9, 0.05, 0.05], [0.3, 0.6, 0.1], [0.2, 0.7, 0.1], [0.65, 0.3, 0.05], [0.3, 0.65, 0.05]])
GIVEN = [0, 0, 1, 1, 1]


def test_find_doubts_are_ordered_by_the_difference():
    found = find_doubts(GIVEN, SHARES)
    assert [(doubt.row, doubt.suggested) for doubt in found] == [(3, 0), (1, 1)]
    assert (found[0].probability, found[0].given) == (0.65, 0.3)


@pytest.mark.parametrize(
    ("labels", "shares"),
    [
        # Row 1 prefers label 1, whose threshold is the mean of 0.6 and 0.8, 0.7.
        pytest.param([0, 0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.2, 0.8]], id="below the threshold"),
        pytest.param([0, 0], [[0.4, 0.6], [0.3, 0.7]], id="a label without rows"),
        pytest.param([], np.zeros((0, 2)), id="no rows"),
    ],
)
def test_find_doubts_finds_none(labels, shares):
    assert find_doubts(labels, np.array(shares)) == []


def test_baseline_doubts_of_one_sentence_are_none(faulty):
    dataset = load_data(Path("reviews.csv"), ("train",))
    rows = list(dataset.splits["train"])
    one = [row for row in rows if row.sentence == rows[0].sentence]
    assert len(one) > 1
    assert baseline_doubts(one, dataset.task) == []


@pytest.mark.full
def test_doubts_on_sentihood_reach_the_documented_precision(sentihood, monkeypatch):
    dataset = load_data(sentihood, ("train",), DataOptions(format="sentihood-tsv"))
    draw, rows = random.Random(0), list(dataset.splits["train"])
    flipped = set(draw.sample(range(len(rows)), round(0.05 * len(rows))))
    for place in sorted(flipped):
        other = draw.choice([label for label in range(3) if label != rows[place].label])
        rows[place] = replace(rows[place], label=other)
    found = [doubt.row for doubt in baseline_doubts(rows, dataset.task)]
    hits = len(flipped & set(found))
    assert hits / len(found) > 0.5 and hits / len(flipped) > 0.62
    assert len(flipped & set(found[:100])) / 100 > 0.9
