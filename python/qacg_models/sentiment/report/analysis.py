"""The page of `qacg analyze`: attention, attributions and gates for sentences with several contexts.

Attention maps are shown by a viewer, which `page/viewer.js` draws from JSON data: P and lambda * G of every layer and
head as signed 16-bit integers. A value is its integer times a step: the largest absolute value over all layers and
heads of an example, divided by 32767. The viewer computes A = P + lambda * G. Models other than QACG-BERT have P only.

Signed values have a background colour: blue above 0, orange below 0, stronger further from 0. Values are also shown as
text or as a tooltip, so that colour is not the only cue.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from qacg_models.attribution import layerwise_relevance, token_sensitivity
from qacg_models.sentiment.encoding import PaddingCollator
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.report import Markup, Report, Section, element, framed, html_table, json_script, page_file
from qacg_models.sentiment.trained_model import TrainedModel, probabilities_of

MARKERS = ("[CLS]", "[SEP]", "[PAD]", "[MASK]", "<s>", "</s>", "<pad>", "<mask>")
_STEPS = 32767


@dataclass(frozen=True)
class ExampleMaps:
    """Attention maps and gates of one row, with N layers, H heads and L tokens."""

    row: Example
    tokens: list[str]
    probabilities: np.ndarray  # (classes,), after temperature scaling
    softmax: np.ndarray  # P, (N, H, L, L)
    # Of a QACG-BERT, whose attention is A = P + lambda * G; otherwise None.
    quasi: np.ndarray | None = None  # lambda * G, (N, H, L, L), signed
    combined: np.ndarray | None = None  # A, (N, H, L, L), signed
    lambdas: np.ndarray | None = None  # lambda, the gate of each query, (N, H, L), signed


def example_maps(trained: TrainedModel, row: Example) -> ExampleMaps:
    """Runs the model on one row, without padding, and returns the attention maps and gates of the row."""
    import torch

    gated = {"output_gates": True} if trained.record.options.entry.quasi_attention else {}
    with torch.inference_mode():
        output = trained.model(**row_inputs(trained, row), output_attentions=True, **gated)

    def stacked(layers) -> np.ndarray:
        return np.stack([layer[0].float().numpy() for layer in layers])

    probabilities = probabilities_of(output.logits.numpy(), trained.calibration.temperatures)[0]
    names = ("softmax_maps", "quasi_maps", "attentions", "lambdas") if gated else ("attentions",)
    return ExampleMaps(row, row_tokens(trained, row), probabilities, *(stacked(output[name]) for name in names))


def row_tokens(trained: TrainedModel, row: Example) -> list[str]:
    """Returns the tokens of a row as text; as in WordPiece, ## is before a token that continues a word."""
    from tokenizers import decoders

    tokenizer = trained.tokenizer
    tokens = tokenizer.convert_ids_to_tokens(trained.features([row])[0]["input_ids"])
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.WordPiece):
        return tokens
    shown: list[str] = []
    for token in tokens:
        if token in MARKERS:
            shown.append(token)
            continue
        text = tokenizer.convert_tokens_to_string(["a", token])[1:]  # begins with a space if the token begins a word
        begins = text.startswith(" ") or shown[-1] in MARKERS
        shown.append(text.removeprefix(" ") if begins else f"##{text}")
    return shown


def row_inputs(trained: TrainedModel, row: Example) -> dict:
    """Returns a batch with one row: tensors by name, without labels; raises InputError for an unknown context."""
    batch = PaddingCollator(trained.tokenizer.pad_token_id)(trained.features([row]))
    batch.pop("labels", None)
    return batch


def write_analysis(trained: TrainedModel, rows: Sequence[Example], folder: Path | str) -> Path:
    """Writes a page with the maps, gates and token scores of rows, and returns its path.

    Rows of one sentence, which have different contexts, are shown side by side. Prints a line before the analysis of
    each sentence. An earlier page in `folder` is replaced.
    """
    sentences: dict[str, list[Example]] = {}
    for row in rows:
        sentences.setdefault(row.sentence, []).append(row)
    lead = f"{trained.title}; written by qacg analyze. This page loads nothing from elsewhere."
    report = Report(folder, "Attention maps and token scores", lead, **VIEWER)
    for number, group in enumerate(sentences.values(), 1):
        print(f"sentence {number} of {len(sentences)}: {', '.join(row.context for row in group)}")
        add_sentence(report.section(f"Sentence {number}"), f"maps-{number}", trained, group)
    report.section("How to read this page").parts.append(page_file("reading.html"))
    return report.write()


def add_sentence(section: Section, name: str, trained: TrainedModel, rows: Sequence[Example]) -> None:
    """Adds predictions, token scores, attention maps and lambda of one sentence to a section.

    The page has the style and script of VIEWER, `name` is the id of the viewer on it, and the rows, at least one, have
    different contexts.
    """
    section.add("blockquote", rows[0].sentence)
    maps = [example_maps(trained, row) for row in rows]
    labels = trained.task.labels
    predicted = [labels[int(one.probabilities.argmax())] for one in maps]
    header = ["aspect", "prediction", *(f"p({label})" for label in labels)]
    cells = [
        [one.row.context, label, *(f"{share:.3f}" for share in one.probabilities)]
        for one, label in zip(maps, predicted)
    ]
    section.table("predictions", (header, cells))
    titles = [f"{one.row.context}: {label}" for one, label in zip(maps, predicted)]
    _add_tokens(section, trained, rows, titles)
    section.add("h3", "Attention maps")
    gated = trained.record.options.entry.quasi_attention
    section.add("p", f"Blue: attention. {'Orange: attention taken away. ' if gated else ''}Page colour: 0.")
    first = getattr(trained.model.config, "context_from_layer", 0)
    section.parts.append(viewer(name, f"Attention maps of {section.title.lower()}", maps, first))
    if gated:
        _add_lambda(section, maps, first)


