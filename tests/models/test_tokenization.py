"""Tokenizers, encoded examples and padding."""

import json
import unicodedata
from unittest.mock import Mock

import pytest
import torch
from errors import raises
from qacg_models.sentiment.encoding import (
    FeatureTable,
    PaddingCollator,
    encode_examples,
    load_tokenizer,
    train_tokenizer,
    vocabulary_size,
)
from qacg_models.sentiment.example import Example
from tokenizer_kinds import KINDS, write_tokenizer

CONTEXTS = ("location - 1 - price", "location - 1 - safety")
TEXTS = ["location - 1 is cheap but not safe at night", "is location - 1 safe", *CONTEXTS]


def row(sentence, context=CONTEXTS[1], label=2):
    target, _, aspect = context.rpartition(" - ")
    return Example("1", sentence, context, target, aspect, label, 2)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS * 2, vocab_size=200)


def test_encode_examples_two_segments_have_types(tokenizer):
    (feature,), cut = encode_examples([row("Location - 1 is SAFE")], tokenizer, CONTEXTS, 32)
    tokens = tokenizer.convert_ids_to_tokens(feature["input_ids"])
    first = ["[CLS]", "location", "-", "1", "is", "safe", "[SEP]"]
    second = ["location", "-", "1", "-", "safety", "[SEP]"]
    assert tokens == first + second
    assert feature["token_type_ids"] == [0] * len(first) + [1] * len(second)
    assert (feature["context_ids"], feature["labels"], cut) == (1, 2, 0)


def test_encode_examples_standalone_omits_the_context(tokenizer):
    (feature,), _ = encode_examples([row("is cheap", CONTEXTS[0])], tokenizer, CONTEXTS, 32, context_standalone=True)
    assert tokenizer.convert_ids_to_tokens(feature["input_ids"]) == ["[CLS]", "is", "cheap", "[SEP]"]
    assert set(feature["token_type_ids"]) == {0}
    assert feature["context_ids"] == 0


def test_encode_examples_truncates_the_longer_segment(tokenizer):
    features, cut = encode_examples([row("is " * 30 + "cheap"), row("is cheap")], tokenizer, CONTEXTS, 16)
    tokens = tokenizer.convert_ids_to_tokens(features[0]["input_ids"])
    assert tokens == ["[CLS]", *["is"] * 8, "[SEP]", "location", "-", "1", "-", "safety", "[SEP]"]
    assert cut == 1


@pytest.mark.parametrize(("standalone", "texts"), [(True, 2), (False, 4)])
def test_encode_examples_tokenises_equal_inputs_once(tokenizer, standalone, texts):
    rows = [row(text, context) for text in ("is cheap", "is " * 30) for context in CONTEXTS] * 2
    spy = Mock(wraps=tokenizer)
    found, cut = encode_examples(rows, spy, CONTEXTS, 16, standalone)
    assert len(spy.call_args.args[0]) == texts
    assert found == [encode_examples([one], tokenizer, CONTEXTS, 16, standalone)[0][0] for one in rows]
    assert cut == 4


def test_train_tokenizer_is_deterministic(tokenizer):
    assert train_tokenizer(TEXTS * 2, 200).get_vocab() == tokenizer.get_vocab()


def test_tokenizer_round_trip_gives_equal_inputs(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "saved")
    rows = [row("is location - 1 safe at night ?"), row("cheap", CONTEXTS[0])]
    loaded = load_tokenizer(tmp_path / "saved")
    assert encode_examples(rows, loaded, CONTEXTS, 12) == encode_examples(rows, tokenizer, CONTEXTS, 12)
    assert loaded.pad_token_id == tokenizer.pad_token_id


