"""`qacg suggest`: proposed aspects, the sheet to label, training on it, and the second round."""

import csv
import json
import random
import re
import shlex
from collections import Counter
from xml.etree import ElementTree

import pytest
from commands import error_of
from docs_pages import commands
from errors import raises
from invented_reviews import RESTAURANT, aspect_of, restaurant_reviews, terse_reviews
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.example import SENTIHOOD
from qacg_models.sentiment.options import DataOptions
from qacg_models.sentiment.suggest import choose, dev_rows, most_uncertain, propose
from qacg_models.utils.text import normalized
from untrained import TEXTS, write_model

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


def two_clause_reviews(aspects, was, but, count=400):
    """Returns sentences about two aspects each, with the names of these aspects."""
    chance, found = random.Random(3), []
    for _ in range(count):
        pair = chance.sample(sorted(aspects), 2)
        clauses = [
            f"{chance.choice(a.split('|'))} {was} {chance.choice(b.split('|'))}" for a, b in map(aspects.get, pair)
        ]
        found.append((f"{clauses[0][0].upper()}{clauses[0][1:]}, {but} {clauses[1]}.", set(pair)))
    return found


def sentences_of(aspects, was="was", but="but", count=400):
    return [text for text, _ in two_clause_reviews(aspects, was, but, count)]


def read(path):
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def write(path, rows):
    with path.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.parametrize(
    ("aspects", "was", "but", "spell"),
    [
        pytest.param(ENGLISH, "was", "but", str, id="english"),
        pytest.param(GERMAN, "war", "aber", str, id="german"),
        pytest.param(GERMAN, "war", "aber", str.lower, id="german-without-capitals"),
    ],
)
def test_propose_groups_the_nouns_of_an_aspect(aspects, was, but, spell):
    texts = [(spell(text), about) for text, about in two_clause_reviews(aspects, was, but)]
    proposals = propose([text for text, _ in texts])
    expected = {name: {spell(noun.split()[1]) for noun in nouns.split("|")} for name, (nouns, _) in aspects.items()}
    assert sorted(map(sorted, (one.words for one in proposals))) == sorted(map(sorted, expected.values()))
    for one in proposals:
        (name,) = [name for name, nouns in expected.items() if set(one.words) == nouns]
        assert one.name in one.words
        assert set(one.found) == {number for number, (_, about) in enumerate(texts) if name in about}
        assert all(word in texts[number][0].split() for number, words in one.found.items() for word in words)
    assert proposals == propose([text for text, _ in texts]), "deterministic"


def test_propose_leaves_out_words_that_are_no_aspects():
    texts = [*sentences_of(ENGLISH), *["The fresh soup was cold, and the best of all they'd want."] * 9]
    nouns = {noun.split()[1] for names, _ in ENGLISH.values() for noun in names.split("|")}
    assert {word for one in propose(texts) for word in one.words} == nouns
    always = [f"LOCATION1 is {word} and the {word} of it" for word in ("shop", "park")] * 20
    assert {one.name for one in propose(always)} == {"park", "shop"}


def test_suggest_sheet_with_labels_is_training_data(tmp_path, capsys):
    source, sheet = tmp_path / "reviews.csv", tmp_path / "sheet.csv"
    texts = sentences_of(ENGLISH, count=120)
    write(source, [{"id": number, "review": f"{text} We came by bus."} for number, text in enumerate(texts)])
    flags = ["suggest", "--input", str(source), "--text-column", "review", "--output", str(sheet)]
    assert main([*flags, "--rows", "60"]) == 0
    printed = capsys.readouterr().out
    rows = read(sheet)
    assert len(rows) == 60 and {row["label"] for row in rows} == {""}
    names = re.findall(r"^\d+\. (\w+) \(\d+\.\d%\): ", printed, re.MULTILINE)
    assert len(names) >= 4 and {row["aspect"] for row in rows} == set(names)
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
    write(sheet, rows)
    data = load_data(sheet, ("train", "dev"), options)
    assert set(data.task.aspects) == set(names)
    assert data.task.labels == ("none", "good")
    assert data.task.has_absent
    assert {name: len(part) for name, part in data.splits.items()} == {"train": 45, "dev": 15}
    assert main([*flags, "--overwrite", "--aspects", names[1]]) == 0
    assert {row["aspect"] for row in read(sheet)} == {names[1]}


