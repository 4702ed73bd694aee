"""The report about every tensor of a loaded or converted checkpoint."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass
class Report:
    """The report about one checkpoint. Tensors have their names in this package unless stated otherwise.

    Attributes:
        source: the file or index.
        layout: description of the tensor names in the source.
        model: name of the model's class.
        loaded: tensors with values from the source, reshaped tensors and added biases included.
        missing: tensors of the model without values from the source: the source lacks them, or has another size.
        unexpected: names in the source of tensors that the model does not have.
        unused: names in the source of tensors that the model does not require: buffers that are computed from the
            sizes, a pooler or its gate.
        reshaped: a note of the change for each tensor whose shape or values differ from the source, and for each zero
            bias that was added or dropped.
        notes: other decisions, one sentence each.
    """

    source: str
    layout: str
    model: str
    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    reshaped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether every tensor of the model was loaded unchanged, and the source has no unexpected tensor."""
        return not (self.missing or self.unexpected or self.reshaped)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.missing)
        lines = [
            f"{self.source} ({self.layout}) for {self.model}",
            f"loaded      {len(self.loaded)} of {total} tensors",
        ]
        for title in ("missing", "unexpected", "unused"):
            names = getattr(self, title)
            lines += _section(title, collapse(names), len(names))
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.reshaped.items():
            by_reason.setdefault(reason, []).append(name)
        rows = [f"{name}: {reason}" for reason, names in by_reason.items() for name in collapse(names)]
        lines += _section("reshaped", rows, len(self.reshaped))
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def _section(title: str, rows: list[str], count: int) -> list[str]:
    return [f"{title:<12}{count}", *(f"    {row}" for row in rows)] if count else []


def collapse(names: Iterable[str]) -> list[str]:
    """Returns the names; those that differ only in their first number are merged, as `layer.{0-11}.weight`."""
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = _NUMBER.search(name)
        pattern = name[: match.start()] + "{}" + name[match.end() :] if match else name
        numbers.setdefault(pattern, []).extend([int(match[0])] if match else [])
    return [pattern.replace("{}", _range(sorted(found))) if found else pattern for pattern, found in numbers.items()]


def _range(numbers: list[int]) -> str:
    """Formats sorted numbers as `3`, `{0-11}` or `{0,2,5}`."""
    if len(numbers) == 1:
        return str(numbers[0])
    first, last = numbers[0], numbers[-1]
    whole = len(numbers) == last - first + 1
    return "{" + (f"{first}-{last}" if whole else ",".join(map(str, numbers))) + "}"


def some(names: list[str]) -> str:
    """Returns the first three names, and the number of the others, as text."""
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
