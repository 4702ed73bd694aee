"""The model card of a trained model: how to use it, its metrics, and the limits of its probabilities."""

from pathlib import Path

import numpy as np

from qacg_models.inference.trained_model import TrainedModel
from qacg_models.metrics.metrics import class_scores
from qacg_models.models.base import ASPECT_SENTIMENT, CARD_NAME
from qacg_models.runs.calibration import VALIDITY
from qacg_models.utils.atomic_files import atomic_write
from qacg_models.utils.cells import counted, markdown_table, percent


def write_card(folder: Path, trained: TrainedModel) -> None:
    """Writes the card of a trained model into `folder`; replaces the card that the model's `save_pretrained` wrote."""
    with atomic_write(folder / CARD_NAME) as handle:
        handle.write(trained.model.model_card(_usage(trained), _facts(trained), ASPECT_SENTIMENT))


def _usage(trained: TrainedModel) -> str:
    target, aspect = trained.record.targets[0], trained.task.aspects[0]
    asked = f"aspects=[{aspect!r}]" + (f", targets=[{target!r}]" if trained.task.has_targets else "")
    return (
        "from qacg_models import AspectSentiment\n\n"
        "ask = AspectSentiment.from_pretrained(FOLDER)\n"
        f'for answer in ask("the bill was a shock", {asked}):\n'
        "    print(answer.aspect, answer.label, answer.probabilities)\n\n"
        "from transformers import pipeline  # finds the task after the import from qacg_models\n\n"
        f'pipe = pipeline("{ASPECT_SENTIMENT}", model=FOLDER)\n'
        f'print(pipe("the bill was a shock", aspects=[{trained.contexts[0]!r}]))\n'
    )


def _facts(trained: TrainedModel) -> str:
    record, task = trained.record, trained.task
    rows = ", ".join(f"{counted(part.rows, 'row')} of {split}" for split, part in record.data.items())
    chosen = f"Weights of the last step, {record.steps}, without checkpoint selection."
    if record.has_selection:
        metric = record.selected.metric.replace("_", " ")
        chosen = f"Checkpoint of step {record.selected.step}, selected by {metric} on {record.selected.split}."
    parts = [
        f"Labels: {', '.join(task.labels)}. Aspects: {', '.join(task.aspects)}. The model supports no other labels or"
        " aspects.",
        f"Data: {rows}. {chosen}",
    ]
    for split, metrics in record.metrics.items():
        results = {"model": metrics, "majority": record.majority[split]}
        lines = [[name, *(percent(getattr(one, key)) for key in metrics.TITLES)] for name, one in results.items()]
        parts.append(markdown_table([f"{split}, in %", *metrics.TITLES.values()], lines, texts=1))
        if split in record.confusion:
            parts.append(_by_aspect(trained, split))
    calibration = trained.calibration.describe()
    parts.append(f"{calibration[0].upper()}{calibration[1:]}. {VALIDITY}")
    if record.warnings:
        warnings = "\n".join(f"- {one.describe().removeprefix('warning: ')}" for one in record.warnings)
        parts.append(f"Warnings about the data:\n\n{warnings}")
    parts.append("Before you publish the model, add the source of the data and the licence.")
    return "\n\n".join(parts)


def _by_aspect(trained: TrainedModel, split: str) -> str:
    """Returns a Markdown table of a split's scores by aspect and label; labels without rows are left out."""
    lines = [
        [_cell(aspect), _cell(label), *map(percent, (one.precision, one.recall, one.f1)), f"{one.support:,}"]
        for aspect, matrix in trained.record.confusion[split].items()
        for label, one in zip(trained.task.labels, class_scores(np.array(matrix)))
        if one.support
    ]
    header = [f"{split}: aspect", "label", "precision in %", "recall in %", "F1 in %", "rows"]
    return markdown_table(header, lines, texts=2)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
