"""The page of `qacg analyze`: what the model looked at, for sentences under several contexts side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from qacg_models.data import Example
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.reporting.attention_maps import ExampleMaps, check_has_gate, example_maps
from qacg_models.reporting.heatmaps import lambda_figure, lambda_histograms, layer_figure, token_figure
from qacg_models.reporting.html_report import Report, Section
from qacg_models.reporting.map_viewer import token_strip, viewer, viewer_script, viewer_style
from qacg_models.reporting.token_scores import token_scores

READING = (
    "A token (down) looks at the tokens of the sentence (across). P is plain softmax attention; λ·G is the gated"
    " sigmoid map of the context, which adds where it is red and takes away where it is blue; A = P + λ·G is what the"
    " model uses. A layer's maps of one kind share one scale, over all heads and contexts of a sentence, so equal"
    " colours are equal values.",
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
        raise InputError("rows: got none, wanted at least one")
    sentences: dict[str, list[Example]] = {}
    for row in rows:
        group = sentences.setdefault(row.sentence, [])
        if row.context in [other.context for other in group]:
            raise InputError(f"rows: got {row.context!r} of {row.sentence!r} twice, wanted each context once")
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
        section.heading("Attention maps")
        section.markup(viewer(f"maps-{number}", maps))
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
    for field, title in (("sensitivity", "Sensitivity"), ("relevance", "Relevance")):
        section.heading(title)
        for context, one in by_context.items():
            values = getattr(one, field)
            section.text(f"{context}: {verdicts[context]}", "note")
            # Contexts are compared by pattern, not by size, so each has the whole range of colours.
            section.markup(token_strip(one.tokens, values, float(np.abs(values).max())))
        panels = {context: (one.tokens, getattr(one, field)) for context, one in by_context.items()}
        report.keep(f"{name}-{field}", token_figure(panels, title))
    section.data["tokens"] = {
        context: {"tokens": one.tokens, "sensitivity": one.sensitivity.tolist(), "relevance": one.relevance.tolist()}
        for context, one in by_context.items()
    }


def _lambda(report: Report, section: Section, name: str, maps: Sequence[ExampleMaps]) -> None:
    section.heading("Lambda by layer and head")
    means = {one.row.context: one.lambdas.mean(-1) for one in maps}
    limit = max(float(np.abs(values).max()) for values in means.values())
    for place, (context, values) in enumerate(means.items(), 1):
        caption = f"{context}: mean over the tokens; all contexts of the sentence share the colours."
        report.figure(section, f"{name}-context-{place}-lambda", lambda_figure(values, limit), caption)
    histograms = lambda_histograms({one.row.context: one.lambdas for one in maps})
    report.figure(section, f"{name}-lambda-histograms", histograms, "Shares of the tokens by their lambda.")
    section.data["mean lambda"] = {context: values.tolist() for context, values in means.items()}
