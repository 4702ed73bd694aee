"""Counts of the texts that a model truncates, because they exceed its maximum length."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qacg_models.data import Example
from qacg_models.data.example import blocks, distinct
from qacg_models.data.requests import Request
from qacg_models.inference.aspect_queries import Questions
from qacg_models.inference.trained_model import TrainedModel
from qacg_models.utils.cells import counted


class TruncationCount:
    """Counts texts, and those of them that are truncated in at least one of their contexts.

    Args:
        trained: the model.

    Attributes:
        texts: number of counted texts.
        cut: number of truncated texts among them.
    """

    def __init__(self, trained: TrainedModel):
        self.trained = trained
        self.texts = self.cut = 0

    def add(self, texts: Sequence[str], contexts: Iterable[Iterable[str]]) -> None:
        """Counts texts, each with the names of its contexts (at least one)."""
        if texts:
            limits = self.trained.text_limits
            found = self.trained.tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
            lengths = [len(ids) for ids in found["input_ids"]]
            self.cut += sum(
                length > min(limits[name] for name in names) for length, names in zip(lengths, contexts, strict=True)
            )
            self.texts += len(texts)

    def add_rows(self, rows: Sequence[Example], block: int = 8192) -> None:
        """Counts the distinct sentences of rows, `block` of them at a time."""
        asked: dict[str, list[str]] = {}
        for sentence, context in distinct(rows, "sentence", "context"):
            asked.setdefault(sentence, []).append(context)
        for pairs in blocks(asked.items(), block):
            self.add([sentence for sentence, _ in pairs], [names for _, names in pairs])

    def add_requests(self, requests: Sequence[Request], questions: Questions) -> None:
        """Counts the requests that are not skipped, each with the contexts that `questions` selects."""
        for block in blocks((request for request in requests if not request.skipped), 1024):
            self.add([one.text for one in block], [_contexts(one, questions) for one in block])

    def describe(self, advice: str) -> str | None:
        """Returns a line with the counts and the advice; None if no text is truncated."""
        if not self.cut:
            return None
        limit, texts = self.trained.record.max_length, counted(self.texts, "text")
        return f"truncated to {limit} tokens: {self.cut:,} of {texts}; {advice}"


def _contexts(request: Request, questions: Questions) -> list[str]:
    targets, aspects = questions.contexts(request.text, request.target, request.aspect)
    return [questions.task.context(target, aspect) for target in targets for aspect in aspects]
