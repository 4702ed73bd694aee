"""The number of texts that a model truncates, because they exceed its maximum length."""

from collections.abc import Iterable, Sequence

from qacg_models.data.example import blocks
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.utils.cells import counted


def describe_truncation(
    trained: TrainedModel, texts: Iterable[tuple[str, Sequence[str]]], advice: str
) -> tuple[int, str | None]:
    """Counts the texts that are truncated in at least one of their contexts.

    Args:
        trained: the model.
        texts: each text with the names of its contexts; texts without a context are not counted.
        advice: end of the line.

    Returns:
        The number of truncated texts, and a line with the counts and the advice; None if no text is truncated.
    """
    limits, total, cut = trained.text_limits, 0, 0
    for block in blocks(((text, names) for text, names in texts if names), 8192):
        found = trained.tokenizer(
            [text for text, _ in block], add_special_tokens=False, truncation=False, verbose=False
        )
        total += len(block)
        cut += sum(len(ids) > min(limits[name] for name in names) for ids, (_, names) in zip(found["input_ids"], block))
    limit, of_texts = trained.record.max_length, counted(total, "text")
    return cut, f"truncated to {limit} tokens: {cut:,} of {of_texts}; {advice}" if cut else None
