"""`qacg analyze`: numbers on the page equal the model's, the page is offline, and a browser shows it."""

import base64
import html
import json
import re

import numpy as np
import pytest
import torch
from html_tree import Tree
from matplotlib.image import imread
from qacg_models import layerwise_relevance, token_sensitivity
from qacg_models.cli.program import main
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.report.analysis import (
    MARKERS,
    example_maps,
    row_inputs,
    row_tokens,
    write_analysis,
)
from qacg_models.sentiment.trained_model import load_trained
from tokenizer_kinds import KINDS
from untrained import TEXTS, write_model

SENTENCES = (TEXTS[2], TEXTS[1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return load_trained(write_model(tmp_path_factory.mktemp("analyze") / "model", context_standalone=False))


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):
    """A page with two sentences, the first with two aspects."""
    folder = tmp_path_factory.mktemp("page") / "page"
    rows = [row(SENTENCES[0], "food"), row(SENTENCES[0], "price"), row(SENTENCES[1], "service")]
    return write_analysis(trained, rows, folder)


def row(sentence, aspect):
    return Example("", sentence, aspect, "", aspect, None, 1)


def embedded(page):
    """The data of every viewer, with maps (layers, heads, tokens, tokens) as the script of the page reads them."""
    found = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    viewers = [json.loads(text) for text in found]
    for data in viewers:
        for one in data["rows"]:
            shape = data["layers"], data["heads"], len(one["tokens"]), len(one["tokens"])
            for kind in {"softmax", "quasi"} & one.keys():
                steps = np.frombuffer(base64.b64decode(one[kind]["values"]), "<i2").reshape(shape)
                one[kind] = one[kind]["step"] * steps
    return viewers


@pytest.mark.parametrize("kind", KINDS)
def test_row_tokens_are_readable(kind, tmp_path):
    trained = load_trained(write_model(tmp_path, layers=1, tokenizer=kind, context_standalone=True))
    first, *tokens, last = row_tokens(trained, row("the food, that was cheaper", "food"))
    assert {first, last} <= set(MARKERS)
    assert " ".join(tokens).replace(" ##", "").replace(" ,", ",") == "the food, that was cheaper"


def test_analyze_page_has_the_maps_of_the_model(trained, page):
    first, second = embedded(page)
    assert [one["title"] for one in first["rows"]] == ["food", "price"] and len(second["rows"]) == 1
    for one in first["rows"]:
        maps = example_maps(trained, row(SENTENCES[0], one["title"]))
        assert one["tokens"] == maps.tokens
        for kind in ("softmax", "quasi"):
            true = getattr(maps, kind)
            np.testing.assert_allclose(one[kind], true, atol=np.abs(true).max() / 60000)
        assert true.min() < 0 < true.max()


def test_analyze_scores_equal_those_of_the_model(trained, page):
    text = page.read_text(encoding="utf-8")
    for aspect in ("food", "price"):
        batch = row_inputs(trained, row(SENTENCES[0], aspect))
        numbers = text.partition(f"<summary>Numbers: {aspect}</summary>")[2].partition("</details>")[0]
        shown = np.array(re.findall(r">([^<>]+)</td><td[^>]*>([^<]+)</td></tr>", numbers), float)
        # The page rounds scores to three significant digits, and lambda to three decimals.
        np.testing.assert_allclose(shown[:, 0], token_sensitivity(trained.model, batch)[0], rtol=5e-3)
        np.testing.assert_allclose(shown[:, 1], layerwise_relevance(trained.model, batch).tokens[0], rtol=5e-3)
        with torch.no_grad():
            shares = trained.model(**batch).logits[0].softmax(-1)
        label = trained.task.labels[int(shares.argmax())]
        cells = "".join(f'<td class="number">{float(share):.3f}</td>' for share in shares)
        assert f'<th scope="row">{aspect}</th><td>{label}</td>{cells}' in text
        assert text.count(f"<figcaption>{aspect}: {label}</figcaption>") == 2, "strips name the aspect of their logit"
        means = text.partition(f"<figcaption>{aspect}</figcaption>")[2].partition("</figure>")[0]
        shown = [float(one.replace("−", "-")) for one in re.findall(r">([+−][\d.]+)</td>", means)]
        maps = example_maps(trained, row(SENTENCES[0], aspect))
        np.testing.assert_allclose(shown, maps.lambdas.mean(-1).ravel(), atol=5.1e-4)


def test_analyze_page_is_offline_and_escapes_texts(page):
    text = page.read_text(encoding="utf-8")
    assert Tree(text).fetched == []
    assert "default-src 'none'" in text and "http-equiv" in text
    assert "<b>" not in text
    assert html.escape(SENTENCES[0]) in text
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|import\(", text)


def test_analyze_bad_input_raises(trained, tmp_path, capsys):
    unknown = ["analyze", trained.model.name_or_path, "--text", TEXTS[1], "--aspects", "view"]
    assert main([*unknown, "--output", str(tmp_path / "none")]) == 2
    assert "aspects: expected one of the model's aspects (food, price, service), got 'view'" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_viewer_shows_the_selected_head(trained, page, browser):
    browser.show(page.as_uri())
    browser.value("choose(2, 1)")
    dom = browser.value("document.documentElement.outerHTML")
    assert browser.messages == [], "no script error, and no violation of the content security policy"
    assert 'data-drawn="2"' in dom
    assert re.findall(r'aria-pressed="true">([^<]+)', dom) == ["2", "1"] * 2
    assert dom.count("<canvas") == 3 * 2 + 3
    assert dom.count('<table class="shaded"') == 3
    first = dom[dom.index('id="maps-1"') :]
    first = first[first.index('<div class="bar"') : first.index("<h3")]
    maps = [example_maps(trained, row(SENTENCES[0], aspect)) for aspect in ("food", "price")]
    for kind, text in zip(("quasi", "combined"), re.findall(r"</i>\+([\d.]+)</span>", first), strict=True):
        limit = max(np.abs(getattr(one, kind)[1]).max() for one in maps)
        assert float(text) == pytest.approx(limit, abs=0.0051 if limit >= 0.1 else 0.000051)
    for token in maps[0].tokens:
        assert f">{html.escape(token, quote=False)}</span>" in first


@pytest.mark.parametrize("kind", ["aspect-bert", "cg-bert", "bert"])
def test_model_without_quasi_attention_has_one_map_and_no_lambda(kind, tmp_path):
    trained = load_trained(write_model(tmp_path / "model", kind=kind))
    page = write_analysis(trained, [row(SENTENCES[0], "food")], tmp_path / "page")
    ((found,),) = (data["rows"] for data in embedded(page))
    assert "quasi" not in found and 'class="shaded"' not in page.read_text(encoding="utf-8")
    assert "takes away" not in page.read_text(encoding="utf-8").partition("How to read")[0].partition("<main")[2]
    with torch.no_grad():
        layers = trained.model(**row_inputs(trained, row(SENTENCES[0], "food")), output_attentions=True).attentions
    np.testing.assert_allclose(found["softmax"], torch.cat(layers), atol=1e-4)


def test_viewer_without_quasi_attention_shows_one_kind_of_map(browser, tmp_path):
    trained = load_trained(write_model(tmp_path / "model", kind="aspect-bert", fields={"context_from_layer": 1}))
    page = write_analysis(trained, [row(SENTENCES[0], "food"), row(SENTENCES[0], "price")], tmp_path / "page")
    browser.show(page.as_uri())
    browser.value("choose(choice[0], 1)")
    dom = browser.value("document.documentElement.outerHTML")
    assert browser.messages == []
    assert re.findall(r'aria-pressed="true">([^<]+)', dom) == ["2", "1"], "the layer that reads the aspect"
    assert dom.count("<canvas") == 2 and "The attention that the model uses" in dom


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_viewer_paints_both_signs(page, browser, scheme, tmp_path):
    browser.show(page.as_uri(), 1280, scheme, height=2400)
    browser.picture(tmp_path / "page.png")
    assert browser.messages == []
    red, _, blue = np.moveaxis(imread(tmp_path / "page.png")[..., :3], -1, 0)
    for side in (red - blue, blue - red):
        assert (side > 0.3).mean() > 0.005
