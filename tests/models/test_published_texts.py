"""Published texts with opinions: SemEval-2014 to 2016, MAMS and GermEval 2017; exports of Label Studio."""

import json
import re
from collections import Counter

import pytest
from errors import error_cases, raises
from qacg_models.sentiment.data_warnings import evaluation_warnings
from qacg_models.sentiment.dataset import load_data, load_file
from qacg_models.sentiment.example import SEMEVAL, Source
from qacg_models.sentiment.formats import find_format, germeval_texts, xml_texts
from qacg_models.sentiment.options import DataOptions

REVIEWS = """<?xml version="1.0" encoding="UTF-8"?>
<Reviews><Review rid="9"><sentences>
<sentence id="9:0"><text>Pasta good, wine sour.</text><Opinions>
 <Opinion target="Pasta" category="FOOD#QUALITY" polarity="positive" from="0" to="5"/>
 <Opinion target="wine" category="FOOD#QUALITY" polarity="negative" from="12" to="16"/>
 <Opinion target="wine" category="FOOD#QUALITY" polarity="neutral" from="12" to="16"/>
 <Opinion target="NULL" category="SERVICE#GENERAL" polarity="positive" from="6" to="10"/></Opinions></sentence>
<sentence id="9:1"><text>We came on Monday.</text></sentence>
<sentence id="9:2" OutOfScope="TRUE"><text>The rival is worse.</text></sentence>
<sentence id="9:3" OutOfScope="NULL"><text>We left.</text><Opinions/></sentence>
</sentences></Review></Reviews>"""
TEXT_LEVEL = """<Reviews><Review rid="9"><sentences>
<sentence id="9:0"><text>Pasta good.</text><Opinions/></sentence>
<sentence id="9:1" OutOfScope="TRUE"><text>Wine sour.</text></sentence></sentences>
<Opinions><Opinion category="FOOD#QUALITY" polarity="conflict"/><Opinion category="FOOD#PRICES" polarity="positive"/>
<Opinion category="FOOD#PRICES" polarity="positive"/></Opinions></Review>
<Review rid="10"><sentences><sentence id="10:0"><text>Fine.</text></sentence></sentences>
<Opinions><Opinion category="FOOD#QUALITY" polarity="positive"/></Opinions></Review></Reviews>"""
MAMS = """<sentences><sentence><text>Kind waiter, dear food.</text><aspectCategories>\
<aspectCategory category="staff" polarity="positive"/><aspectCategory category="food" polarity="neutral"/>\
</aspectCategories></sentence><sentence><text>Cold food.</text><aspectCategories>\
<aspectCategory category="food" polarity="negative"/></aspectCategories></sentence></sentences>"""
GERMEVAL = """<Documents><Document id="http://a/1"><Opinions>
<Opinion category="Zugfahrt#Haupt" from="0" to="4" target="Zug " polarity="positve"/>
<Opinion category="Zugfahrt#Haupt" from="9" to="12" target="ICE" polarity=" negative"/></Opinions>
<relevance>true</relevance><sentiment>negative</sentiment><text>Der "Zug" ist gut.</text></Document>
<Document id="http://a/1"><relevance>false</relevance><sentiment>neutral</sentiment><text>Bahn frei!</text></Document>
<Document id="http://a/2"><relevance>false</relevance><sentiment>neutral</sentiment><text/></Document></Documents>"""
GERMEVAL_TSV = """SOURCE\tTEXT\tRELEVANCE\tSENTIMENT\tCATEGORY:SENTIMENT\t
http://a/1\tDer "Zug" ist gut.\ttrue\tnegative\tZugfahrt#Haupt:positve Zugfahrt#Haupt:negative
http://a/1\tBahn frei!\tfalse\tneutral\t
http://a/2\t\tfalse\tneutral
"""
TERMS = """<sentences><sentence id="1"><text>Good keys.</text><aspectTerms>
<aspectTerm term="keys" polarity="positive" from="5" to="9"/></aspectTerms></sentence></sentences>"""
UNLABELLED = '<sentences><sentence id="1"><text>Good keys.</text></sentence></sentences>'


