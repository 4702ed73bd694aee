"""The model card of a model that has been trained: how to ask it, how well it does, how far it can be believed."""

from __future__ import annotations

import math
from pathlib import Path

from qacg_models.inference.trained_model import TrainedModel
from qacg_models.models.model_card import CARD_NAME
from qacg_models.runs.calibration import VALIDITY
from qacg_models.utils.atomic_files import atomic_write


def write_card(folder: Path, trained: TrainedModel) -> None:
    """Writes the card, in place of that of a model of which nothing is known."""
    with atomic_write(folder / CARD_NAME) as handle:
        handle.write(trained.model.model_card(_usage(trained), _known(trained)))


def _usage(trained: TrainedModel) -> str:
    target, aspect = trained.task.split_context(trained.contexts[0])
    asked = f"aspects=[{aspect!r}]" + (f", targets=[{target!r}]" if trained.task.has_targets else "")
    return (
        "from qacg_models import AspectSentiment\n\n"
        "ask = AspectSentiment.from_pretrained(FOLDER)\n"
        f'for answer in ask("the bill was a shock", {asked}):\n'
        "    print(answer.aspect, answer.label, answer.probabilities)\n"
    )


def _known(trained: TrainedModel) -> str:
    record, task = trained.record, trained.task
    rows = ", ".join(f"{part.rows:,} rows of {split}" for split, part in record.data.items())
    parts = [
        f"Labels: {', '.join(task.labels)}. Aspects: {', '.join(task.aspects)}. It knows no others.",
        f"Data: {rows}. Checkpoint of step {record.selected.step}, chosen by "
        f"{record.selected.metric.replace('_', ' ')} on {record.selected.split}.",
    ]
    for split, metrics in record.metrics.items():
        results = {"model": metrics, "majority": record.majority[split]}
        titles = list(metrics.TITLES.values())
        lines = [f"| {split}, in % | {' | '.join(titles)} |", "|---|" + "---:|" * len(titles)]
        for name, result in results.items():
            cells = (_percent(getattr(result, key)) for key in metrics.TITLES)
            lines.append(f"| {name} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    words = trained.calibration.describe()
    parts.append(f"{words[0].upper()}{words[1:]}. {VALIDITY}")
    if record.warnings:
        found = "\n".join(f"- {one.describe().removeprefix('warning: ')}" for one in record.warnings)
        parts.append(f"Warnings about the data:\n\n{found}")
    parts.append("Whoever publishes the model should add where the data come from, and the licence.")
    return "\n\n".join(parts)


def _percent(value: float) -> str:
    return "n/a" if math.isnan(value) else f"{100 * value:.1f}"
