"""`qacg suggest`: proposed aspects of English and German texts, and the sheet to label."""

import csv
import random
import re
import shlex

import pytest
from docs_pages import commands
from errors import raises
from qacg_models import AspectSentiment
from qacg_models.cli import main
from qacg_models.data import DataOptions, load_data
from qacg_models.data.task import SENTIHOOD
from qacg_models.suggestion.proposals import propose
from qacg_models.suggestion.sheet import distinct, noun_rows
from qacg_models.suggestion.uncertainty import most_uncertain
from qacg_models.suggestion.words import Words
from untrained import TEXTS, write_model

from benchmarks.aspect_coverage import (
    TASK_CATEGORIES,
    by_chance,
    covered,
    hotel_sentences,
    read_semeval,
    read_sentihood,
)

COMMANDS = [line.removeprefix("qacg ") for line in commands("how-to/label", "qacg") if "suggest" in line]
# No two aspects share an opinion word.
ENGLISH = {
    "food": ("the soup|the pasta|our pizza|the dessert", "tasty|fresh|bland|cold|delicious"),
    "staff": ("the staff|our waiter|the waitress|the owner", "friendly|rude|attentive|slow|helpful"),
    "price": ("the bill|the price|the cost|our check", "high|fair|reasonable|steep|low"),
    "room": ("the music|the decor|the lighting|the terrace", "loud|cosy|dark|romantic|crowded"),
}
GERMAN = {
    "Essen": ("die Suppe|der Salat|das Frühstück|unser Kuchen", "lecker|frisch|fade|kalt|köstlich"),
    "Personal": ("das Personal|unser Kellner|die Bedienung|der Chef", "freundlich|unhöflich|aufmerksam|langsam"),
    "Preis": ("die Rechnung|der Preis|die Summe|das Trinkgeld", "hoch|fair|angemessen|niedrig|überhöht"),
    "Raum": ("die Musik|das Zimmer|die Beleuchtung|der Garten", "laut|gemütlich|dunkel|romantisch|eng"),
}


def reviews(aspects, was, but, count=400):
    """Sentences of two clauses about two aspects, with these aspects."""
    chance, found = random.Random(3), []
    for _ in range(count):
        pair = chance.sample(sorted(aspects), 2)
        clauses = [
            f"{chance.choice(a.split('|'))} {was} {chance.choice(b.split('|'))}" for a, b in map(aspects.get, pair)
        ]
        found.append((f"{clauses[0][0].upper()}{clauses[0][1:]}, {but} {clauses[1]}.", set(pair)))
    return found


@pytest.mark.parametrize(
    ("aspects", "was", "but", "spell"),
    [
        pytest.param(ENGLISH, "was", "but", str, id="english"),
        pytest.param(GERMAN, "war", "aber", str, id="german"),
        pytest.param(GERMAN, "war", "aber", str.lower, id="german-without-capitals"),
    ],
)
def test_propose_groups_the_nouns_of_an_aspect(aspects, was, but, spell):
    texts = [(spell(text), about) for text, about in reviews(aspects, was, but)]
    proposals = propose([text for text, _ in texts], 4)
    expected = {name: {spell(noun.split()[1]) for noun in nouns.split("|")} for name, (nouns, _) in aspects.items()}
    assert sorted(map(sorted, (one.words for one in proposals))) == sorted(map(sorted, expected.values()))
    for one in proposals:
        (name,) = [name for name, nouns in expected.items() if set(one.words) == nouns]
        assert one.name in one.words
        assert set(one.picked) == {number for number, (_, about) in enumerate(texts) if name in about}
        assert all(word in texts[number][0].split() for number, words in zip(one.picked, one.found) for word in words)
    assert proposals == propose([text for text, _ in texts], 4), "deterministic"


def test_words_separate_nouns_from_opinions():
    texts = [text for text, _ in reviews(ENGLISH, "was", "but")] + ["The fresh soup was cold and the best of all."] * 9
    words = Words.of(texts)
    nouns = {noun.split()[1] for names, _ in ENGLISH.values() for noun in names.split("|")}
    assert set(words.nouns(least=3)) == nouns
    assert not words.german and Words.of([text for text, _ in reviews(GERMAN, "war", "aber")]).german
    always = [f"LOCATION1 is {word} and the {word} of it" for word in ("shop", "park")] * 20
    assert Words.of(always).nouns(least=3) == ["park", "shop"], "a word of every sentence does not distinguish them"


