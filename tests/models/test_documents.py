"""Long texts: sentences, windows of long sentences, and predictions of documents."""

import csv
import json

import numpy as np
import pytest
from errors import raises
from qacg_models import AspectSentiment
from qacg_models.cli import main
from qacg_models.inference.pieces import combine, pieces
from untrained import TEXTS, write_model

LONG = "Now " + " ".join(f"the bill number {number} was not great" for number in range(30))
TEXT = f"The food was great. {LONG}! Service is slow"


@pytest.fixture(scope="module", params=[True, False], ids=["context by id", "context in the input"])
def model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents") / "model"
    return write_model(folder, layers=1, context_standalone=request.param)


@pytest.fixture(scope="module")
def ask(model):
    return AspectSentiment.from_pretrained(model)


@pytest.mark.parametrize("room", [1, 5, 12, 10_000])
@pytest.mark.parametrize("text", [TEXT, "a" * 300, "ä😀 " * 40 + "x.  New one", "one"])
def test_pieces_have_every_word_and_fit(ask, text, room):
    tokenizer = ask.trained.tokenizer
    found = pieces(text, tokenizer, room)
    assert "".join("".join(found).split()) == "".join(text.split())
    for piece in found:
        tokens = len(tokenizer(piece, add_special_tokens=False)["input_ids"])
        assert tokens <= room or (room < 12 and " " not in piece), piece
    if room == 10_000:
        assert found == {TEXT: ["The food was great.", f"{LONG}!", "Service is slow"]}.get(text, found)
    words = {word for piece in found for word in piece.split()}
    if room >= 12 and text == TEXT:
        assert words == set(text.split()), "no word is split if it fits"


def test_predict_by_sentence_equals_single_sentences(ask):
    found = ask(TEXT, aspects=["food", "price"], by="sentence")
    sentences = list(dict.fromkeys(one.text for one in found))
    assert sentences[0] == "The food was great."
    assert sentences[-1] == "Service is slow"
    assert len(sentences) > 4
    assert " ".join(sentences) == TEXT
    assert [(one.text, one.aspect) for one in found] == [
        (text, name) for text in sentences for name in ("food", "price")
    ]
    alone = [one for text in sentences for one in ask(text, aspects=["food", "price"])]
    for one, other in zip(found, alone):
        np.testing.assert_allclose([*one.probabilities.values()], [*other.probabilities.values()], atol=1e-6)


def test_predict_by_document_combines_sentences(ask):
    documents = [TEXT, TEXTS[0]]
    both = ask(documents, by="document")
    for text, found in zip(documents, both):
        sentences = ask(text, by="sentence")
        for answer in found:
            group = [one for one in sentences if one.aspect == answer.aspect]
            expected = combine(np.array([[*one.probabilities.values()] for one in group]), has_absent=True)
            np.testing.assert_allclose([*answer.probabilities.values()], expected, atol=1e-6)
            assert answer.text == text and answer.label == max(answer.probabilities, key=answer.probabilities.get)
    # A text of one sentence has equal predictions by sentence and by document.
    for one, other in zip(both[1], ask(TEXTS[0])):
        np.testing.assert_allclose([*one.probabilities.values()], [*other.probabilities.values()], atol=1e-6)


def test_combine_keeps_an_opinion_of_one_sentence():
    silent, praise, blame = [0.98, 0.01, 0.01], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7]
    found = combine(np.array([silent] * 50 + [praise]), has_absent=True)
    assert found.argmax() == 1
    assert found[0] == pytest.approx(0.1)
    assert found.sum() == pytest.approx(1)
    assert combine(np.array([silent] * 50), has_absent=True) == pytest.approx(silent)
    mixed = combine(np.array([praise, blame, silent]), has_absent=True)
    assert mixed == pytest.approx([0.1, 0.9 * 0.91 / 1.72, 0.9 * 0.81 / 1.72])
    assert combine(np.array([[1.0, 0, 0], [1.0, 0, 0]]), has_absent=True) == pytest.approx([1, 0, 0])
    assert combine(np.array([praise, blame]), has_absent=False) == pytest.approx([0.15, 0.45, 0.4])


def test_predict_files_by_sentence_and_document(model, ask, tmp_path, capsys):
    source, texts = tmp_path / "in.csv", [TEXTS[0], TEXT]
    with source.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([["text", "sentence"], [texts[0], "a"], [texts[1], "b"]])
    command = ["predict", str(model), "--input", str(source), "--output"]
    for by, expected in (
        ("sentence", [ask(text, by="sentence") for text in texts]),
        ("document", ask(texts, by="document")),
    ):
        output = tmp_path / f"{by}.csv"
        assert main([*command, str(output), "--by", by]) == 0
        with output.open(encoding="utf-8", newline="") as handle:
            found = list(csv.DictReader(handle))
        assert [(one["text"], one["aspect"], one["label"]) for one in found] == [
            (one.text, one.aspect, one.label) for answers in expected for one in answers
        ]
        own = "sentence (input)" if by == "sentence" else "sentence"
        assert [one[own] for one in found] == ["a"] * len(expected[0]) + ["b"] * len(expected[1])
        if by == "sentence":
            assert [int(one["sentence"]) for one in found][-3:] == [len(expected[1]) // 3] * 3
            assert found[0]["sentence"] == "1"
    assert main([*command, str(tmp_path / "lines.jsonl"), "--by", "sentence", "--columns", "none"]) == 0
    first = json.loads((tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert [*first][:3] == ["line", "sentence", "text"]
    capsys.readouterr()
    assert main(["predict", str(model), "--text", TEXT, "--aspects", "food", "--by", "document"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if " food " in line]) == 1


def test_predict_unknown_unit_raises(ask):
    with raises("InputError: by: expected one of text, sentence, document, got 'paragraph'"):
        ask(TEXT, by="paragraph")