def write_vocabulary(folder, pieces):
    path = folder / "vocab.txt"
    path.write_text("\n".join(pieces) + "\n", encoding="utf-8")
    return path


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def test_vocabulary_file_with_and_without_case(tmp_path):
    path = write_vocabulary(tmp_path, [*SPECIAL, "safe", "Safe", "##ty", "Caf", "##é", "cafe"])
    uncased = load_tokenizer(path)
    assert uncased.tokenize("Safety Café") == ["safe", "##ty", "cafe"]
    cased = load_tokenizer(path, lowercase=False)
    assert cased.tokenize("Safety Café") == ["Safe", "##ty", "Caf", "##é"]
    assert load_tokenizer(tmp_path).get_vocab() == uncased.get_vocab()
    for settings, expected in (
        ({"do_lower_case": False}, ["Safe", "##ty", "Caf", "##é"]),
        ({"do_lower_case": True}, ["safe", "##ty", "cafe"]),
        ({"strip_accents": False}, ["safe", "##ty", "[UNK]"]),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        assert load_tokenizer(tmp_path).tokenize("Safety Café") == expected
    assert uncased("safe", "safe")["token_type_ids"] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_vocabulary_may_have_line_separators_and_line_ends(tmp_path, end):
    path = tmp_path / "vocab.txt"
    path.write_bytes(end.join([*SPECIAL, "\u2028", "safe", ""]).encode())
    assert load_tokenizer(path).get_vocab()["safe"] == 6


def test_load_tokenizer_bad_folder_or_vocabulary_raises(tmp_path):
    with raises("InputError: expected a tokenizer folder"):
        load_tokenizer(tmp_path / "nothing")
    with raises("InputError: expected tokenizer.json or vocab.txt in the folder, got neither. Write tokenizer.json"):
        load_tokenizer(tmp_path)
    with raises("InputError: vocab.txt:8: repeats the piece 'a' of line 6"):
        load_tokenizer(write_vocabulary(tmp_path, [*SPECIAL, "a", "b", "a"]))
    with raises("InputError: without [CLS], [SEP], [MASK]"):
        load_tokenizer(write_vocabulary(tmp_path, ["[PAD]", "[UNK]", "a"]))
    (tmp_path / "tokenizer.json").write_text("{}")
    with raises("InputError: cannot be loaded"):
        load_tokenizer(tmp_path)


@pytest.fixture(scope="module", params=KINDS)
def other(request, tmp_path_factory):
    """A tokenizer of another encoder, loaded from a folder that does not name special tokens, and their ids."""
    folder = write_tokenizer(request.param, TEXTS * 2, tmp_path_factory.mktemp("tokenizer"))
    return load_tokenizer(folder), KINDS[request.param]


def test_special_tokens_are_found_by_their_names(other, tmp_path):
    tokenizer, (first, separator, padding) = other
    ids = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    assert ids == (first, separator, padding)
    assert None not in (tokenizer.unk_token_id, tokenizer.mask_token_id)
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)(*CONTEXTS) == tokenizer(*CONTEXTS)


@pytest.mark.parametrize("standalone", [False, True])
def test_encode_examples_of_other_tokenizers(other, standalone):
    tokenizer, (first, separator, _) = other
    rows = [row("is cheap", CONTEXTS[0]), row("is " * 99 + "safe", CONTEXTS[0])]
    features, cut = encode_examples(rows, tokenizer, CONTEXTS, 64, standalone, token_types=False)
    text, name = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in ("is cheap", CONTEXTS[0]))
    between = [separator] * (tokenizer.num_special_tokens_to_add(pair=True) - 2)
    expected = [first, *text, *([] if standalone else [*between, *name]), separator]
    assert features[0] == {"input_ids": expected, "labels": 2, "context_ids": 0}
    assert (len(features[1]["input_ids"]), cut) == (64, 1)
    assert FeatureTable(rows, tokenizer, CONTEXTS, 64, standalone, token_types=False)[:] == features
    batch = PaddingCollator(tokenizer.pad_token_id)(features)
    assert batch.keys() == {"input_ids", "attention_mask", "labels", "context_ids"}
    assert batch["input_ids"][0].tolist() == expected + [tokenizer.pad_token_id] * (64 - len(expected))


def test_vocabulary_size_counts_ids_without_a_token(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer("roberta", TEXTS, tmp_path))
    known = json.loads((tmp_path / "tokenizer.json").read_text())
    known["model"]["vocab"]["unused"] = size = 10 + vocabulary_size(tokenizer)
    (tmp_path / "tokenizer.json").write_text(json.dumps(known))
    tokenizer = load_tokenizer(tmp_path)
    assert len(tokenizer) <= size < vocabulary_size(tokenizer) == size + 1


def test_encode_examples_bad_arguments_raise(tokenizer):
    with raises("InputError: max_length: expected at least 5"):
        encode_examples([row("is")], tokenizer, CONTEXTS, 4)
    with raises("InputError: context: expected ..., got 'location - 1 - price'"):
        encode_examples([row("is", CONTEXTS[0])], tokenizer, CONTEXTS[1:], 32)
    with raises("InputError: vocab_size: expected more than 5"):
        train_tokenizer(TEXTS, vocab_size=5)


def test_collator_pads_to_the_longest():
    features = [
        {"input_ids": [2, 7, 3], "token_type_ids": [0, 0, 1], "context_ids": 4, "labels": 1},
        {"input_ids": [2, 3], "token_type_ids": [0, 1], "context_ids": 0, "labels": 0},
    ]
    batch = PaddingCollator(pad_token_id=9)(features)
    expected = {
        "input_ids": [[2, 7, 3], [2, 3, 9]],
        "token_type_ids": [[0, 0, 1], [0, 1, 0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "context_ids": [4, 0],
        "labels": [1, 0],
    }
    assert {name: tensor.tolist() for name, tensor in batch.items()} == expected
    assert all(tensor.dtype == torch.int64 for tensor in batch.values())


def test_train_tokenizer_keeps_accents(tmp_path):
    texts = ["schön", "schon", "Das Frühstück war GROSSARTIG, das Café größer"] * 3
    tokenizer = train_tokenizer(texts, vocab_size=300)
    tokenizer.save_pretrained(tmp_path)
    for one in (tokenizer, load_tokenizer(tmp_path)):
        assert one.tokenize("Schön") == ["schön"] and one.tokenize("schon") == ["schon"]
        for text in ("das frühstück", "café", "größer"):
            assert one.decode(one(text, add_special_tokens=False)["input_ids"]) == text
            assert one.tokenize(unicodedata.normalize("NFD", text.upper())) == one.tokenize(text.upper())
