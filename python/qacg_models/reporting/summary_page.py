"""The page of `qacg predict --summary`: shares by aspect and label, by group and by month, and example sentences."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from qacg_models.reporting.html_report import Section, framed, page_html
from qacg_models.reporting.prediction_summary import EMPTY, NO_DATE, OTHER, Share, Summary
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import counted

SHOWN_GROUPS = 30  # maximum number of values of the group column on the page
READING = (
    "The 95 % intervals (Wilson's) account for the random choice of the texts, but not for wrong predictions of the"
    " model, which qacg evaluate measures."
)
# The bar shows the share, the line its interval.
STYLE = """
.bar { position: relative; display: block; width: 10rem; height: .9rem; background: var(--panel); }
.bar > span { position: absolute; left: 0; top: 0; bottom: 0; background: var(--edge); forced-color-adjust: none; }
.bar > i { position: absolute; top: 45%; height: 2px; background: var(--ink); forced-color-adjust: none; }
@media (max-width: 40rem) { .bar { width: 4rem; } tbody th { min-width: 0; } }
"""


def write_summary(path: Path, summary: Summary, source: str, unit: str = "text") -> None:
    """Writes the page as one HTML file that loads no other file.

    Args:
        path: path of the file.
        summary: the counts.
        source: name of the input, which the introduction of the page contains.
        unit: unit of a prediction: "text", "sentence" or "document".

    Raises:
        InputError: the file cannot be written.
    """
    lead = f"Predictions for {source}, written by qacg predict. This page loads nothing from elsewhere."
    sections = [_overview(summary, unit)]
    if summary.group_column is not None:
        sections.append(_groups(summary))
    if summary.date_column is not None:
        sections.append(_months(summary))
    sections.append(_sentences(summary))
    with atomic_write(path) as handle:
        handle.write(page_html("Summary of predictions", lead, sections, style=STYLE))


def _overview(summary: Summary, unit: str) -> Section:
    section = Section("Aspects and labels")
    facts = [f"{counted(summary.total, 'prediction')}, one for each {unit} and aspect"]
    if summary.skipped:
        facts.append(f"{counted(summary.skipped, 'text was', 'texts were')} skipped, since a required cell was empty")
    if summary.uncertain:
        facts.append(counted(summary.uncertain, "of the predictions is uncertain", "of the predictions are uncertain"))
    section.text(f"{'; '.join(facts)}.")
    for context, counts in summary.counts.items():
        section.heading(context)
        shares = summary.shares(counts)
        if summary.has_absent:
            mentioned = counts.total() - counts[summary.labels[0]]
            verb = "has" if mentioned == 1 else "have"
            section.text(f"{mentioned:,} of {counted(counts.total(), unit)} {verb} an opinion on {context}.")
        section.markup(framed(_share_table(shares), f"shares of {context}"))
    section.text(READING, "note")
    return section


def _share_table(shares: Iterable[Share]) -> str:
    rows = []
    for one in shares:
        share, lower, upper = map(_percent, (one.share, one.lower, one.upper))
        whisker = f"left:{lower}%;width:{_percent(one.upper - one.lower)}%"
        bar = (
            f'<span class="bar" aria-hidden="true"><span style="width:{share}%"></span><i style="{whisker}"></i></span>'
        )
        numbers = "".join(f'<td class="number">{cell}</td>' for cell in (f"{one.count:,}", share, f"{lower}–{upper}"))
        rows.append(f'<tr><th scope="row">{html.escape(one.label)}</th>{numbers}<td>{bar}</td></tr>')
    head = "".join(
        f'<th scope="col"{kind}>{title}</th>'
        for title, kind in (
            ("label", ""),
            ("count", ' class="number"'),
            ("share in %", ' class="number"'),
            ("interval in %", ' class="number"'),
            ('<span class="hidden">bar</span>', ""),
        )
    )
    body = "\n".join(rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def _groups(summary: Summary) -> Section:
    section = Section(f"By {summary.group_column}")
    sizes = {value: sum(one.total() for one in table.values()) for value, table in summary.by_group.items()}
    order = sorted(sizes, key=lambda value: (value in (OTHER, EMPTY), -sizes[value], value))
    _add_tables(section, summary, summary.by_group, order[:SHOWN_GROUPS], str(summary.group_column))
    if len(order) > SHOWN_GROUPS:
        section.text(f"The {SHOWN_GROUPS} most frequent of {len(order):,} values are shown.", "note")
    return section


def _months(summary: Summary) -> Section:
    section = Section(f"By month of {summary.date_column}")
    order = sorted(summary.by_month, key=lambda value: (value in (OTHER, NO_DATE), value))
    _add_tables(section, summary, summary.by_month, order, "month")
    if summary.undated:
        section.text(
            f"{counted(summary.undated, 'prediction has', 'predictions have')} a date that could not be read. Readable:"
            " 2024-05-31, 2024-05 and 31.05.2024.",
            "note",
        )
    return section


def _add_tables(
    section: Section, summary: Summary, tables: dict[str, dict[str, Counter[str]]], order: list[str], corner: str
) -> None:
    """Adds a table per context, with a row per value in `order`: number of predictions, and share of each label."""
    for context in summary.counts:
        section.heading(context)
        rows = []
        for value in order:
            counts = tables[value].get(context)
            if counts:
                cells = [
                    f"{_percent(one.share)} ({_percent(one.lower)}–{_percent(one.upper)})"
                    for one in summary.shares(counts)
                ]
                rows.append([value, str(counts.total()), *cells])
        section.table(context, ([corner, "count", *(f"{label} in %" for label in summary.labels)], rows))
    section.text("Each cell has a share and its interval. " + READING, "note")


def _sentences(summary: Summary) -> Section:
    section = Section("Example sentences")
    labels = summary.labels[1:] if summary.has_absent else summary.labels
    without = f" except {summary.labels[0]}" if summary.has_absent else ""
    section.text(f"Sentences with the highest probabilities of each label{without}.")
    for context in summary.counts:
        found = {label: sentences for label in labels if (sentences := summary.telling(context, label))}
        if found:
            section.heading(context)
        for label, sentences in found.items():
            section.markup(f"<h4>{html.escape(label)}</h4>")
            for probability, text in sentences:
                section.quote(f"{text} ({probability:.2f})")
    return section


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
