"""The page of `qacg analyze`: attention, attributions and gates for sentences with several contexts."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from qacg_models.data import Example
from qacg_models.errors import InputError
from qacg_models.inference.predictor import UNCERTAIN, certainty, check_min_confidence
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.reporting import captions
from qacg_models.reporting.attention_maps import MARKERS, ExampleMaps, check_has_gate, example_maps, word_places
from qacg_models.reporting.coloured_text import signed_table, token_strip
from qacg_models.reporting.heatmaps import lambda_figure, lambda_histograms, layer_figure, token_figure
from qacg_models.reporting.html_report import Report, Section, framed
from qacg_models.reporting.map_viewer import viewer, viewer_script, viewer_style
from qacg_models.reporting.tables import html_table
from qacg_models.reporting.token_scores import TokenScores, token_scores

READING = (
    "Tokens are words and pieces of words. [CLS] marks the beginning of the input, and [SEP] the end of the text and of"
    " the aspect's name; both are hidden unless you select Show [CLS] and [SEP]. Blue values are positive, orange"
    " values negative; stronger colours are further from 0.",
    "Rows of a map are the attending tokens, columns the attended tokens. P is softmax attention; λ·G is the gated"
    " quasi-attention of the aspect, which adds attention (blue) or takes it away (orange); the model uses A ="
    " P + λ·G. P has a scale from 0 to 1, on which the strength of the colour is the square root of the value. λ·G and"
    " A each have one scale for all heads of a layer and all aspects of a sentence. With β = γ = 1, the default, λ lies"
    " between −1 and 1; where it is 0, attention is plain softmax attention.",
    "Sensitivity is the squared norm of the gradient of the predicted label's logit with respect to a token's"
    " embedding: the effect of a small change of the token. Relevance distributes that logit over the tokens: blue"
    " shares are positive, orange ones negative.",
)


def write_analysis(
    trained: TrainedModel,
    rows: Sequence[Example],
    folder: Path | str,
    *,
    title: str,
    layer_figures: bool = True,
    min_confidence: float | None = None,
    say: Callable[[str], None] = print,
) -> Path:
    """Writes a report: index.html (self-contained), figures/ with all plots as SVG and PNG, and tables.json.

    Args:
        trained: a QACG-BERT.
        rows: sentences with contexts, at least one; rows of one sentence are shown side by side. Labels can be None.
        folder: folder of the report; an earlier report is replaced.
        title: title of the page.
        layer_figures: also write plots of all maps of every row and layer to figures/.
        min_confidence: predictions with a lower probability are marked as uncertain; None: no marks.
        say: called with one line of progress before the analysis of each sentence.

    Returns:
        The path of index.html.

    Raises:
        InputError: there are no rows; a sentence has a context twice; the model is not a QACG-BERT; a context is
            unknown; `min_confidence` is outside (0, 1]; `folder` is a file or has files that are not part of a report;
            or a file cannot be written.
        OSError: the folder cannot be created or moved into place; an earlier report is unchanged.
    """
    check_has_gate(trained)
    check_min_confidence(min_confidence)
    if not rows:
        raise InputError("rows: expected at least one, got none")
    sentences: dict[str, list[Example]] = {}
    for row in rows:
        group = sentences.setdefault(row.sentence, [])
        if row.context in [other.context for other in group]:
            raise InputError(
                f"rows: expected each context at most once per sentence, got {row.context!r} twice for {row.sentence!r}"
                "; omit one of these rows"
            )
        group.append(row)
    report = Report(
        folder,
        title,
        f"{trained.title}; written by qacg analyze. This page loads nothing from elsewhere.",
        style=viewer_style(),
        script=viewer_script(),
    )
    for number, (sentence, group) in enumerate(sentences.items(), 1):
        say(f"sentence {number} of {len(sentences)}: {', '.join(row.context for row in group)}")
        section = report.section(f"Sentence {number}")
        section.quote(sentence)
        maps = [example_maps(trained, row) for row in group]
        verdicts = [_verdict(trained, one, min_confidence) for one in maps]
        _predictions(section, trained, maps, verdicts)
        _tokens(report, section, f"sentence-{number}", trained, maps, verdicts)
        section.heading("Attention maps")
        section.text("Blue: attention. Orange: attention taken away. Page colour: 0.")
        section.markup(viewer(f"maps-{number}", f"Attention maps of sentence {number}", maps))
        _lambda(report, section, f"sentence-{number}", maps, trained.model.config.context_from_layer)
        for place, one in enumerate(maps if layer_figures else (), 1):
            for layer in range(len(one.softmax)):
                report.keep(f"sentence-{number}-context-{place}-layer-{layer + 1}", layer_figure(one, layer))
    section = report.section("How to read this page")
    for text in READING:
        section.text(text)
    return report.write()


def _verdict(trained: TrainedModel, maps: ExampleMaps, least: float | None) -> tuple[str, str | None]:
    """Returns the predicted label, and its certainty: CERTAIN or UNCERTAIN, or None if `least` is None."""
    label = trained.task.labels[int(maps.probabilities.argmax())]
    return label, None if least is None else certainty(float(maps.probabilities.max()), least)


def _predictions(
    section: Section, trained: TrainedModel, maps: Sequence[ExampleMaps], verdicts: Sequence[tuple[str, str | None]]
) -> None:
    labels = trained.task.labels
    known = all(one.row.label is not None for one in maps)
    marked = ["certainty"] if verdicts[0][1] is not None else []
    data = ["label in the data"] if known else []
    header = ["aspect", "prediction", *marked, *data, *(f"p({label})" for label in labels)]
    cells = []
    for one, verdict in zip(maps, verdicts):
        names = [*filter(None, verdict), *([labels[one.row.label]] if known else [])]
        cells.append([one.row.context, *names, *(f"{share:.3f}" for share in one.probabilities)])
    section.table("predictions", (header, cells))


def _tokens(
    report: Report,
    section: Section,
    name: str,
    trained: TrainedModel,
    maps: Sequence[ExampleMaps],
    verdicts: Sequence[tuple[str, str | None]],
) -> None:
    by_context = {one.row.context: token_scores(trained, one.row) for one in maps}
    predicted = {one.row.context: label for one, (label, _) in zip(maps, verdicts)}
    titles = {
        one.row.context: f"{one.row.context}: {label}{f' ({UNCERTAIN})' if mark == UNCERTAIN else ''}"
        for one, (label, mark) in zip(maps, verdicts)
    }

    def strips(field: str, heading: str, intro: str, caption: Callable[[str, TokenScores], str]) -> None:
        section.heading(heading)
        section.text(intro)
        for context, one in by_context.items():
            values = getattr(one, field)
            # Each context has its own scale, since the sizes of the values differ between contexts.
            strip = token_strip(one.tokens, values, float(np.abs(values[word_places(one.tokens)]).max()))
            section.picture(strip, caption(context, one), title=titles[context])
        panels = {context: (one.tokens, getattr(one, field)) for context, one in by_context.items()}
        report.keep(f"{name}-{field}", token_figure(panels, field.capitalize()))

    strips(
        "sensitivity",
        "Which words matter: sensitivity",
        "The stronger the colour of a word, the more the prediction depends on it.",
        lambda context, one: captions.sensitivity_caption(one.tokens, one.sensitivity),
    )
    strips(
        "relevance",
        "Which words support the prediction: relevance",
        "Blue words support the prediction, orange words oppose it.",
        lambda context, one: captions.relevance_caption(one.tokens, one.relevance, predicted[context]),
    )
    for context, one in by_context.items():
        rows = [
            [token, f"{sensitivity:.3g}", f"{relevance:+.3g}"]
            for token, sensitivity, relevance in zip(one.tokens, one.sensitivity, one.relevance)
        ]
        kinds = ["special" if token in MARKERS else "" for token in one.tokens]
        table = framed(html_table(["token", "sensitivity", "relevance"], rows, kinds), f"scores of {context}")
        section.markup(f"<details><summary>Numbers: {html.escape(context)}</summary>{table}</details>")
    section.data["tokens"] = {
        context: {"tokens": one.tokens, "sensitivity": one.sensitivity.tolist(), "relevance": one.relevance.tolist()}
        for context, one in by_context.items()
    }


def _lambda(report: Report, section: Section, name: str, maps: Sequence[ExampleMaps], first: int) -> None:
    section.heading("What the aspect adds and takes away: lambda")
    means = {one.row.context: one.lambdas.mean(-1) for one in maps}
    limit = max(float(np.abs(values).max()) for values in means.values())
    for place, (context, values) in enumerate(means.items(), 1):
        lambda_table(report, section, f"{name}-context-{place}-lambda", values, limit, context, first)
    section.text("Mean λ over the tokens, by layer and head; all aspects of a sentence share one scale.", "note")
    lambdas = {one.row.context: one.lambdas[first:] for one in maps}
    report.figure(
        section,
        f"{name}-lambda-histograms",
        lambda_histograms(lambdas, first),
        captions.spread_caption(lambdas, first),
        "Distribution of λ over the tokens, for each head of the layers that read the aspect; the line marks 0.",
    )
    section.data["mean lambda"] = {context: values.tolist() for context, values in means.items()}


def lambda_table(
    report: Report,
    section: Section,
    name: str,
    values: np.ndarray,
    limit: float | None = None,
    title: str = "",
    first: int = 0,
) -> None:
    """Adds a coloured table of lambda by layer and head to a section, and a plot of it to the report.

    `Report.write` writes the plot as figures/NAME.svg and .png.

    Args:
        report: the report, which gets the plot.
        section: the section, which gets the table.
        name: name of the files.
        values: mean lambda, (layers, heads), for all layers of the model.
        limit: absolute value that gets the strongest colour; tables that are compared require the same value. None:
            the largest absolute value in the table.
        title: title of the table; empty for the only table of a section.
        first: index, from 0, of the first layer that reads the aspect; layers below it are left out.
    """
    values = values[first:]
    layers, heads = values.shape
    limit = float(np.abs(values).max()) if limit is None else limit
    table = signed_table(
        "layer",
        [f"head {head + 1}" for head in range(heads)],
        [f"layer {first + layer + 1}" for layer in range(layers)],
        values,
        limit,
    )
    label = " of ".join(filter(None, ("lambda by layer and head", title)))
    section.picture(framed(table, label), captions.lambda_caption(values, first), title=title)
    report.keep(name, lambda_figure(values, limit, first))