def _add_tokens(section: Section, trained: TrainedModel, rows: Sequence[Example], titles: Sequence[str]) -> None:
    scores = {}
    for row in rows:
        batch = row_inputs(trained, row)
        scores[row.context] = {
            "tokens": row_tokens(trained, row),
            "sensitivity": token_sensitivity(trained.model, batch)[0].double().tolist(),
            "relevance": layerwise_relevance(trained.model, batch).tokens[0].double().tolist(),
        }
    for field, heading, intro in (
        ("sensitivity", "Which words matter", "The prediction depends most on the words with the strongest colours."),
        ("relevance", "Which words support the prediction", "Blue words support it, orange words oppose it."),
    ):
        section.add("h3", f"{heading}: {field}")
        section.add("p", intro)
        for title, one in zip(titles, scores.values()):
            section.picture(token_strip(one["tokens"], one[field]), title)
    for context, one in scores.items():
        lines = [
            [token, f"{sensitivity:.3g}", f"{relevance:+.3g}"]
            for token, sensitivity, relevance in zip(one["tokens"], one["sensitivity"], one["relevance"])
        ]
        table = framed(html_table(["token", "sensitivity", "relevance"], lines), f"scores of {context}")
        section.parts.append(element("details", element("summary", f"Numbers: {context}"), table))


def _add_lambda(section: Section, maps: Sequence[ExampleMaps], first: int) -> None:
    """Adds a table of mean lambda by layer and head for each row, from layer `first` (from 0) on."""
    section.add("h3", "What the aspect adds and takes away: lambda")
    means = {one.row.context: one.lambdas.mean(-1) for one in maps}
    limit = max(float(np.abs(values).max()) for values in means.values())
    for context, values in means.items():
        layers, heads = values.shape
        columns = [f"head {head + 1}" for head in range(heads)]
        lines = [f"layer {layer + 1}" for layer in range(first, layers)]
        table = signed_table("layer", columns, lines, values[first:], limit)
        section.picture(framed(table, f"lambda by layer and head of {context}"), context)
    section.add("p", "Mean λ over the tokens, by layer and head; all aspects of a sentence share one scale.", "note")


def token_strip(tokens: Sequence[str], values: Sequence[float]) -> Markup:
    """Returns L tokens, without markers such as [CLS], coloured by (L,) signed values.

    The largest absolute value has the strongest colour. Pointing at a token shows its value.
    """
    words = [(token, value) for token, value in zip(tokens, values) if token not in MARKERS]
    limit = max((abs(value) for _, value in words), default=0.0)
    parts: list[str] = []
    for token, value in words:
        inner = token.startswith("##")
        if parts and not inner:
            parts.append(" ")  # line breaks are possible between words, and not inside a word
        kind = "inner " if inner else ""
        parts.append(element("span", token.removeprefix("##"), **_shade(value, limit, kind), title=f"{value:+.3g}"))
    return element("p", *parts, kind="strip")


def signed_table(corner: str, columns: Sequence[str], rows: Sequence[str], values: np.ndarray, limit: float) -> Markup:
    """Returns an HTML table of (rows, columns) signed numbers with coloured cells; `limit` has the strongest colour.

    `corner` is the header of the column of row names, for screen readers only.
    """

    def cell(value: float) -> Markup:
        return element("td", f"{value:+.3f}".replace("-", "−"), **_shade(value, limit, "number "))

    corner = element("td", element("span", corner, kind="hidden"))
    return html_table([corner, *columns], [[name, *map(cell, line)] for name, line in zip(rows, values)], kind="shaded")


def _shade(value: float, limit: float, kind: str) -> dict[str, str]:
    sign = "plus" if value > 0 else "minus"
    return {"kind": kind + sign, "style": f"--v:{min(1.0, abs(float(value)) / max(limit, 1e-12)):.2f}"}


VIEWER = {"style": page_file("viewer.css"), "script": page_file("viewer.js")}  # of a page with viewers


def viewer(name: str, title: str, maps: Sequence[ExampleMaps], first: int) -> Markup:
    """Returns the viewer of the maps of one or several examples, side by side, with an id and an accessible name.

    It shows layer `first` (from 0) until the reader selects another.
    """
    layers, heads = maps[0].softmax.shape[:2]
    rows = [
        {
            "title": one.row.context,
            "tokens": one.tokens,
            "softmax": _packed(one.softmax),
            **({} if one.quasi is None else {"quasi": _packed(one.quasi)}),
        }
        for one in maps
    ]
    note = element("noscript", element("p", "The viewer requires JavaScript.", kind="note"))
    data = json_script({"layers": layers, "heads": heads, "first": first + 1, "rows": rows})
    return element("div", data, note, kind="viewer", id=name, role="group", aria_label=title)


def _packed(values: np.ndarray) -> dict:
    limit = max(float(np.abs(values).max()), 1e-12)
    steps = (values / limit * _STEPS).round().astype("<i2")
    return {"step": limit / _STEPS, "values": base64.b64encode(steps.tobytes()).decode("ascii")}
