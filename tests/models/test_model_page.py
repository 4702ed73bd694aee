"""`qacg export --to page`: predictions in the browser equal those in int8 of `qacg predict`, and nothing is sent."""

import base64
import csv
import gzip
import importlib.util
import io
import json
import os
import random
import re
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from browser import CHECKS
from commands import error_of
from errors import raises
from full_members import member
from qacg_models.cli.commands.export import SUFFIXES
from qacg_models.cli.program import main
from qacg_models.sentiment.columns import Columns
from qacg_models.sentiment.encoding import load_tokenizer, tokenizer_from_vocabulary
from qacg_models.sentiment.example import SENTIHOOD, DataError
from qacg_models.sentiment.metrics import wilson_interval
from qacg_models.sentiment.predictor import PredictionFormat
from qacg_models.sentiment.report import model_page
from qacg_models.sentiment.report.evaluation import Summary, read_predictions
from qacg_models.sentiment.report.model_page import (
    RUNTIME_ARCHIVE,
    Runtime,
    page_facts,
    read_runtime,
    tokenizer_facts,
    write_model_page,
)
from qacg_models.sentiment.tables import read_table, read_texts
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.utils.text import escape_formula
from tokenizers import normalizers
from untrained import OWN, TEXTS, write_model

SCRIPTS = {
    name: (Path(model_page.__file__).with_name("page") / name).read_text(encoding="utf-8")
    for name in ("wordpiece.js", "tables.js")
}
STATUS = "document.getElementById('status').textContent"
ENDED = f"/^(Predicted|Stopped|Error)/.test({STATUS})"
# Probabilities of int8 differ between two implementations, since a rounding error can change an 8-bit step.
TIE = 0.05
# Both ways in which a context enters, the three classifiers, and targets.
MODELS = {
    "qacg-bert-standalone": {"kind": "qacg-bert", "context_standalone": True},
    "qacg-bert": {"kind": "qacg-bert", "context_standalone": False},
    "cg-bert": {"kind": "cg-bert", "context_standalone": False},
    "aspect-bert": {"kind": "aspect-bert"},
    "bert": {"kind": "bert"},
    "targets": {"kind": "qacg-bert", "task": SENTIHOOD},
}
needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@pytest.fixture(scope="session")
def archive():
    """The archive of onnxruntime-web; skips the test without it."""
    path = os.environ.get("ONNXRUNTIME_WEB")
    if not path:
        pytest.skip(f"ONNXRUNTIME_WEB does not name {RUNTIME_ARCHIVE}; `npm pack onnxruntime-web@1.30.0` brings it")
    return Path(path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("paged") / "model", layers=1, heads=4, **MODELS["qacg-bert"])


def exported(model, archive, output):
    assert main(["export", str(model), "--to", "page", "--runtime", str(archive), "--output", str(output)]) == 0
    return output.as_uri()


@pytest.fixture(scope="module")
def page(model, archive, tmp_path_factory):
    return exported(model, archive, tmp_path_factory.mktemp("page") / "model.html")


def table(columns, rows):
    handle = io.StringIO()
    csv.writer(handle, lineterminator="\n").writerows([columns, *rows])
    return handle.getvalue()


def reviews(count=300):
    """A CSV whose texts need quoting, with other columns, and with two texts that have no prediction."""
    draw, words = random.Random(0), " ".join(TEXTS).split()
    texts = [" ".join(draw.choices(words, k=draw.randint(1, 60))) for _ in range(count)]
    texts[2:4] = "", "  "
    return table(["number", "text", "label"], [[n, text, f'{n / count:.3f}, "x"'] for n, text in enumerate(texts)])


def open_page(browser, address, width=1280, scheme="light"):
    browser.show(address, width, scheme)
    browser.wait(f"document.documentElement.dataset.ready || {STATUS}.startsWith('Error')")
    assert browser.value(STATUS).startswith("Ready after")