def test_most_uncertain_excludes_pairs(tmp_path):
    folder = write_model(tmp_path / "model", layers=1)
    asked = AspectSentiment.from_pretrained(folder)
    answers = [answer for text in TEXTS for answer in asked(text)]
    answers.sort(key=lambda answer: answer.probabilities[answer.label])
    rows = most_uncertain(TEXTS, asked.predictor, 5)
    assert [(row.text, row.aspect) for row in rows] == [(answer.text, answer.aspect) for answer in answers[:5]]
    least = answers[0]
    assert rows[0].hint == f"{least.label}? {least.probabilities[least.label]:.2f}"
    assert most_uncertain(TEXTS, asked.predictor, 4, exclude={rows[0].pair}) == rows[1:]
    with_targets = AspectSentiment.from_pretrained(write_model(tmp_path / "targets", SENTIHOOD, layers=1))
    with raises("InputError: with targets"):
        most_uncertain(TEXTS, with_targets.predictor, 5)


def test_docs_suggest_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "mine", layers=1, reading=DataOptions(text_column="review"))
    write(tmp_path / "new.csv", [{"review": text} for text in sentences_of(ENGLISH, count=60)])
    assert [main(shlex.split(command)) for command in COMMANDS] == [0] * 3
    for name in ("sheet.csv", "next.csv"):
        assert [*read(tmp_path / name)[0]] == ["review", "aspect", "label", "hint", "split"]


def test_suggest_bad_arguments_print_one_line(tmp_path, capsys):
    texts, sheet = tmp_path / "texts.csv", tmp_path / "sheet.csv"
    texts.write_text("text\n" + "".join(f'"{text}"\n' for text in sentences_of(ENGLISH, count=60)))
    for output, expected in ((tmp_path / "sheet.xlsx", "ends in .csv"), (texts, "is the input file")):
        assert expected in error_of(capsys, "suggest", "--input", texts, "--output", output)
    suggest = ("suggest", "--input", texts, "--output", sheet)
    for flags, expected in (
        (["--text-column", "label"], "columns: expected distinct names, got label"),
        (["--text-column", "hint"], "expected a name other than hint and split"),
        (["--aspects", "nonsense"], "aspects: expected a proposed aspect or a word"),
        (["--aspects", "soup", "soup=soup"], "each NAME once, got 'soup=soup'"),
        (["--with", tmp_path], "labelled: expected the CSV on which the model of --with was trained"),
        (["--labelled", tmp_path / "a.json"], "labelled: expected a name that ends in .csv"),
        (["--rows", "0"], "rows: expected 1 to 1,000,000, got 0"),
        (["--aspects", "soup", "--with", tmp_path], "aspects: expected none with --with"),
    ):
        assert expected in error_of(capsys, *suggest, *flags)
    assert not sheet.exists()
    sheet.write_text("labels that took a day")
    assert "--overwrite" in error_of(capsys, *suggest)
    assert sheet.read_text() == "labels that took a day"
    with raises("InputError: at least 20"):
        propose(["the soup was good"] * 5)
    with raises("InputError: noun that occurs in at least 3 sentences, got none"):
        propose(["so gut wie nie"] * 30)


def covered_share(texts, categories):
    """The share of the categories that are the most frequent one in the sentences of a proposal; a tie covers none."""
    found = set()
    for one in propose(texts):
        counts = Counter(category for number in one.found for category in categories[number]).most_common(2)
        if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]):
            found.add(counts[0][0])
    return len(found) / len(set().union(*categories))


def test_propose_finds_the_categories_of_sentihood(sentihood):
    parts = [(sentihood / f"sentihood-{split}.json").read_text(encoding="utf-8") for split in ("train", "dev", "test")]
    records = [one for part in parts for one in json.loads(part)]
    categories = [{opinion["aspect"] for opinion in one["opinions"]} for one in records]
    assert covered_share([one["text"] for one in records], categories) >= 0.8