def test_propose_nouns_without_opinions_separately():
    sentences = [f"The {noun}." for noun in ("soup", "bill", "staff") for _ in range(10)]
    assert [one.words for one in propose(sentences, 2)] == [("bill",), ("soup",)]
    assert {one.words for one in propose(sentences, 3)} == {("soup",), ("bill",), ("staff",)}


def test_suggest_sheet_with_labels_is_training_data(tmp_path, capsys):
    source, sheet = tmp_path / "reviews.csv", tmp_path / "sheet.csv"
    texts = reviews(ENGLISH, "was", "but", 120)
    with source.open("w", encoding="utf-8", newline="") as handle:
        lines = [[number, f"{text} We came by bus."] for number, (text, _) in enumerate(texts)]
        csv.writer(handle).writerows([["id", "review"], *lines])
    flags = ["suggest", "--input", str(source), "--text-column", "review", "--output", str(sheet), "--aspects", "4"]
    assert main([*flags, "--rows", "60"]) == 0
    printed = capsys.readouterr().out
    with sheet.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == 60 and {row["label"] for row in rows} == {""}
    names = re.findall(r"^\d\. (\w+) \(\d+\.\d%\): ", printed, re.MULTILINE)
    assert len(names) == 4 and {row["aspect"] for row in rows} == set(names)
    hints = [row["hint"].split(", ") for row in rows if row["hint"]]
    assert all(word in row["review"].lower() for row in rows for word in row["hint"].split(", ")) and hints
    marked = [row["split"] for row in rows]
    assert marked == ["dev"] * 15 + ["train"] * 45 and not any(row["hint"] for row in rows[:15])
    assert 15 <= len(hints) <= 22, "of 30 noun rows, some are of an aspect that the sentence does not name"
    (command,) = re.findall(r"^  qacg (train .*)$", printed, re.MULTILINE)
    assert command == f"train --data {sheet} --text-column review --output MODEL"
    options = DataOptions(text_column="review")
    with raises("InputError: empty 'label'"):
        load_data(sheet, ("train",), options)
    for row in rows:
        row["label"] = "good" if row["hint"] else "none"
    with sheet.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    data = load_data(sheet, ("train", "dev"), options)
    assert set(data.task.aspects) == set(names)
    assert data.task.labels == ("none", "good")
    assert data.task.has_absent
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 45, "dev": 15}
    assert main([*flags, "--overwrite", "--keep", names[1]]) == 0
    with sheet.open(encoding="utf-8", newline="") as handle:
        assert {row["aspect"] for row in csv.DictReader(handle)} == {names[1]}


def test_noun_rows_alternate_aspects_without_repeats():
    texts = [text for text, _ in reviews(ENGLISH, "was", "but")]
    sentences = distinct([*texts, texts[0].upper(), f"  {texts[1]} "], by_sentence=False)
    assert sentences == list(dict.fromkeys(texts))
    assert distinct(["One is here. Two is there."], by_sentence=True) == ["One is here.", "Two is there."]
    proposals = propose(sentences, 4)
    rows = noun_rows(sentences, proposals, 12)
    first = list(dict.fromkeys(row.text for row in rows))[:4]
    assert all(sentences.index(text) in one.picked for text, one in zip(first, proposals))
    everything = noun_rows(sentences, proposals, 10_000)
    pairs = [(row.text, row.aspect) for row in everything]
    assert len(set(pairs)) == 3 * len(sentences), "the two aspects of each sentence, and one more"
    assert len(pairs) == 3 * len(sentences), "the two aspects of each sentence, and one more"


def test_most_uncertain_excludes_pairs(tmp_path):
    folder = write_model(tmp_path / "model", layers=1)
    asked = AspectSentiment.from_pretrained(folder)
    answers = [answer for text in TEXTS for answer in asked(text)]
    answers.sort(key=lambda answer: answer.probabilities[answer.label])
    rows = most_uncertain(asked, TEXTS, 5)
    assert [(row.text, row.aspect) for row in rows] == [(answer.text, answer.aspect) for answer in answers[:5]]
    least = answers[0]
    assert rows[0].hint == f"{least.label}? {least.probabilities[least.label]:.2f}"
    assert most_uncertain(asked, TEXTS, 4, exclude={rows[0].pair}) == rows[1:]
    with_targets = AspectSentiment.from_pretrained(write_model(tmp_path / "targets", SENTIHOOD, layers=1))
    with raises("InputError: with targets"):
        most_uncertain(with_targets, TEXTS, 5)


