"""The page of `qacg export --to page`: one file with a model that predicts labels of texts in a browser, offline.

The page tokenizes texts as BERT's tokenizer does, with the data that `tokenizer_facts` returns.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from qacg_kernels import __version__
from qacg_models.errors import InputError
from qacg_models.sentiment.calibration import VALIDITY
from qacg_models.sentiment.report import Markup, Section, element, json_script, page_file, page_html, write_text
from qacg_models.sentiment.report.evaluation import SUMMARY_READING
from qacg_models.sentiment.trained_model import TrainedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RUNTIME_VERSION = "1.30.0"
RUNTIME_ARCHIVE = f"onnxruntime-web-{RUNTIME_VERSION}.tgz"
# The files of the npm package that the page contains, with their SHA-256.
_RUNTIME_FILES = {
    "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
}
# The policy blocks connections. Only the runtime is loaded, from a blob that the page creates from its own content.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:;"
    " connect-src 'none'; form-action 'none'; base-uri 'none'"
)
# A letter that separates tested characters: it is in none of the classes, and does not combine with other letters.
_SEPARATOR = "\u0259"
# Planes 4 to 13 of Unicode are empty; surrogates are no characters.
_CODES = (range(0xD800), range(0xE000, 0x40000), range(0xE0000, 0x110000))
_ADVICE = (
    "The page has the WordPiece tokenizer, which BERT and ELECTRA use. Use --to onnx, and the tokenizer of the model's"
    " folder."
)
_SCRIPTS = ("wordpiece.js", "tables.js", "model_page.js")


class Runtime(NamedTuple):
    """The files of onnxruntime-web that a page contains: a JavaScript and a WebAssembly module."""

    script: bytes
    wasm: bytes


def read_runtime(path: Path) -> Runtime:
    """Reads the files of onnxruntime-web from RUNTIME_ARCHIVE, the archive of its npm package."""
    advice = f"Run npm pack onnxruntime-web@{RUNTIME_VERSION}, and pass --runtime {RUNTIME_ARCHIVE}."
    if not path.is_file():
        raise InputError(f"runtime: expected the file {RUNTIME_ARCHIVE}, got none at {path}. {advice}")
    try:
        with tarfile.open(path) as archive:
            found = [archive.extractfile(f"package/dist/{name}").read() for name in _RUNTIME_FILES]
    except (tarfile.TarError, zlib.error, OSError, EOFError, KeyError, AttributeError) as error:
        raise InputError(
            f"runtime: expected {RUNTIME_ARCHIVE}, got {path}, which cannot be read as that file ({error}). {advice}"
        ) from None
    for content, (name, digest) in zip(found, _RUNTIME_FILES.items()):
        if hashlib.sha256(content).hexdigest() != digest:
            expected = f"the {name} of onnxruntime-web {RUNTIME_VERSION}"
            raise InputError(f"runtime: expected {expected}, got another file in {path}. {advice}")
    return Runtime(*found)


def page_facts(trained: TrainedModel) -> dict:
    """Returns the labels, contexts, tokenizer (it must be BERT's) and other data of the page, in JSON types."""
    task = trained.task
    return trained.input_facts() | {
        "has_absent": task.has_absent,
        "has_targets": task.has_targets,
        "aspects": task.aspects,
        "targets": trained.record.targets,
        "text_column": trained.record.data_options.text_column,
        "reading": SUMMARY_READING,
        "tokenizer": tokenizer_facts(trained.tokenizer),
    }


def write_model_page(path: Path, trained: TrainedModel, facts: dict, model: bytes, runtime: Runtime) -> None:
    """Writes the page to one file: the result of `page_facts`, the model as ONNX, and the runtime."""
    note = element("p", "No texts have been predicted.", kind="note")
    texts, about = Section("Texts", [page_file("inputs.html")]), Section("About this page")
    results = [Section(title, [element("div", note, id=title.lower())]) for title in ("Summary", "Predictions")]
    size, labels = f"{len(model) / 1e6:.1f}", ", ".join(trained.task.labels)
    named = {"title": trained.title, "size": size, "labels": labels, "version": __version__, "validity": VALIDITY}
    named = {name: html.escape(text) for name, text in (named | {"runtime": RUNTIME_VERSION}).items()}
    about.parts += [Template(page_file("about.html")).substitute(named), json_script(facts, id="facts")]
    for name, content in (("runtime", runtime.script), ("wasm", runtime.wasm), ("model", model)):
        packed = Markup(base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii"))
        about.parts.append(element("script", packed, type="application/octet-stream", id=name))
    style = page_file("summary.css") + page_file("model_page.css")
    # The script is a block, so that it defines no global names.
    script = "\n".join(['"use strict";\n{', *map(page_file, _SCRIPTS), "}\n"])
    lead = "Predicts the opinion on each aspect of a text. Everything runs in this page: no text leaves this computer."
    sections = [texts, *results, about]
    write_text(path, page_html("Aspect sentiment", lead, sections, style=style, script=script, policy=_POLICY))


def tokenizer_module(facts: dict) -> str:
    """Returns the page's tokenizer, with the result of `page_facts`, as a JavaScript module for Node."""
    data = f"export const facts = JSON.parse({json.dumps(json.dumps(facts))});"
    return f"{page_file('wordpiece.js')}\n{data}\nexport const tokenizer = new WordPiece(facts.tokenizer);\n"


def tokenizer_facts(tokenizer: PreTrainedTokenizerFast) -> dict:
    """Returns vocabulary, special tokens, normalization, and classes of characters of a WordPiece tokenizer.

    The classes are ranges of code points, computed with the normalizer and the pre-tokenizer of the library tokenizers:

    - dropped: characters that are removed, such as control characters.
    - ideographs: characters around which the normalizer adds spaces, such as Chinese ones.
    - marks: accents that are removed after canonical decomposition.
    - punctuation: characters that the pre-tokenizer separates from their neighbours.
    """
    known = json.loads(tokenizer.backend_tokenizer.to_str())
    model, special = known["model"], known["added_tokens"]
    _expect("model", model["type"], "WordPiece")
    nfc, bert = _normalizer(known["normalizer"])
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
        raise InputError(f"tokenizer: expected the {name} {expected}, got {found}. {_ADVICE}")


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
    numbers = np.array(sorted(codes), dtype=int)
    parts = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
    return [[int(part[0]), int(part[-1])] for part in parts if len(part)]
