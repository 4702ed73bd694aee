"""Selects the aspects (and targets, if the model has them) for which sentiment is predicted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from qacg_models.data import Example
from qacg_models.data.frames import items, texts_of
from qacg_models.data.task import Task
from qacg_models.data.tokenization import check_text
from qacg_models.errors import InputError


@dataclass(frozen=True)
class Questions:
    """The aspects and targets for which the sentiment of each text is predicted.

    Attributes:
        task: labels and aspects of the model.
        aspects: the selected aspects; the argument `aspect` of `rows` overrides them.
        known_targets: targets of the model; ("",) for a model without targets.
        targets: the selected targets, which the argument `target` of `rows` overrides; None: the targets that occur in
            the text.
    """

    task: Task
    aspects: tuple[str, ...]
    known_targets: tuple[str, ...]
    targets: tuple[str, ...] | None

    @classmethod
    def of(
        cls,
        task: Task,
        known_targets: Sequence[str],
        aspects: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
    ) -> Questions:
        """Checks the names of aspects and targets, and returns them as `Questions`.

        Args:
            task: labels and aspects of the model.
            known_targets: targets of the model; ("",) for a model without targets.
            aspects: names of aspects; None: all aspects of the model.
            targets: names of targets; None: for each text, the targets that occur in it. A model without targets
                requires None.

        Raises:
            TypeError: `aspects` or `targets` is not a sequence of str.
            InputError: `aspects` or `targets` is empty, or has an unknown or repeated name; or `targets` is not None,
                although the model has no targets.
        """
        known = tuple(known_targets)
        if targets is not None and not task.has_targets:
            given = targets if isinstance(targets, str) else ", ".join(map(str, targets))
            raise InputError(
                f"targets: expected None, since the model has no targets, got {given or repr(targets)}. Omit targets."
            )
        aspects = task.aspects if aspects is None else _names("aspects", aspects, task.aspects)
        if not task.has_targets:
            targets = known
        return cls(task, aspects, known, None if targets is None else _names("targets", targets, known))

    def rows(
        self, text: str, *, row_id: str = "", line: int = 0, target: str | None = None, aspect: str | None = None
    ) -> list[Example]:
        """Returns unlabelled rows of a text, one for each pair of target and aspect (aspects vary fastest).

        Args:
            text: the text.
            row_id, line: id and line number of all returned rows.
            target: the only target to select; None: `self.targets`.
            aspect: the only aspect to select; None: `self.aspects`.

        Raises:
            TypeError: `text`, `target` or `aspect` is not a str.
            InputError: the text is empty or cannot be encoded; a name is unknown; or `target` and `self.targets` are
                both None, and the text contains no target of the model.
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
        """Returns the targets and the aspects that are selected for a text.

        Args:
            text: the text.
            target: the only target to select; None: `self.targets`.
            aspect: the only aspect to select; None: `self.aspects`.

        Raises:
            TypeError: `text`, `target` or `aspect` is not a str.
            InputError: the text is empty or cannot be encoded; a name is unknown; or `target` and `self.targets` are
                both None, and the text contains no target of the model.
        """
        if not isinstance(text, str):
            raise TypeError(f"text: expected str, got {type(text).__name__}")
        if not text.strip():
            raise InputError("text: expected a sentence, got an empty text")
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
                f"text: expected one of the targets {', '.join(self.known_targets)} in the text, got {text!r}; add a"
                " target to the text, or pass targets"
            )
        return named


def _names(argument: str, names: Any, known: Sequence[str]) -> tuple[str, ...]:
    if hasattr(names, "__array__"):  # a Series, or the array of Series.unique
        names = texts_of(argument, items(argument, names))
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{argument}: expected a sequence of names, got {names!r}")
    if not names or len(set(names)) < len(names):
        raise InputError(f"{argument}: expected one or more distinct names, got {list(names)}")
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        kind = f"{argument.removesuffix('s')}s"
        raise InputError(f"{argument}: expected one of the model's {kind} ({', '.join(known)}), got {unknown!r}")
    return tuple(names)
