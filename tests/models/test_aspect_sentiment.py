"""AspectSentiment: predictions equal the model's on single rows, long texts, and bad input."""

import csv
import json

import numpy as np
import pytest
import torch
from errors import error_cases, raises
from qacg_models import AspectSentiment
from qacg_models.cli.program import main
from qacg_models.sentiment.example import SENTIHOOD
from qacg_models.sentiment.predictor import combine, pieces
from qacg_models.sentiment.trained_model import load_trained
from untrained import OWN, TEXTS, write_model

CASES = {
    "standalone": {},
    "two segments": {"context_standalone": False},
    "eager": {"attention": "eager"},
    "bert": {"kind": "bert"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    made = {name: write_model(base / name, **case) for name, case in CASES.items()}
    return made | {"sentihood": write_model(base / "sentihood", SENTIHOOD)}


@pytest.fixture(scope="module")
def ask(folders):
    return AspectSentiment.from_pretrained(folders["standalone"])


def alone(trained, text, context):
    """Probabilities of one row from the model, without packing and without the folded context."""
    pair = () if getattr(trained.model.config, "context_standalone", False) else (context,)
    batch = trained.tokenizer(text, *pair, return_tensors="pt", return_token_type_ids=True)
    if hasattr(trained.model.config, "contexts"):
        batch["context_ids"] = torch.tensor([trained.contexts.index(context)])
    with torch.no_grad():
        return trained.model(**batch).logits.double().softmax(-1)[0].numpy()


@pytest.mark.parametrize("case", CASES)
def test_predictions_equal_the_model_on_single_rows(folders, case):
    ask = AspectSentiment.from_pretrained(folders[case])
    assert (ask.aspects, ask.labels, ask.targets) == (OWN.aspects, OWN.labels, ())
    found = ask(TEXTS[:3], aspects=["service", "food"])
    assert [[(p.text, p.aspect, p.target) for p in one] for one in found] == [
        [(text, "service", ""), (text, "food", "")] for text in TEXTS[:3]
    ]
    plain, seen = load_trained(folders[case], "eager"), set()
    for prediction in (p for one in found for p in one):
        values = np.array(list(prediction.probabilities.values()))
        np.testing.assert_allclose(values, alone(plain, prediction.text, prediction.aspect), atol=2e-5)
        assert list(prediction.probabilities) == list(OWN.labels)
        assert prediction.label == OWN.labels[values.argmax()]
        seen.add(tuple(values.round(4)))
    assert len(seen) == 6, "texts and aspects matter"


def test_predictions_do_not_depend_on_batch_size(ask):
    whole = ask(TEXTS[0])
    assert [p.aspect for p in whole] == list(OWN.aspects)
    for size in (1, 2):
        for mine, expected in zip(ask(TEXTS[0], batch_size=size), whole, strict=True):
            assert mine.label == expected.label
            assert mine.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
    assert ask([]) == []
    expected = {"label": whole[0].label, "probabilities": whole[0].probabilities}
    assert whole[0].to_json() == {"text": TEXTS[0], "target": "", "aspect": "food", **expected}


def test_aspects_of_a_text_form_one_packed_batch(ask, monkeypatch):
    model, seen, folded = ask.trained.model, [], []
    forward = model.forward
    monkeypatch.setattr(model, "forward", lambda **batch: seen.append(batch) or forward(**batch))
    for layer in model.bert.encoder.layer:
        layer.fold.register_forward_hook(lambda *_: folded.append(1))
    ask(TEXTS[0])
    (batch,) = seen
    assert batch["input_ids"].dim() == 1 and len(batch["cu_seqlens"]) == 1 + len(OWN.aspects)
    assert batch["context_ids"].tolist() == [0, 1, 2] and "attention_mask" not in batch
    assert len(folded) == 2


def test_targets_default_to_those_in_the_text(folders):
    ask = AspectSentiment.from_pretrained(folders["sentihood"])
    assert ask.targets == ("location - 1", "location - 2")
    both = ask(TEXTS[3], aspects=["price"])
    assert [(p.target, p.aspect) for p in both] == [("location - 1", "price"), ("location - 2", "price")]
    assert [p.target for p in ask("Location - 2 is not location - 10", aspects=["price"])] == ["location - 2"]
    (one,) = ask("nothing named", aspects=["price"], targets=["location - 1"])
    assert one.target == "location - 1"
    with raises("InputError: text: expected one of the targets location - 1, ...got 'nothing named'"):
        ask("nothing named")
    with raises("InputError: targets: expected one of ..., got 'location - 3'"):
        ask(TEXTS[3], targets=["location - 3"])


@error_cases(
    {
        "TypeError: folder: expected a path or the name of a repository, got NoneType": {"folder": None},
        "ValueError: precision: expected one of 'auto', ...got 'bf16'": {"precision": "bf16"},
        "TypeError: threads: expected an integer, got '2'": {"threads": "2"},
        "ValueError: threads: expected at least 0, got -1": {"threads": -1},
        "InputError: attention: expected one of ..., got ''": {"attention": ""},
        "InputError: device: expected an available device, got 'abacus'": {"device": "abacus"},
    }
)
def test_from_pretrained_bad_argument_raises(folders, error, given):
    with raises(error):
        AspectSentiment.from_pretrained(**{"folder": folders["standalone"]} | given)


@error_cases(
    {
        "InputError: aspects: expected one of the model's aspects (food, price, service), got 'view'": lambda ask: ask(
            TEXTS[0], aspects=["food", "view"]
        ),
        "InputError: expected one or more distinct names": lambda ask: ask(TEXTS[0], aspects=["food", "food"]),
        "TypeError: aspects: expected a sequence of names, got 'food'": lambda ask: ask(TEXTS[0], aspects="food"),
        "InputError: targets: expected None, ... got []. Omit targets": lambda ask: ask(TEXTS[0], targets=[]),
        "InputError: by: expected one of text, sentence, document, got 'line'": lambda ask: ask(TEXTS[0], by="line"),
        "InputError: index 1: text: expected a sentence, got an empty text": lambda ask: ask(["fine", ""]),
        "TypeError: texts: expected a pandas DataFrame or Series, ... got NoneType": lambda ask: ask(None),
        "InputError: batch_size: expected at least 1, got 0": lambda ask: ask(TEXTS[0], batch_size=0),
        "TypeError: batch_size: expected an integer, got 1.5": lambda ask: ask.trained.logits([], batch_size=1.5),
        "TypeError: trained: expected a TrainedModel, got str": lambda ask: AspectSentiment("folder"),
    }
)
def test_ask_bad_input_raises(ask, error, given):
    with raises(error):
        given(ask)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_predict_out_of_memory_names_the_batch(ask, monkeypatch, error):
    def forward(**batch):
        raise error

    monkeypatch.setattr(ask.trained.model, "forward", forward)
    with raises("InputError: batch_size: 3 rows of at most 11 tokens do not fit into memory. Use a smaller"):
        ask(TEXTS[0])
    monkeypatch.setattr(ask.trained.model, "forward", lambda **batch: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        ask(TEXTS[0])


LONG = "Now " + " ".join(f"the bill number {number} was not great" for number in range(30))
TEXT = f"The food was great. {LONG}! Service is slow"


@pytest.fixture(scope="module", params=[True, False], ids=["context by id", "context in the input"])
def document_model(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("documents") / "model"
    return write_model(folder, layers=1, context_standalone=request.param)


@pytest.fixture(scope="module")
def ask_documents(document_model):
    return AspectSentiment.from_pretrained(document_model)


@pytest.mark.parametrize("room", [1, 5, 12, 10_000])
@pytest.mark.parametrize("text", [TEXT, "a" * 300, "ä😀 " * 40 + "x.  New one", "one"])
def test_pieces_have_every_word_and_fit(ask_documents, text, room):
    tokenizer = ask_documents.trained.tokenizer
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


def test_predict_by_sentence_equals_single_sentences(ask_documents):
    found = ask_documents(TEXT, aspects=["food", "price"], by="sentence")
    sentences = list(dict.fromkeys(one.text for one in found))
    assert sentences[0] == "The food was great."
    assert sentences[-1] == "Service is slow"
    assert len(sentences) > 4
    assert " ".join(sentences) == TEXT
    assert [(one.text, one.aspect) for one in found] == [
        (text, name) for text in sentences for name in ("food", "price")
    ]
    alone = [one for text in sentences for one in ask_documents(text, aspects=["food", "price"])]
    for one, other in zip(found, alone):
        np.testing.assert_allclose([*one.probabilities.values()], [*other.probabilities.values()], atol=1e-6)


def test_predict_by_document_combines_sentences(ask_documents):
    documents = [TEXT, TEXTS[0]]
    both = ask_documents(documents, by="document")
    for text, found in zip(documents, both):
        sentences = ask_documents(text, by="sentence")
        for answer in found:
            group = [one for one in sentences if one.aspect == answer.aspect]
            expected = combine(np.array([[*one.probabilities.values()] for one in group]), has_absent=True)
            np.testing.assert_allclose([*answer.probabilities.values()], expected, atol=1e-6)
            assert answer.text == text and answer.label == max(answer.probabilities, key=answer.probabilities.get)
    # A text of one sentence has equal predictions by sentence and by document.
    for one, other in zip(both[1], ask_documents(TEXTS[0])):
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


def test_predict_files_by_sentence_and_document(document_model, ask_documents, tmp_path):
    source, texts = tmp_path / "in.csv", [TEXTS[0], TEXT]
    with source.open("w", encoding="utf-8", newline="") as handle:
        csv.writer(handle).writerows([["text", "sentence"], [texts[0], "a"], [texts[1], "b"]])
    command = ["predict", str(document_model), "--input", str(source), "--output"]
    for by in ("sentence", "document"):
        expected, output = ask_documents(texts, by=by), tmp_path / f"{by}.csv"
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
    assert main([*command, str(tmp_path / "lines.jsonl"), "--by", "sentence"]) == 0
    first = json.loads((tmp_path / "lines.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert [*first][:3] == ["line", "sentence", "text"]
