"""Files of rows: one JSON object a line."""

import json
import re
from collections.abc import Iterable
from dataclasses import MISSING, asdict, fields, replace
from pathlib import Path

from benchmarks.rows.kinds import KINDS, Row
from benchmarks.rows.provenance import Origin


def to_line(row: Row) -> str:
    """A row as one line of JSON."""
    return json.dumps(asdict(row))


def from_line(line: str) -> Row:
    """The row of one line.

    Raises:
        ValueError: the line is not a row; the message says which fields are missing or unknown.
    """
    return _from_record(json.loads(line))


def _from_record(record: object) -> Row:
    kind = record.get("kind") if isinstance(record, dict) else None
    if kind not in KINDS:
        raise ValueError(f"kind: got {kind!r}, wanted one of {', '.join(map(repr, KINDS))}")
    row_type = KINDS[kind]
    _check_fields(row_type, record)
    _check_fields(Origin, record["origin"])
    return row_type(**record | {"origin": Origin(**record["origin"])})


def _check_fields(record_type: type, record: dict) -> None:
    # A field that came later has a default: rows written before it are still rows.
    needed = {f.name for f in fields(record_type) if f.default is MISSING}
    missing, unknown = sorted(needed - set(record)), sorted(set(record) - {f.name for f in fields(record_type)})
    if missing or unknown:
        raise ValueError(f"{record_type.__name__}: missing fields {missing}, unknown fields {unknown}")


def load(paths: Iterable[str | Path]) -> list[Row]:
    """All rows of the files.

    Raises:
        ValueError: a line is not a row (file and line number).
    """
    return [row for path in paths for row in _parse(Path(path).read_text(encoding="utf-8"), path)]


# In a file a line of this kind holds what all rows after it share, so that hundreds of them stay a small file.
_SHARED = "shared"
_SHARED_FIELDS = ("origin", "flop_convention")


def _parse(text: str, path: str | Path) -> list[Row]:
    """Rows of a file's text; a row that has a field of its own does not take the shared one."""
    rows, shared = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            record = json.loads(line)
            kind = record.get("kind") if isinstance(record, dict) else None
            if kind == _SHARED:
                shared = {name: record[name] for name in _SHARED_FIELDS if name in record}
                continue
            known = {f.name for f in fields(KINDS[kind])} if kind in KINDS else set()
            rows.append(_from_record({k: v for k, v in shared.items() if k in known} | record if known else record))
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
    return rows


def _same_sources(one: Origin, other: Origin) -> bool:
    clean = not (one.dirty or other.dirty)
    return clean and replace(one, taken="") == replace(other, taken="")


class Writer:
    """Writes each row as soon as it is measured, so that an interrupted run keeps what it has.

    Attributes:
        path: the file of this machine, release and suite; None: nothing is written.
        kept: the rows that were there before and stay.
    """

    def __init__(self, folder: str | Path | None, suite: str, source: Origin, resume: bool = False) -> None:
        """Makes the file anew in `folder`; None: nothing is written.

        With `resume` a file of the same sources on the same machine is gone on with. Which sources local changes
        make cannot be known, so rows of a changed checkout are never gone on with.
        """
        self.path, self.kept = None, []
        if folder is None:
            return
        machine, release = source.machine, source.versions["qacg_kernels"]
        gpus = machine.get("cuda_devices") if suite.startswith("gpu") else None
        where = gpus[0]["name"] if gpus else f"{machine['cpu']}-{machine['threads']}t"
        name = re.sub(r"[^a-z0-9]+", "-", str(where).lower()).strip("-")
        self.path = Path(folder) / f"{name}-{release}-{suite}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resume and self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            whole = text[: text.rfind("\n") + 1]  # a run that was killed may have left part of a line
            found = _parse(whole, self.path)
            if all(_same_sources(row.origin, source) for row in found):
                self.kept = found
        self._shared: dict[str, object] = {}
        self.path.write_text("", encoding="utf-8")
        self.add(self.kept)

    def add(self, rows: Iterable[Row]) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for row in rows:
                record = asdict(row)
                shared = {name: record.pop(name) for name in _SHARED_FIELDS if name in record}
                if any(self._shared.get(name) != value for name, value in shared.items()):
                    self._shared |= shared
                    file.write(json.dumps({"kind": _SHARED, **self._shared}) + "\n")
                file.write(json.dumps(record) + "\n")
