"""The data that a page requires to tokenize texts as a BERT tokenizer does, in JSON types."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from qacg_models.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# A letter that separates tested characters: it is in none of the classes, and does not combine with other letters.
_SEPARATOR = "\u0259"
# Planes 4 to 13 of Unicode are empty; surrogates are no characters.
_CODES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0x110000))
_ADVICE = "Use --to onnx, and the tokenizer of the model's folder."


def tokenizer_facts(tokenizer: PreTrainedTokenizerFast) -> dict:
    """Returns vocabulary, special tokens, normalization, and classes of characters of a WordPiece tokenizer.

    The classes are ranges of code points, computed with the normalizer and the pre-tokenizer of the library tokenizers:

    - dropped: characters that are removed, such as control characters.
    - ideographs: characters around which the normalizer adds spaces, such as Chinese ones.
    - marks: accents that are removed after canonical decomposition.
    - punctuation: characters that the pre-tokenizer separates from their neighbours.

    Raises:
        InputError: the tokenizer's model, normalizer, pre-tokenizer or special tokens are not those of BERT.
    """
    known = json.loads(tokenizer.backend_tokenizer.to_str())
    model, special = known["model"], known["added_tokens"]
    nfc, bert = _normalizer(known["normalizer"])
    _expect("model", model["type"], "WordPiece")
    _expect("pre_tokenizer", (known["pre_tokenizer"] or {}).get("type"), "BertPreTokenizer")
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token in special:
        _expect(f"token {token['content']!r}", {name: token[name] for name in plain}, plain)
    start, end = tokenizer.cls_token_id, tokenizer.sep_token_id
    one, other = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("one", "other"))
    encoded = tokenizer("one", "other", return_token_type_ids=True)
    _expect("input_ids", encoded["input_ids"], [start, *one, end, *other, end])
    _expect("token_type_ids", encoded["token_type_ids"], [0] * (len(one) + 2) + [1] * (len(other) + 1))
    encoded = tokenizer("one", return_token_type_ids=True)
    _expect("input_ids", encoded["input_ids"], [start, *one, end])
    strips = bert["lowercase"] if bert["strip_accents"] is None else bert["strip_accents"]
    return {
        "vocabulary": model["vocab"],
        "special": {token["content"]: token["id"] for token in special},
        "prefix": model["continuing_subword_prefix"],
        "longest": model["max_input_chars_per_word"],
        "unknown": model["vocab"][model["unk_token"]],
        "start": start,
        "end": end,
        "nfc": nfc,
        "clean": bert["clean_text"],
        "lowercase": bert["lowercase"],
        **_classes(bert["clean_text"], bert["handle_chinese_chars"], strips),
    }


def _normalizer(known: dict | None) -> tuple[bool, dict]:
    """Returns whether text is composed (NFC), and the settings of BERT's normalizer."""
    known = known or {}
    steps = known["normalizers"] if known.get("type") == "Sequence" else [known]
    kinds = [step.get("type") for step in steps]
    if kinds not in (["BertNormalizer"], ["NFC", "BertNormalizer"]):
        _expect("normalizer", kinds, "BertNormalizer, alone or after NFC")
    return len(kinds) == 2, steps[-1]


def _expect(name: str, found: object, expected: object) -> None:
    if found != expected:
        raise InputError(f"tokenizer: expected the {name} {expected} for --to page, got {found}. {_ADVICE}")


def _classes(clean: bool, ideographs: bool, strip_accents: bool) -> dict[str, list[list[int]]]:
    from tokenizers import normalizers, pre_tokenizers

    letters = [chr(code) for codes in _CODES for code in codes if chr(code) != _SEPARATOR]
    text = _SEPARATOR.join(letters)

    def changed(to: Callable[[str], str], **settings: bool) -> list[int]:
        """Returns the code points of the letters that BERT's normalizer, with `settings`, changes to `to(letter)`."""
        off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
        if not any(settings.values()):
            return []
        found = normalizers.BertNormalizer(**{**off, **settings}).normalize_str(text).split(_SEPARATOR)
        return [ord(letter) for letter, one in zip(letters, found, strict=True) if one == to(letter)]

    pieces = [piece for piece, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text)]
    return {
        "dropped": _ranges(changed(lambda letter: "", clean_text=clean)),
        "ideographs": _ranges(changed(lambda letter: f" {letter} ", handle_chinese_chars=ideographs)),
        "marks": _ranges(changed(lambda letter: "", strip_accents=strip_accents)),
        "punctuation": _ranges({ord(piece) for piece in pieces if len(piece) == 1 and piece != _SEPARATOR}),
    }


def _ranges(codes: Iterable[int]) -> list[list[int]]:
    """Returns sorted numbers as ranges [first, last]."""
    found: list[list[int]] = []
    for code in sorted(codes):
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return found