def give_file(browser, content, name="new.csv", drop=False):
    """Chooses a file, or drops it; waits until it is read."""
    browser.value(
        f"""{{const data = new DataTransfer();
        data.items.add(new File([{json.dumps(content)}], {json.dumps(name)}));
        const input = document.getElementById('file');
        document.getElementById('file-note').textContent = '';
        if ({json.dumps(drop)})
          input.parentElement.dispatchEvent(new DragEvent('drop', {{ dataTransfer: data, bubbles: true }}));
        else {{ input.files = data.files; input.dispatchEvent(new Event('change')); }}}}"""
    )
    browser.wait("document.getElementById('file-note').textContent")
    return browser.value("document.getElementById('file-note').textContent")


def predict(browser, button="predict-file"):
    browser.value(f"document.getElementById('status').textContent = ''; document.getElementById('{button}').click()")
    browser.wait(ENDED)
    return browser.value(STATUS)


def downloaded(browser):
    """The content of the CSV that the page offers."""
    browser.value(
        """{const create = URL.createObjectURL;
        URL.createObjectURL = (blob) => { globalThis.saved = blob; return create.call(URL, blob); };
        document.getElementById('download').click(); URL.createObjectURL = create;}"""
    )
    return browser.value("saved.text()")


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def predicted(model, content, tmp_path):
    (tmp_path / "new.csv").write_text(content, encoding="utf-8")
    output = tmp_path / "out.csv"
    given = [
        "--input",
        tmp_path / "new.csv",
        "--output",
        output,
        "--text-column",
        "text",
        "--precision=int8",
        "--skip-empty",
    ]
    assert main(["predict", str(model), *map(str, given)]) == 0
    return output.read_text(encoding="utf-8")


@needs_torchao
@pytest.mark.parametrize("name", [member(name, id=name, fast=name == "qacg-bert") for name in MODELS])
def test_page_labels_equal_predict_int8(name, model, page, archive, browser, tmp_path):
    if name != "qacg-bert":
        model = write_model(tmp_path / "model", layers=1, heads=4, **MODELS[name])
        page = exported(model, archive, tmp_path / "model.html")
    content = reviews()
    if name == "targets":  # `qacg predict` raises an error for a text without a target
        content = table(["number", "text"], [[n, f"location - {n % 2 + 1} {TEXTS[n % 3]} {n}"] for n in range(300)])
    expected = rows_of(predicted(model, content, tmp_path))
    open_page(browser, page)
    give_file(browser, content)
    predict(browser)
    found = rows_of(downloaded(browser))
    assert list(found[0]) == list(expected[0])
    assert len(found) == len(expected)
    shares = [column for column in found[0] if column.startswith("p(")]
    different = 0
    for one, other in zip(found, expected):
        for column in set(one) - {*shares, "label"}:
            assert one[column] == other[column], column
        if one["label"] != other["label"]:
            different += 1
            high, next_high = sorted((float(other[column]) for column in shares), reverse=True)[:2]
            assert high - next_high < TIE, (one, other)
        assert all(abs(float(one[name] or 0) - float(other[name] or 0)) < TIE for name in shares)
    assert different <= 0.01 * len(found)