def test_docs_suggest_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "mine", layers=1, reading=DataOptions(text_column="review"))
    with open("new.csv", "w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([["review"], *([text] for text, _ in reviews(ENGLISH, "was", "but", 60))])
    assert [main(shlex.split(command)) for command in COMMANDS] == [0] * 3
    for name in ("sheet.csv", "next.csv"):
        with open(name, encoding="utf-8", newline="") as handle:
            assert next(csv.reader(handle)) == ["review", "aspect", "label", "hint", "split"]


def fails(capsys, *flags):
    assert main(["suggest", *map(str, flags)]) == 2
    error = capsys.readouterr().err
    return error.splitlines()[-1]


def test_suggest_bad_arguments_print_one_line(tmp_path, capsys):
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "".join(f'"{text}"\n' for text, _ in reviews(ENGLISH, "was", "but", 60)))
    sheet = tmp_path / "sheet.csv"
    asked = ["--input", texts, "--output", sheet]
    assert "ends in .csv" in fails(capsys, "--input", texts, "--output", tmp_path / "sheet.xlsx")
    assert "is the input file" in fails(capsys, "--input", texts, "--output", texts)
    assert "columns: expected distinct names, got label" in fails(capsys, *asked, "--text-column", "label")
    for name in ("hint", "split"):
        assert "expected a name other than hint and split" in fails(capsys, *asked, "--text-column", name)
    assert "keep: expected a proposed aspect or a word" in fails(capsys, *asked, "--aspects", "4", "--keep", "nonsense")
    assert "each NAME once, got 'soup=soup'" in fails(capsys, *asked, "--keep", "soup", "soup=soup")
    assert "labelled: expected the labelled CSV" in fails(capsys, *asked, "--with", tmp_path)
    assert "labelled: expected a name that ends in .csv" in fails(capsys, *asked, "--labelled", tmp_path / "a.json")
    assert "expected at least 60" in fails(capsys, *asked, "--rows", "50", "--dev-rows", "40", "--random-rows", "20")
    assert "rows: expected 1 to 1,000,000, got 0" in fails(capsys, *asked, "--rows", "0")
    assert "beside --with" in fails(capsys, *asked, "--keep", "soup", "--with", tmp_path)
    assert not sheet.exists()
    sheet.write_text("labels that took a day")
    assert "--overwrite" in fails(capsys, *asked)
    assert sheet.read_text() == "labels that took a day"
    with raises("InputError: at least 20"):
        propose(["the soup was good"] * 5)
    with raises("InputError: with a noun in at least 3 sentences, got none"):
        propose(["so gut wie nie"] * 30)


def test_covered_requires_a_majority():
    categories = [{"food"}, {"food", "price"}, {"price"}, set(), {"service"}]
    assert covered([[0, 1]], categories) == {"food"}
    assert covered([[0, 1], [1, 2, 4]], categories) == {"food", "price"}
    assert covered([[0, 2], [3], []], categories) == set(), "a tie covers neither"
    assert 0 < by_chance([3, 3], categories) < 2


def test_propose_finds_the_categories_of_sentihood(sentihood):
    labelled = read_sentihood(sentihood)
    picked = [one.picked for one in propose([text for text, _ in labelled])]
    assert covered(picked, [about & TASK_CATEGORIES for _, about in labelled]) == TASK_CATEGORIES
    _assert_most_are_covered(picked, [about for _, about in labelled], 12)


def test_propose_finds_the_categories_of_semeval(semeval):
    labelled = read_semeval(semeval)
    picked = [one.picked for one in propose([text for text, _ in labelled])]
    _assert_most_are_covered(picked, [about for _, about in labelled], 5)


def test_propose_finds_the_categories_of_hotels():
    labelled = hotel_sentences()
    picked = [one.picked for one in propose([text for text, _ in labelled])]
    _assert_most_are_covered(picked, [about for _, about in labelled], 10)


def _assert_most_are_covered(picked, categories, count):
    known = set().union(*categories)
    assert len(known) == count and len(covered(picked, categories)) >= 0.8 * count