def write(folder, text, name="data.xml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def read(path):
    """The task of a file, and (id, aspect, target, label) of its rows."""
    data_format = find_format(path)
    content = data_format.read(path, DataOptions().columns())
    task = data_format.published_task({path: content}, {"aspects": None, "labels": None, "absent_label": None})
    rows = data_format.examples(content, Source(path), task, DataOptions().columns())
    return task, [(row.id, row.aspect, row.target, task.labels[row.label]) for row in rows]


def test_reviews_keep_category_target_and_every_opinion(tmp_path):
    task, rows = read(write(tmp_path, REVIEWS))
    assert (task.aspects, task.labels) == (
        ("FOOD#QUALITY", "SERVICE#GENERAL"),
        ("none", "negative", "neutral", "positive"),
    )
    assert rows == [
        ("9:0", "FOOD#QUALITY", "Pasta", "positive"),
        ("9:0", "FOOD#QUALITY", "wine", "negative"),
        ("9:0 (2)", "FOOD#QUALITY", "wine", "neutral"),
        ("9:0", "SERVICE#GENERAL", "", "positive"),
        *[(name, aspect, "", "none") for name in ("9:1", "9:3") for aspect in task.aspects],
    ]


def test_reviews_have_category_contexts_and_count_left_out(tmp_path):
    path = write(tmp_path, REVIEWS)
    dataset = load_data(path, ("train",), DataOptions(dev_fraction=0.34))
    assert dataset.contexts == ("FOOD#QUALITY", "SERVICE#GENERAL")
    left_out = "left out of data.xml: 1 text marked OutOfScope"
    assert left_out in dataset.notes
    # The two opinions on wine contradict each other, and hide that those on pasta and wine differ.
    assert "opposed_targets" not in [one.code for one in dataset.warnings]
    assert [one.count for one in dataset.warnings if one.code == "contradictory_labels"] == [1]
    assert "line 3 'negative', line 3 'neutral'" in str(dataset.warnings)
    notes = []
    assert len(load_file(path, dataset.task, contexts=dataset.contexts, notes=notes)) == 8
    assert notes == [left_out]


def test_text_level_reviews_are_read_as_whole_texts(tmp_path):
    path = write(tmp_path, TEXT_LEVEL)
    task, rows = read(path)
    assert task.labels == ("none", "conflict", "positive")
    assert rows == [
        ("9", "FOOD#PRICES", "", "positive"),
        ("9 (2)", "FOOD#PRICES", "", "positive"),
        ("9", "FOOD#QUALITY", "", "conflict"),
        ("10", "FOOD#PRICES", "", "none"),
        ("10", "FOOD#QUALITY", "", "positive"),
    ]
    assert {row.sentence for row in load_file(path, task)} == {"Pasta good. Wine sour.", "Fine."}


def test_mams_folder_has_no_ids_and_val_is_dev(tmp_path):
    for name in ("train.xml", "val.xml", "test.xml"):
        write(tmp_path, MAMS, name)
    dataset = load_data(tmp_path)
    assert list(dataset.splits) == ["train", "dev", "test"]
    task = dataset.task
    assert [(row.id, row.aspect, task.labels[row.label]) for row in dataset.splits["dev"]] == [
        ("text 1", "food", "neutral"),
        ("text 1", "staff", "positive"),
        ("text 2", "food", "negative"),
        ("text 2", "staff", "none"),
    ]


def test_mams_part_with_shared_categories_is_not_semeval(tmp_path):
    part = MAMS.replace("staff", "service")
    assert read(write(tmp_path, part))[0].aspects == ("food", "service")
    numbered = part.replace("<sentence>", '<sentence id="1">', 1).replace("<sentence>", '<sentence id="2">', 1)
    assert read(write(tmp_path, numbered))[0] == SEMEVAL


@pytest.mark.parametrize("name", ["aspects", "labels", "absent_label"])
def test_names_for_a_fixed_task_raise(tmp_path, name):
    options = DataOptions(**{name: "none" if name == "absent_label" else ("none", "food")})
    restaurants = write(tmp_path, MAMS.replace("staff", "anecdotes/miscellaneous"), "restaurants.xml")
    pairs = write(tmp_path, "id\tsentence1\tsentence2\tlabel\n1\tfine\tlocation - 1 - price\tNone\n", "train_NLI_M.tsv")
    for path in (restaurants, pairs):
        with raises(f"InputError: {name}: ...omit {name}"):
            load_data(path, ("train",), options)


def test_germeval_xml_and_lines_give_the_same_rows(tmp_path):
    xml, lines = write(tmp_path, GERMEVAL), write(tmp_path, GERMEVAL_TSV, "train.tsv")
    assert find_format(lines).name == "germeval-tsv"
    task, rows = read(xml)
    assert rows == [
        ("text 1", "Zugfahrt#Haupt", "Zug", "positive"),
        ("text 1", "Zugfahrt#Haupt", "ICE", "negative"),
        ("text 2", "Zugfahrt#Haupt", "", "none"),
    ]
    assert read(lines) == (
        task,
        [
            ("text 1", "Zugfahrt#Haupt", "", "positive"),
            ("text 1 (2)", "Zugfahrt#Haupt", "", "negative"),
            ("text 2", "Zugfahrt#Haupt", "", "none"),
        ],
    )
    texts = [[row.sentence for row in load_file(path, task)] for path in (xml, lines)]
    assert texts[0] == texts[1] == ['Der "Zug" ist gut.'] * 2 + ["Bahn frei!"]
    assert find_format(lines).notes({lines: germeval_texts(lines)}) == ["left out of train.tsv: 1 text without text"]
    assert find_format(xml).notes({xml: xml_texts(xml)}) == ["left out of data.xml: 1 text without text"]


def region(name, start, words, **controls):
    """The results of a region in an export of Label Studio: one for each control."""
    value = {"start": start, "end": start + len(words), "text": words}
    return [{"id": name, "from_name": "-", "type": kind, "value": value | {kind: controls[kind]}} for kind in controls]


def whole(control, choice):
    return {"id": control, "from_name": control, "type": "choices", "value": {"choices": [choice]}}


def task(number, text, *annotations):
    return {"id": number, "data": {"text": text, "url": "a"}, "annotations": list(annotations)}


def export(folder, *tasks, name="project-1.json"):
    return write(folder, json.dumps(tasks), name)


SOUP, WINE = region("a", 0, "Good soup", labels=["food"]), region("b", 11, "dear wine", labels=["drinks", "price"])
GOOD, DEAR = region("a", 0, "Good soup", choices=["positive"]), region("b", 11, "dear wine", choices=["negative"])
LINK = {"type": "relation", "from_id": "a", "to_id": "b"}
DONE = {"result": [*SOUP, *WINE, *DEAR, *GOOD, LINK]}  # JSON_MIN and CSV list choices in this order, without regions


def test_label_studio_choices_belong_to_their_regions(tmp_path):
    skipped, no_opinion = task(2, "Hm.", {"was_cancelled": True, "result": []}), task(4, "Monday.", {"result": []})
    path = export(tmp_path, task(1, "Good soup, dear wine.", DONE), skipped, task(3, "Later."), no_opinion)
    assert find_format(path).name == "label-studio"
    found, rows = read(path)
    assert (found.labels, found.has_absent) == (("none", "negative", "positive"), True)
    assert rows == [
        ("text 1", "drinks", "dear wine", "negative"),
        ("text 1", "food", "Good soup", "positive"),
        ("text 1", "price", "dear wine", "negative"),
        *[("text 4", aspect, "", "none") for aspect in found.aspects],
    ]
    assert load_data(path, ("train",), DataOptions(dev_fraction=0.5)).notes[-2] == (
        "left out of project-1.json: 2 texts without annotation"
    )


def test_label_studio_choices_of_whole_texts_name_the_aspect(tmp_path):
    made = {"result": [whole("food", "good"), whole("staff", "bad")]}
    for name in ("train.json", "test.json"):
        export(tmp_path, {"id": 1, "data": {"review": "Fine."}, "annotations": [made]}, name=name)
    dataset = load_data(tmp_path, ("test",))
    labels = dataset.task.labels
    assert [(row.sentence, row.aspect, labels[row.label]) for row in dataset.splits["test"]] == [
        ("Fine.", "food", "good"),
        ("Fine.", "staff", "bad"),
    ]


LABEL_STUDIO = {
    "...task 5: expected one annotation, got 2; keep one": task(5, "Good soup.", DONE, DONE),
    "...task 5: expected one text, or the key 'text', got a, b": task(5, "") | {"data": {"a": "x", "b": "y"}},
    "...task 5: expected an aspect and a label for the region 'Good soup'": task(5, "Good soup.", {"result": SOUP}),
    "...for the region 'Good soup', got one of them": task(5, "Good soup.", {"result": GOOD}),
    "...expected a task of Label Studio's JSON": task(5, "Good soup.", {"result": [{"type": "labels"}]}),
    "...expected a task of Label Studio's JSON, with": task(5, "Hm.", {"result": region("a", 0, "Hm", labels="food")}),
    "...got 1 task of Label Studio with no choices": task(5, "Good soup.", {"result": []}),
}


@error_cases(LABEL_STUDIO)
def test_label_studio_unclear_task_raises(tmp_path, error, given):
    with raises(f"DataError: project-1.json{error}"):
        load_data(export(tmp_path, given), ("train",))


NO_POLARITY = MAMS.replace(' polarity="positive"', "")
NO_CATEGORY_NAME = REVIEWS.replace(' category="FOOD#QUALITY"', "")
BOTH_LEVELS = TEXT_LEVEL.replace("<Opinions/>", '<Opinions><Opinion category="A" polarity="b"/></Opinions>')
NO_CATEGORY = {  # laptops of 2014, test files of phases A and B, and damaged files
    "data.xml: ...got 1 text with 1 aspectTerm, which have no category; to train or evaluate": TERMS,
    "data.xml: ...got 1 text with no aspectCategory or Opinion, as in a test file; to train or evaluate": UNLABELLED,
    "data.xml: ...got 4 texts with no aspectCategory or Opinion, as in a test file": REVIEWS.lower(),
    "data.xml:1: is not XML (no element found)": "",
    "data.xml: ...got no sentence or Document, but the elements rss, channel": "<rss><channel/></rss>",
    "data.xml:1: expected aspectCategory inside a sentence, Review or Document, got it outside": MAMS.replace(
        "sentence>", "item>"
    ),
    "data.xml:1: polarity: expected a label, got 'staff' without a polarity, as in a test file": NO_POLARITY,
    "data.xml:4: category: expected a name, got an opinion without a category": NO_CATEGORY_NAME,
    "data.xml:3: id '9:0' has no text": REVIEWS.replace("Pasta good, wine sour.", ""),
    "data.xml:1: Review '9': expected opinions on the whole text or on its sentences, got both": BOTH_LEVELS,
    "data.tsv: ...got 2 texts with no opinions, as in a test file; to train or evaluate": (
        "a\tGut.\tunknown\tunknown\nb\tBahn.\tunknown\tunknown\n"
    ),
    "data.tsv:5: expected 4 or 5 tab-separated fields": GERMEVAL_TSV + "x\ty\n",
}


@error_cases(NO_CATEGORY)
def test_file_without_categories_raises_beside_a_good_one(tmp_path, error, given):
    path = write(tmp_path, given, error[:8])
    good = write(tmp_path, REVIEWS if path.suffix == ".xml" else GERMEVAL_TSV, f"good{path.suffix}")
    for data in (path, (good, path), (path, good)):
        with raises(f"DataError: {error}"):
            load_data(data, ("train",))
    with raises(f"DataError: {error}"):
        load_file(path, read(good)[0])


def test_file_of_another_data_set_raises_beside_a_good_one(tmp_path):
    good, other = write(tmp_path, REVIEWS), write(tmp_path, MAMS, "other.xml")
    with raises("DataError: other.xml: expected categories of data.xml, got only others (food, staff); pass one of"):
        load_data((good, other), ("train",))
    named = DataOptions(aspects=("FOOD#QUALITY", "SERVICE#GENERAL", "food", "staff"), dev_fraction=0.25)
    assert load_data((good, other), ("train",), named).task.aspects == named.aspects
    with raises("DataError: other.xml:1: context: expected one of 'FOOD#QUALITY'...got 'staff'; correct the category"):
        load_file(other, read(good)[0])


# Positive, negative, neutral and conflicting opinions, counted in the published files.
COUNTS = {
    "semeval2014/Restaurants_Train.xml": (2176, 839, 501, 196),
    "semeval2014/Restaurants_Test_Gold.xml": (657, 222, 94, 52),
    "semeval2015/ABSA-15_Restaurants_Train_Final.xml": (1198, 403, 53),
    "semeval2015/ABSA15_Restaurants_Test.xml": (454, 346, 45),
    "semeval2015/ABSA-15_Laptops_Train_Data.xml": (1103, 765, 106),
    "semeval2015/ABSA15_Laptops_Test.xml": (541, 329, 79),
    "semeval2015/ABSA15_Hotels_Test.xml": (243, 84, 12),
    "semeval2016/ABSA16_Restaurants_Train_SB1_v2.xml": (1657, 749, 101),
    "semeval2016/ABSA16_Laptops_Train_SB1_v2.xml": (1637, 1084, 188),
    "semeval2016/ABSA16_Restaurants_Train_English_SB2.xml": (1012, 327, 55, 41),
    "semeval2016/ABSA16_Laptops_Train_English_SB2.xml": (1210, 708, 123, 41),
    # As in github.com/davidsbatista/GermEval-2017-Aspect-Based-Sentiment-Analysis: 2,590 texts, an early release.
    "germeval2017/dev.tsv": (306, 1129, 1337),
    "germeval2017/dev.xml": (306, 1129, 1337),
    "mams-acsa/train.xml": (1929, 2084, 3077),
    "mams-acsa/val.xml": (241, 259, 388),
    "mams-acsa/test.xml": (245, 263, 393),
}


@pytest.mark.parametrize(("name", "expected"), COUNTS.items(), ids=COUNTS)
def test_published_file_has_its_opinions(published_file, name, expected):
    _, rows = read(published_file(name))
    names = ("positive", "negative", "neutral", "conflict")
    assert Counter(label for *_, label in rows if label != "none") == dict(zip(names, expected))


# Facts of the published files, counted without the readers, and what the readers and `qacg check` make of them.


def test_semeval_2016_targets_with_opposed_labels_are_counted(published_file):
    """Four NULL targets have other positions than 0; 42 sentences give a category two polarities, 7 on one target."""
    path = published_file("semeval2016/ABSA16_Restaurants_Train_SB1_v2.xml")
    opinions = re.findall("<Opinion .*?>", path.read_text(encoding="utf-8"))
    assert sum('target="NULL"' in one and 'from="0" to="0"' not in one for one in opinions) == 4
    task, rows = read(path)
    assert "NULL" not in {target for _, _, target, _ in rows}
    found = {one.code: one.count for one in evaluation_warnings("train", load_file(path, task), task)}
    # The texts "It was wonderful." occur twice, with other labels of two categories.
    assert (found["opposed_targets"], found["contradictory_labels"]) == (42 - 7, 7 + 2)