def test_page_predicts_pasted_and_dropped_texts(page, browser):
    """The test pastes texts, drops a CSV, selects column and aspects, reads table and summary, and saves a CSV.

    The page must not send anything.
    """
    open_page(browser, page)
    browser.value(f"document.getElementById('texts').value = {json.dumps(TEXTS[0] + chr(10) * 2 + TEXTS[1])}")
    assert predict(browser, "predict-texts").startswith("Predicted 2 texts in ")
    shown = browser.value(
        "[...document.querySelectorAll('#predictions tbody tr')].map((row) => row.cells[0].innerText)"
    )
    assert shown == [text for text in TEXTS[:2] for _ in OWN.aspects]
    assert [row["line"] for row in rows_of(downloaded(browser))] == ["1"] * 3 + ["3"] * 3

    content = "\ufeff" + reviews(90).replace(",text,", ",comment,", 1)
    assert give_file(browser, content, drop=True) == "new.csv: 90 rows, read as utf-8."
    assert browser.value("document.getElementById('column').value") == "comment", "the longest texts"
    browser.value("document.querySelector('#aspects input[value=price]').click()")
    status = r"Predicted 88 texts in [\d.]+ s; skipped 2 empty texts; truncated \d+ texts .*"
    assert re.fullmatch(status, predict(browser))
    rows = rows_of(downloaded(browser))
    assert list(rows[0])[-2:] == ["number", "label (input)"]
    assert {row["aspect"] for row in rows} == {"food", "service", ""}
    headings = browser.value("[...document.querySelectorAll('#summary h3')].map((one) => one.textContent)")
    assert headings == ["food", "service"]
    counts = browser.value("[...document.querySelectorAll('#summary tbody tr')].map((row) => row.cells[1].textContent)")
    labels = [row["label"] for row in rows if row["aspect"] == "food"]
    assert [int(one) for one in counts[:3]] == [labels.count(name) for name in OWN.labels]
    best = max((row for row in rows if row["aspect"] == "food"), key=lambda row: float(row["p(bad)"] or 0))
    quotes = browser.value("[...document.querySelectorAll('#summary blockquote')].map((one) => one.textContent)")
    if best["label"] == "bad":
        assert f"{best['text'][:400]} ({float(best['p(bad)']):.2f})" in quotes
    assert browser.value("document.querySelectorAll('#predictions tbody tr').length") == 176
    browser.value("document.getElementById('spreadsheet').click()")
    assert browser.value("saved.size") < len(downloaded(browser).encode()) + 4

    assert [one for one in browser.requests if not one.startswith(("blob:", "data:"))] == [page]
    assert browser.messages == []
    assert browser.value("fetch('https://example.org').then(() => 'sent', (error) => String(error))") != "sent"
    assert any("Content Security Policy" in one for one in browser.messages)


def test_page_summary_equals_the_command(page, browser):
    """The command summarises the page's own predictions, so that rounding does not matter."""
    open_page(browser, page)
    give_file(browser, reviews(60))
    predict(browser)
    form = PredictionFormat("csv", OWN)
    summary = Summary(OWN.labels, has_absent=True)
    for one in read_predictions(io.StringIO(downloaded(browser)), form):
        summary.add(one)
    expected = []
    for counts in summary.counts.values():
        for label in OWN.labels:
            lower, upper = wilson_interval(counts[label], counts.total())
            cells = f"{100 * counts[label] / counts.total():.1f}", f"{100 * lower:.1f}–{100 * upper:.1f}"
            expected.append([label, f"{counts[label]:,}", *cells])
    cells = "[...row.cells].slice(0, 4).map((one) => one.textContent)"
    assert browser.value(f"[...document.querySelectorAll('#summary tbody tr')].map((row) => {cells})") == expected
    quotes = "[...document.querySelectorAll('#summary blockquote')].map((one) => one.textContent)"
    best = [text for context in OWN.aspects for label in OWN.labels[1:] for _, text in summary.telling(context, label)]
    assert [re.sub(r" \(\d\.\d\d\)$", "", one) for one in browser.value(quotes)] == best


@pytest.mark.parametrize(
    ("width", "scheme"), [member(390, "dark", id="phone", fast=True), member(1280, "light", id="desktop", fast=False)]
)
def test_model_page_fits_and_has_keyboard_order(page, browser, width, scheme):
    open_page(browser, page, width, scheme)
    text = json.dumps("the food was great\n" + "long" * 100)
    browser.value(f"document.getElementById('texts').focus(); document.execCommand('insertText', false, {text})")
    browser.press("Tab")
    assert browser.value("document.activeElement.id") == "predict-texts"
    browser.press("Enter")
    browser.wait(ENDED)
    assert browser.value("document.activeElement.id") == "predict-texts", "the focus stays"
    give_file(browser, reviews(5))
    browser.value(CHECKS)
    assert browser.value("beyondThePage()") == []
    assert browser.messages == []
    named = browser.named()
    assert [one for one in named if one["focusable"] and not one["name"].strip()] == []
    assert sum(one["role"] == "status" for one in named) == 2, "results are announced"


