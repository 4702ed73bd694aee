"""The page of `qacg analyze`: what the model looked at, for sentences under several contexts side by side."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from qacg_models.data import Example
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.reporting import captions
from qacg_models.reporting.attention_maps import ExampleMaps, check_has_gate, example_maps
from qacg_models.reporting.coloured_text import signed_table, token_strip
from qacg_models.reporting.heatmaps import lambda_figure, lambda_histograms, layer_figure, token_figure
from qacg_models.reporting.html_report import Report, Section, framed
from qacg_models.reporting.map_viewer import viewer, viewer_script, viewer_style
from qacg_models.reporting.tables import html_table
from qacg_models.reporting.token_scores import TokenScores, token_scores

READING = (
    "Words and their pieces are the model's tokens; [CLS] and [SEP] mark where the text begins and ends. Red stands for"
    " values above 0, blue for values below; the stronger the colour, the further from 0.",
    "A token (down) looks at the tokens of the sentence (across). P is plain softmax attention; λ·G is the gated"
    " sigmoid map of the context, which adds where it is red and takes away where it is blue; A = P + λ·G is what the"
    " model uses. A layer's maps of one kind share one scale, over all heads and contexts of a sentence, so equal"
    " colours are equal values. λ lies between −1 and 1; at 0 attention is plain softmax attention.",
    "Sensitivity is the squared gradient of the verdict's logit by a token's embedding: how much a small change of the"
    " token matters. Relevance distributes that logit over the tokens: red is a positive share, blue a negative one.",
)


def write_analysis(
    trained: TrainedModel,
    rows: Sequence[Example],
    folder: Path | str,
    *,
    title: str,
    layer_figures: bool = True,
    say: Callable[[str], None] = print,
) -> Path:
    """Write index.html, which needs nothing else, figures/ with all figures as SVG and PNG, and tables.json.

    Args:
        rows: sentences with contexts; rows of one sentence are shown side by side. Labels may be None.
        folder: an earlier report there is replaced.
        title: of the page.
        layer_figures: whether to draw all maps of every row and layer into figures/ too.
        say: gets a line for every sentence.

    Returns:
        The path of index.html.

    Raises:
        InputError: no rows, one twice, a model without gated maps, a context that it does not know, or a folder
            that holds something else.
    """
    check_has_gate(trained)
    if not rows:
        raise InputError("rows: expected at least one, got none")
    sentences: dict[str, list[Example]] = {}
    for row in rows:
        group = sentences.setdefault(row.sentence, [])
        if row.context in [other.context for other in group]:
            raise InputError(f"rows: expected each context once, got {row.context!r} of {row.sentence!r} twice")
        group.append(row)
    report = Report(
        folder,
        title,
        f"{trained.title}; written by qacg analyze. Nothing on this page is loaded from elsewhere.",
        style=viewer_style(),
        script=viewer_script(),
    )
    for number, (sentence, group) in enumerate(sentences.items(), 1):
        say(f"sentence {number} of {len(sentences)}: {', '.join(row.context for row in group)}")
        section = report.section(f"Sentence {number}")
        section.quote(sentence)
        maps = [example_maps(trained, row) for row in group]
        _verdicts(section, trained, maps)
        _tokens(report, section, f"sentence-{number}", trained, maps)
        section.heading("Where the model looks: attention maps")
        section.text("Red is attention, blue is attention taken away, the page's own colour is 0.")
        section.markup(viewer(f"maps-{number}", f"Attention maps of sentence {number}", maps))
        _lambda(report, section, f"sentence-{number}", maps)
        for place, one in enumerate(maps if layer_figures else (), 1):
            for layer in range(len(one.softmax)):
                report.keep(f"sentence-{number}-context-{place}-layer-{layer + 1}", layer_figure(one, layer))
    section = report.section("How to read this page")
    for text in READING:
        section.text(text)
    return report.write()


def _verdicts(section: Section, trained: TrainedModel, maps: Sequence[ExampleMaps]) -> None:
    labels = trained.task.labels
    known = all(one.row.label is not None for one in maps)
    header = ["aspect", "the model says", *(["the data say"] if known else []), *(f"p({label})" for label in labels)]
    cells = []
    for one in maps:
        said = [labels[int(one.probabilities.argmax())], *([labels[one.row.label]] if known else [])]
        cells.append([one.row.context, *said, *(f"{share:.3f}" for share in one.probabilities)])
    section.table("verdicts", (header, cells))


def _tokens(report: Report, section: Section, name: str, trained: TrainedModel, maps: Sequence[ExampleMaps]) -> None:
    by_context = {one.row.context: token_scores(trained, one.row) for one in maps}
    verdicts = {one.row.context: trained.task.labels[int(one.probabilities.argmax())] for one in maps}

    def strips(field: str, heading: str, intro: str, tells: Callable[[str, TokenScores], str]) -> None:
        section.heading(heading)
        section.text(intro)
        for context, one in by_context.items():
            values = getattr(one, field)
            # Contexts are compared by pattern, not by size, so each has the whole range of colours.
            strip = token_strip(one.tokens, values, float(np.abs(values).max()))
            section.picture(strip, tells(context, one), whose=f"{context}: {verdicts[context]}")
        panels = {context: (one.tokens, getattr(one, field)) for context, one in by_context.items()}
        report.keep(f"{name}-{field}", token_figure(panels, field.capitalize()))

    strips(
        "sensitivity",
        "Which words matter: sensitivity",
        "The redder a word, the more the verdict would change with it.",
        lambda context, one: captions.sensitivity_caption(one.tokens, one.sensitivity),
    )
    strips(
        "relevance",
        "Which words speak for the verdict: relevance",
        "Red words speak for what the model says, blue words against it.",
        lambda context, one: captions.relevance_caption(one.tokens, one.relevance, verdicts[context]),
    )
    for context, one in by_context.items():
        rows = [
            [token, f"{sensitivity:.3g}", f"{relevance:+.3g}"]
            for token, sensitivity, relevance in zip(one.tokens, one.sensitivity, one.relevance)
        ]
        table = framed(html_table(["token", "sensitivity", "relevance"], rows), f"scores of {context}")
        section.markup(f"<details><summary>Numbers: {html.escape(context)}</summary>{table}</details>")
    section.data["tokens"] = {
        context: {"tokens": one.tokens, "sensitivity": one.sensitivity.tolist(), "relevance": one.relevance.tolist()}
        for context, one in by_context.items()
    }


def _lambda(report: Report, section: Section, name: str, maps: Sequence[ExampleMaps]) -> None:
    section.heading("What the aspect adds and takes away: lambda")
    means = {one.row.context: one.lambdas.mean(-1) for one in maps}
    limit = max(float(np.abs(values).max()) for values in means.values())
    for place, (context, values) in enumerate(means.items(), 1):
        lambda_table(report, section, f"{name}-context-{place}-lambda", values, limit, context)
    section.text("λ by layer and head, the mean over the tokens; all aspects of a sentence share the colours.", "note")
    lambdas = {one.row.context: one.lambdas for one in maps}
    report.figure(
        section,
        f"{name}-lambda-histograms",
        lambda_histograms(lambdas),
        captions.spread_caption(lambdas),
        "Shares of the tokens by their λ, for every layer and head; the line marks 0.",
    )
    section.data["mean lambda"] = {context: values.tolist() for context, values in means.items()}


def lambda_table(
    report: Report, section: Section, name: str, values: np.ndarray, limit: float | None = None, whose: str = ""
) -> None:
    """Add the table with the sentence that it says, and keep it as figures/NAME.svg and .png.

    Args:
        values: (layers, heads).
        limit: value of the strongest colour; None: the largest absolute value. Give one where tables are compared.
        whose: the one it is about, where several tables follow each other.
    """
    layers, heads = values.shape
    limit = float(np.abs(values).max()) if limit is None else limit
    table = signed_table(
        "layer",
        [f"head {head + 1}" for head in range(heads)],
        [f"layer {layer + 1}" for layer in range(layers)],
        values,
        limit,
    )
    named = " of ".join(filter(None, ("lambda by layer and head", whose)))
    section.picture(framed(table, named), captions.lambda_caption(values), whose=whose)
    report.keep(name, lambda_figure(values, limit))