def test_propose_finds_the_categories_of_semeval(semeval):
    names = ("Restaurants_Train.xml", "Restaurants_Test_Gold.xml")
    records = [one for name in names for one in ElementTree.parse(semeval / name).iter("sentence")]
    categories = [{one.get("category") for one in record.iter("aspectCategory")} for record in records]
    assert covered_share([record.findtext("text") for record in records], categories) >= 0.8


LABELS = {"food": "good", "price": "bad", "service": "none"}


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A file of texts, their labels, and the proposal of each aspect."""
    path = tmp_path_factory.mktemp("loop") / "texts.txt"
    known = restaurant_reviews(3000, 0)
    path.write_text("\n".join(known) + "\n", encoding="utf-8")
    proposals: dict = {}
    for one in propose(list(known)):
        proposals.setdefault(aspect_of(one.name), one)
    proposals.pop(None)
    assert set(proposals) == set(RESTAURANT)
    return path, known, [*proposals.values()]


def labelled_sheet(reviews, folder, *flags):
    """The sheet of `qacg suggest` with all true labels."""
    path, known, proposals = reviews
    sheet = folder / "sheet.csv"
    keep = ["--aspects", *(one.name for one in proposals)]
    assert main(["suggest", "--input", str(path), "--output", str(sheet), *keep, *flags]) == 0
    write(sheet, [row | {"label": known[row["text"]][aspect_of(row["aspect"])]} for row in read(sheet)])
    return sheet


def test_sheet_dev_rows_draw_every_pair_equally():
    texts, aspects = [f"text {n}" for n in range(12)], ["food", "price", "room"]
    sheets = [dev_rows(texts, aspects, 5, seed) for seed in range(2000)]
    assert {len(set(rows)) for rows in sheets} == {5}
    assert {len({row.text for row in rows}) for rows in sheets} == {3}, "a quarter of the texts"
    counts = Counter(row.pair for rows in sheets for row in rows)
    expected = 2000 * 5 / 36
    assert len(counts) == 36
    for rows in sheets[:100]:
        assert sorted(Counter(row.aspect for row in rows).values()) == [1, 2, 2]
    assert all(abs(count - expected) < 5 * expected**0.5 for count in counts.values())


def test_train_on_a_sheet_reports_what_dev_estimates(reviews, tmp_path, capsys):
    labelled_sheet(reviews, tmp_path, "--rows", "3")
    assert "No row is marked dev" in capsys.readouterr().out
    sheet, model = labelled_sheet(reviews, tmp_path, "--rows", "80", "--overwrite"), tmp_path / "model"
    printed = capsys.readouterr().out
    assert "80 rows to label" in printed and f"  qacg train --data {sheet} --output MODEL" in printed
    assert "Label the 20 rows marked dev first: a random sample, on which metrics are measured" in printed
    small = ["--max-steps=2", "--set=layers=1", "--set=hidden_size=16", "--set=heads=2", "--set=intermediate_size=16"]
    assert main(["train", "--data", str(sheet), "--output", str(model), *small]) == 0
    printed = capsys.readouterr().out
    assert "the column 'split' divides the rows: 60 train, 20 dev" in printed
    assert "dev (rows that the column 'split' marks as dev; if they are a random sample" in printed
    assert main(["evaluate", str(model), "--data", str(sheet), "--split", "dev"]) == 0
    assert "metrics are identical to those that training stored" in capsys.readouterr().out


def second_round(tmp_path, old, *flags):
    """Returns the sheet that `qacg suggest --with MODEL` writes from labelled rows, and its unlabelled rows."""
    model = tmp_path / "model"
    if not model.exists():
        write_model(model, layers=1)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(f"the soup of day {n} was fine" for n in range(30)) + "\n", encoding="utf-8")
    write(tmp_path / "old.csv", old)
    files = ["--input", texts, "--labelled", tmp_path / "old.csv", "--output", tmp_path / "next.csv", "--with", model]
    assert main(["suggest", *map(str, files), "--overwrite", *flags]) == 0
    rows = read(tmp_path / "next.csv")
    return rows, [row for row in rows if not row["label"]]


def old_rows(marks):
    """Labelled rows of the first texts of `second_round`, with one mark per text."""
    return [
        {"text": f"The soup of  day {n} was fine", "aspect": aspect, "label": label, "hint": "", "split": mark}
        for n, mark in enumerate(marks)
        for aspect, label in LABELS.items()
    ]


def test_suggest_with_a_model_merges_the_labelled_rows(tmp_path, capsys):
    old = old_rows(["dev", "dev", "train", "train"])
    rows, new = second_round(tmp_path, old, "--rows", "40")
    assert f"  qacg train --data {tmp_path / 'next.csv'} --output MODEL" in capsys.readouterr().out
    assert rows[40:] == old, "labelled rows come last, unchanged"
    assert len(new) == 40 and {row["split"] for row in new} == {"train"}
    assert not {normalized(row["text"]) for row in new} & {normalized(row["text"]) for row in old}
    for row in new:
        row["label"] = "good"
    write(tmp_path / "next.csv", rows)
    dev = load_data(tmp_path / "next.csv", ("dev",)).splits["dev"]
    assert [(row.sentence, row.aspect) for row in dev] == [(row["text"], row["aspect"]) for row in old[:6]]


def test_suggest_with_labelled_rows_repeats_no_pair(tmp_path):
    old = [row for row in old_rows(["train"] * 4 + ["dev"]) if row["aspect"] != "price"]
    _, new = second_round(tmp_path, old, "--rows", "1000")
    pairs = {(normalized(row["text"]), row["aspect"]) for row in new}
    assert len(new) == 25 * 3 + 4, "all but the labelled ones and those of the text of dev"
    assert len(pairs) == 25 * 3 + 4, "all but the labelled ones and those of the text of dev"
    assert not pairs & {(normalized(row["text"]), row["aspect"]) for row in old}


def test_suggest_with_labelled_rows_asks_for_dev_rows_once(tmp_path):
    old = [row | {"label": "" if row["aspect"] == "price" else row["label"]} for row in old_rows(["dev", "train"])]
    rows, _ = second_round(tmp_path, old, "--rows", "10")
    assert rows[0] == old[1], "a dev row without a label is asked about first"
    assert old[4] not in rows, "a training row without a label is not kept"
    assert len(rows) == 10 + 5
    old = [{name: value for name, value in row.items() if name != "split"} for row in old_rows(["", ""])]
    _, new = second_round(tmp_path, old, "--rows", "20")
    assert sum(row["split"] == "dev" for row in new) == 5
    dev = {normalized(row["text"]) for row in new if row["split"] == "dev"}
    assert not dev & {normalized(row["text"]) for row in [*old, *new[5:]]}


def test_suggest_own_aspects_take_their_words():
    sentences = [*["The car park was full."] * 3, *["Cars everywhere, steep bill."] * 4, *["Fine."] * 20]
    bill, parking, value = choose(sentences, [], ["bill", "parking=car park", "value="])
    assert [*bill.found] == [3, 4, 5, 6]
    assert (parking.name, parking.found) == ("parking", {0: ["car park"], 1: ["car park"], 2: ["car park"]})
    assert value.found == {}


def test_suggest_own_aspects_are_in_the_sheet(reviews, tmp_path):
    path, sheet = reviews[0], tmp_path / "sheet.csv"
    flags = ["--aspects", "money=money,expensive", "value=", "soup", "--rows", "60"]
    assert main(["suggest", "--input", str(path), "--output", str(sheet), *flags]) == 0
    rows = read(sheet)
    assert {row["aspect"] for row in rows} == {"money", "value", "soup"}
    hints = {row["hint"] for row in rows if row["aspect"] == "money"}
    assert hints <= {"", "money", "expensive", "money, expensive"} and len(hints) > 1
    assert {row["hint"] for row in rows if row["aspect"] == "value"} == {""}


def test_propose_terse_reviews_finds_their_aspects():
    texts, categories = zip(*terse_reviews())
    assert covered_share(texts, categories) == 1
    names = {one.name for one in propose(texts)}
    assert names >= {"ads", "subscription", "login", "battery", "support", "design", "update", "sync", "sound", "crash"}
    assert not names & {"btw", "mins", "noon", "weeks", "lol", "pls"}