def test_page_stops_and_reports_bad_input(page, browser):
    open_page(browser, page)
    message = "Error: texts: expected at least one, got none. Enter a text or choose a file"
    assert predict(browser, "predict-texts") == message
    assert "expected a .csv, .tsv or .txt file" in give_file(browser, "x", "new.xlsx")
    assert browser.value("document.getElementById('predict-file').disabled")
    assert "a quotation mark is not closed" in give_file(browser, 'text\n"x')
    give_file(browser, table(["text"], [[f"{TEXTS[0]} {number}"] for number in range(3000)]))
    browser.value("document.getElementById('predict-file').click()")
    browser.wait("document.getElementById('progress').value > 0")
    browser.value("document.getElementById('stop').click()")
    browser.wait(ENDED)
    assert re.match(r"Stopped after [\d,]+ of 3,000 texts", browser.value(STATUS))


# ---- The tokenizer and the tables of the page, without a runtime

WORDS = (
    *("soup", "Straße", "SCHÖN", "e\u0301", "n\u0303", "ΑΣ", "İstanbul", "漢字", "カタカナ", "가", "ﬁ", "½", "ᾼ", "ก็"),
    *("हिन्दी", "مرحبا", "A\u030a", "é", "𝔸", "𐐀", "👍🏽", "👩\u200d👩\u200d👧", "🇩🇪", "\u0301\u0301", "\u1e9b\u0323"),
    *["don't", "a-b", "…", "£5", "“q”", "_", "^", "`", "~", "[SEP]", "[mask]", "[MASK]"],
    *("x" * 99, "y" * 100, "z" * 101),
    *("\u200d", "\ufeff", "\0", "\x85", "\u2028", "\t", "\ufffd", "\u00ad", "\n", " ", "  "),
)


def odd_texts(count=3000):
    draw = random.Random(0)
    found = [
        "".join(draw.choice(WORDS) + draw.choice(("", " ")) for _ in range(draw.randint(1, 12))) for _ in range(count)
    ]
    codes = [range(start, start + 64) for start in range(0, 0x30000, 64) if not 0xD800 <= start < 0xE000]
    return found + ["".join(map(chr, one)) for one in codes]


def bert_tokenizer(folder, lowercase):
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    pieces += ["schon", "soup", "漢", "👍", "é"]
    path = folder / "vocab.txt"
    path.write_text("\n".join([*pieces, *(f"##{one}" for one in pieces[5:])]) + "\n", encoding="utf-8")
    return tokenizer_from_vocabulary(path, lowercase)


TOKENIZERS = {
    "trained": lambda folder: load_tokenizer(write_model(folder / "model", layers=1)),
    "uncased": lambda folder: bert_tokenizer(folder, True),
    "cased": lambda folder: bert_tokenizer(folder, False),
}


@pytest.mark.parametrize("name", [member(name, id=name, fast=name != "cased") for name in TOKENIZERS])
def test_page_tokenizer_equals_the_models(name, browser, tmp_path):
    tokenizer, texts = TOKENIZERS[name](tmp_path), odd_texts()
    browser.show("about:blank#tokens")
    browser.value(
        f"{SCRIPTS['wordpiece.js']}; globalThis.tokenizer = new WordPiece({json.dumps(tokenizer_facts(tokenizer))})"
    )
    browser.value(f"globalThis.texts = {json.dumps(texts)}; 0")
    for context, most in ((None, 24), ("price", 512), ("transit location soup soup", 9)):
        call = f"tokenizer.encode(text, {json.dumps(context)}, {most})"
        found = browser.value(f"texts.map((text) => {call}).map(({{ ids, types, cut }}) => [ids, types, cut])")
        pair = None if context is None else [context] * len(texts)
        expected = tokenizer(texts, pair, truncation="longest_first", max_length=most, return_token_type_ids=True)
        cut = [bool(one.overflowing) for one in expected.encodings]
        for text, one, *other in zip(texts, found, expected["input_ids"], expected["token_type_ids"], cut):
            assert one == other, ascii(text)


