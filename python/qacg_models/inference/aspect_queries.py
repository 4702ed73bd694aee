"""Which contexts of a model a text is asked about: the aspects, and the targets where the model has them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from qacg_models.data import Example
from qacg_models.data.task import Task
from qacg_models.data.tokenization import check_text
from qacg_models.errors import InputError


@dataclass(frozen=True)
class Questions:
    """What a model is asked about every text.

    Attributes:
        task: labels and aspects of the model.
        aspects: asked about every text that does not come with an aspect of its own.
        known_targets: the targets of the model's contexts, ("",) for a model without targets.
        targets: asked about every text that does not come with a target of its own; None: those that it names.
    """

    task: Task
    aspects: tuple[str, ...]
    known_targets: tuple[str, ...]
    targets: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        task: Task,
        contexts: Sequence[str],
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
    ) -> Questions:
        """The questions of a caller.

        Args:
            contexts: names of the model's contexts.
            aspects: None: all of the model's.
            targets: None: those that a text names.

        Raises:
            TypeError: names that are not a sequence of texts.
            InputError: no name, one twice, or one that the model does not know.
        """
        known = tuple(dict.fromkeys(task.split_context(context)[0] for context in contexts))
        if targets is not None and not task.has_targets:
            raise InputError("targets: got some, but this model's contexts are aspects alone; wanted none")
        aspects = task.aspects if aspects is None else _names("aspects", aspects, task.aspects)
        if not task.has_targets:
            targets = known
        return cls(task, aspects, known, None if targets is None else _names("targets", targets, known))

    def rows(
        self, text: str, *, row_id: str = "", line: int = 0, target: str | None = None, aspect: str | None = None
    ) -> list[Example]:
        """A row without a label for each target and aspect, targets first, in the order in which they were given.

        Args:
            target, aspect: the text's own, in place of those that are asked about every text.

        Raises:
            TypeError: `text` is not a str.
            InputError: it is empty, or names no target where none was given; or an unknown target or aspect.
        """
        targets, aspects = self.contexts(text, target, aspect)
        return [
            Example(row_id, text, self.task.context(target, aspect), target, aspect, None, line)
            for target in targets
            for aspect in aspects
        ]

    def contexts(
        self, text: str, target: str | None = None, aspect: str | None = None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Targets and aspects that a text is asked about; arguments and errors as for `rows`."""
        if not isinstance(text, str):
            raise TypeError(f"text: expected str, got {type(text).__name__}")
        if not text.strip():
            raise InputError("text: expected a sentence, got an empty one")
        check_text("text", text)
        targets = self._targets_in(text) if target is None else _names("target", [target], self.known_targets)
        aspects = self.aspects if aspect is None else _names("aspect", [aspect], self.task.aspects)
        return targets, aspects

    def _targets_in(self, text: str) -> tuple[str, ...]:
        if self.targets is not None:
            return self.targets
        named = tuple(
            target
            for target in self.known_targets
            if re.search(rf"(?<!\w){re.escape(target)}(?!\w)", text, re.IGNORECASE)
        )
        if not named:
            raise InputError(
                f"text: got {text!r}, which names no target; the model knows {', '.join(self.known_targets)}; "
                "spell it so, or give targets"
            )
        return named


def _names(argument: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}: expected a sequence of names, got {names!r}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"{argument}: expected at least one name, each once, got {list(names)}")
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        raise InputError(f"{argument}: expected one of {', '.join(known)}, which the model knows, got {unknown!r}")
    return tuple(names)
