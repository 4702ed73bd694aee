"""What `explain` answers: which backend takes a call, and why the others do not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SELECTED, _PASSED_BY, _NOTES = "selected", "passed by auto", "notes"


@dataclass(frozen=True)
class Explanation(Mapping[str, list[str]]):
    """Also a mapping: a backend's name gives its list of reasons against the call; "selected", "passed by auto" and
    "notes" give the other fields as lists of text.

    Attributes:
        selected: the backend that takes the call.
        reasons: for each backend, why it would not take the call; an empty list means that it would.
        passed_by: backends that take the call and that "auto" does not use for it, each with the reason.
        notes: what the backends that take the call tell of how they would.
        self_check: how many kernel variants this process has compared with the reference on the call's device, in a
            line; None for none, as on CPUs whose kernels the tests have run.
    """

    selected: str
    reasons: dict[str, list[str]]
    passed_by: dict[str, str]
    notes: dict[str, str]
    self_check: str | None

    def __getitem__(self, name: str) -> list[str]:
        if name in self.reasons:
            return self.reasons[name]
        others = {
            _SELECTED: [self.selected],
            _PASSED_BY: [f"{backend}: {why}" for backend, why in self.passed_by.items()],
            _NOTES: [f"{backend}: {text}" for backend, text in self.notes.items()],
        }
        return others[name]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.reasons, _SELECTED, _PASSED_BY, _NOTES))

    def __len__(self) -> int:
        return len(self.reasons) + 3

    def __str__(self) -> str:
        lines = [f"{self.selected} takes this call"]
        for name, reasons in self.reasons.items():
            if reasons:
                lines.append(f"  {name} does not: {'; '.join(reasons)}")
            elif name in self.passed_by:
                lines.append(f"  {name} could, and is passed by: {self.passed_by[name]}")
            elif name != self.selected:
                lines.append(f"  {name} could")
        lines += [f"  note on {name}: {text}" for name, text in self.notes.items()]
        lines += [f"  self-check: {self.self_check}"] if self.self_check else []
        return "\n".join(lines)