TABLES = {
    "semicolons": "a;text\n1;x, y\n\n2;z",
    "tabs": "a\ttext\r\n1\t'x'\r\n",
    "excel": "sep=;\ntext;b\nx;y\n",
    "quoted": 'text,b\n"x ""y"", z\nw",2\n"",3\nlast,"4"',
    "mark": "\ufefftext,b\nx,y\n",
    "short": "text,b,c\nx,y\nx,\n",
    "repeated": "text,b,b,\nx,1,2,3\n",
    "inner quotes": 'text,b\nx "y" z,1\n',
    "returns": 'text,b\r\n"x\r\ny",1\r\nz,2\r\n',
    "blank first": "\n\n text ,b\nx,y\n",
    "many fields": "text,b\nx,y,z\n",
    "open": 'text,b\n"x,y\n',
    "after quote": 'text,b\n"x"y,z\n',
    "lone return": "text,b\nx\ry,z\n",
    "joined rows": 'text,b\nx,1\n"y,2\nz",3\n',
    "split row": "a,text,b\n1,x\ny,2\n3,z,4\n",
    "omitted cells": "text,b,c\n" + "x,1,2\n" * 15 + "y,1\n" * 20,
    "survey": 'text,b\nq,r\n"{""ImportId"":""a""}","{""ImportId"":""b""}"\nx,y\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_page_reads_a_csv_like_the_command(name, browser, tmp_path):
    path = tmp_path / "new.csv"
    path.write_bytes(TABLES[name].encode())
    columns = Columns(text="text", aspect=None, label=None)
    browser.show("about:blank#tables")
    call = f"readCsv(decodeText(new TextEncoder().encode({json.dumps(TABLES[name])})).text, 'text')"
    rows = "rows.map(({ line, cells }) => [line, Object.fromEntries(names.map((name, at) => [name, cells[at]]))])"
    found = browser.value(
        f"{{{SCRIPTS['tables.js']}; globalThis.answer = (() => {{ try {{ const {{ names, rows }} = {call};"
        f" return {rows}; }} catch (error) {{ return error.message; }} }})()}} answer"
    )
    try:
        expected = [[line, row] for line, row in read_table(path, columns).to_dict("index").items()]
    except DataError as error:
        (line,) = re.findall(r":(\d+): ", str(error))
        assert found.startswith(f"line {line}: "), (found, str(error))
        return
    assert found == expected


def test_page_writes_a_csv_like_the_command(browser):
    browser.show("about:blank#written")
    cells = ["x", "", 'a "b"', "a,b", "a\nb", "=1", " +1", "'-1", "\t", "x=1", "＝1", "5", "ä", ";"]
    browser.value(f"{SCRIPTS['tables.js']}; globalThis.line = csvLine")
    escaped = [escape_formula(cell) for cell in cells]
    for escapes, row in ((False, cells), (True, escaped)):
        expected = pd.DataFrame([row]).to_csv(index=False, header=False, lineterminator="\n")
        assert browser.value(f"line({json.dumps(cells)}, {json.dumps(escapes)})") == expected


def test_page_reads_lines_and_encodings_like_the_command(browser, tmp_path):
    path, content = tmp_path / "new.txt", "\ufeffa\r\n\n \nb\u2028c\n"
    path.write_text(content, encoding="utf-8", newline="")
    table = read_texts(path, Columns(text="text", aspect=None, label=None))
    expected = [[line, text] for line, text in table["text"].items()]
    browser.show("about:blank#lines")
    browser.value(f"{SCRIPTS['tables.js']}; globalThis.decode = (bytes) => decodeText(Uint8Array.from(bytes))")
    utf8, utf16, western = (
        list(text.encode(name)) for text, name in ((content, "utf-8"), ("ä", "utf-16"), ("ä", "cp1252"))
    )
    found = browser.value(f"readLines(decode({utf8}).text).map(({{ line, text }}) => [line, text])")
    assert found == expected
    assert browser.value(f"decode({utf16})") == {"text": "ä", "encoding": "utf-16le"}
    assert browser.value(f"decode({western})") == {"text": "ä", "encoding": "windows-1252"}


# ---- The command


def test_page_is_one_file_with_a_closed_policy(model, tmp_path):
    trained, content = load_trained(model), bytes(range(256)) * 9
    runtime = Runtime(b"script", b"wasm")
    write_model_page(
        tmp_path / "model.html", trained, page_facts(trained) | {"labels": ["</script>"]}, content, runtime
    )
    text = (tmp_path / "model.html").read_text(encoding="utf-8")
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]+)"', text)
    assert "default-src 'none'" in policy and "connect-src 'none'" in policy and "http" not in policy
    assert not re.search(r"<(?:link|img|iframe|base)\b|\bsrc=|https?://", text)
    (stored,) = re.findall(r'id="model">([^<]+)<', text)
    assert gzip.decompress(base64.b64decode(stored)) == content
    assert json.loads(re.search(r'id="facts">(.*?)</script>', text)[1])["labels"] == ["</script>"]
    assert "MIT license" in text and "Permission is hereby granted" in text


def test_runtime_errors_name_the_command(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = ["export", model, "--to", "page", "--output", "model.html"]
    advice = f"Run npm pack onnxruntime-web@1.30.0, and pass --runtime {RUNTIME_ARCHIVE}."
    assert error_of(capsys, *flags).endswith(f"got none at {RUNTIME_ARCHIVE}. {advice}\n")
    Path("other.tgz").write_bytes(b"x")
    assert "which cannot be read as that file" in error_of(capsys, *flags, "--runtime", "other.tgz")
    with tarfile.open("old.tgz", "w:gz") as archive:
        for name in model_page._RUNTIME_FILES:
            entry = tarfile.TarInfo(f"package/dist/{name}")
            entry.size = 3
            archive.addfile(entry, io.BytesIO(b"old"))
    with raises("InputError: got another file in old.tgz. Run npm pack"):
        read_runtime(Path("old.tgz"))
    wrong = ["export", model, "--output", "model.onnx", "--runtime", "other.tgz"]
    assert "runtime: expected --to page with --runtime, got onnx." in error_of(capsys, *wrong)
    assert "expected a name that ends in .html" in error_of(capsys, *flags[:-1], "model.onnx")
    assert not list(tmp_path.glob("model.*"))


def test_other_tokenizers_raise(model):
    tokenizer = load_tokenizer(model)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with raises(
        "InputError: tokenizer: expected the normalizer BertNormalizer, alone or after NFC, got ['Lowercase']. The page"
    ):
        tokenizer_facts(tokenizer)


@pytest.mark.parametrize(("kind", "found"), [("roberta", "BPE"), ("xlm-roberta", "Unigram")])
@pytest.mark.parametrize("to", ["page", "tokenizer"])
def test_page_of_another_tokenizer_raises(kind, found, to, tmp_path, capsys):
    """Before onnxruntime-web is required."""
    folder, output = write_model(tmp_path / "model", tokenizer=kind), str(tmp_path / f"out{SUFFIXES[to]}")
    printed = error_of(capsys, "export", str(folder), "--to", to, "--output", output)
    assert f"expected the model WordPiece, got {found}. The page has the WordPiece tokenizer, which BERT and" in printed
