"""What is kept of a measurement: one JSON object a line, with all that is needed to judge it."""

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.providers import EAGER, Provider
from benchmarks.shapes import FULL, Case, Shape
from benchmarks.timing import Spread
from qacg_kernels import info

FLOP_CONVENTION = (
    "flops_per_cell x B x H x L x S x D; quasi-attention 6 forward (three products, the whole-row form; "
    "a tiled forward runs 8) and 16 backward (eight products), softmax attention on one map 4 and 10; "
    "the same count for every provider, whatever it stores or computes again"
)


@dataclass(frozen=True)
class Origin:
    """Where and from what a row was measured."""

    machine: dict[str, object]  # cpu, cores, threads, instruction sets, CUDA devices
    versions: dict[str, str]
    commit: str
    dirty: bool
    taken: str  # UTC


@dataclass(frozen=True)
class Measured:
    """What every row says: who was measured, on what, where."""

    origin: Origin
    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: str
    mode: str
    dropout: float
    device: str
    provider: str
    lengths: str = field(default=FULL, kw_only=True)

    @property
    def case(self) -> Case:
        shape = Shape(self.batch, self.heads, self.length, self.head_dim)
        return Case(shape, self.dtype, self.mode, self.dropout, self.device, self.lengths)


@dataclass(frozen=True)
class TimeRow(Measured):
    """Time of one provider in one case; all providers of a case ran interleaved in one process."""

    median_ms: float
    min_ms: float
    q1_ms: float
    q3_ms: float
    repeats: int
    others_share: float | None  # of all processor time, used by other processes meanwhile; None: not known
    flops_per_cell: int
    gflops: float
    ratio_to_eager: float | None  # eager's median over this one's; None when eager did not run
    ratio_q1: float | None  # quartiles of the ratios taken round by round
    ratio_q3: float | None
    flop_convention: str = FLOP_CONVENTION
    matrix_peak_gflops: float | None = None  # of the fastest matrix product in this type, in the same rounds
    kind: str = "time"

    @property
    def brief(self) -> str:
        share = "" if self.share_of_peak is None else f" ({self.share_of_peak:.0%} of the ceiling)"
        return f"{self.provider} {self.median_ms:.4g} ms{share}"

    @property
    def share_of_peak(self) -> float | None:
        """Of the matrix-product ceiling, by the row's FLOP convention."""
        return self.gflops / self.matrix_peak_gflops if self.matrix_peak_gflops else None


@dataclass(frozen=True)
class MemoryRow(Measured):
    """Peak memory of one forward, and of its backward unless the mode is inference; MB are 10**6 bytes."""

    input_mb: float  # the gradient that arrives at the output included
    output_mb: float
    saved_mb: float  # saved for the backward beside inputs and output
    gradient_mb: float
    forward_extra_mb: float
    backward_extra_mb: float
    extra_mb: float  # the larger of the two
    control_mb: float  # what the same method reports for a known allocation of 64 MB
    method: str
    kind: str = "memory"

    @property
    def brief(self) -> str:
        return f"{self.provider} {self.extra_mb:.4g} MB beyond what a call keeps"


@dataclass(frozen=True)
class StepRow:
    """Whole steps of a model by one provider; all providers of a size and mode ran interleaved in one process."""

    origin: Origin
    size: str  # a name of benchmarks.steps.SIZES
    mode: str
    provider: str
    dtype: str  # bfloat16: under autocast
    lengths: str  # where the sentences come from
    batches: int  # of one repeat, which the times are for
    sentences: int
    tokens: int
    cells: int  # tokens and padding
    median_ms: float
    min_ms: float
    q1_ms: float
    q3_ms: float
    repeats: int
    others_share: float | None
    sentences_per_second: float
    ratio_to_released: float | None  # the released operations in float32, on padded batches
    kind: str = "step"

    def __str__(self) -> str:
        ratio = "" if self.ratio_to_released is None else f", {self.ratio_to_released:.2f}x released"
        return (
            f"{self.size} {self.mode} {self.dtype}, {self.provider}: {self.median_ms / self.batches:.4g} ms a batch "
            f"({self.min_ms / self.batches:.4g} at best), {self.sentences_per_second:.4g} sentences/s{ratio}"
        )


@dataclass(frozen=True)
class HostRow(Measured):
    """What a call costs the host before it returns, the device's work not waited for."""

    median_us: float
    q1_us: float
    q3_us: float
    repeats: int
    kind: str = "host"

    @property
    def brief(self) -> str:
        return f"{self.provider} {self.median_us:.4g} us on the host"


@dataclass(frozen=True)
class CeilingRow:
    """The rate of one matrix product, of those tried for the ceiling."""

    origin: Origin
    product: str
    dtype: str
    device: str
    gflops: float
    q1_gflops: float
    q3_gflops: float
    repeats: int
    kind: str = "ceiling"

    def __str__(self) -> str:
        return f"{self.product} in {self.dtype}: {self.gflops:.4g} GFLOP/s"


Row = TimeRow | MemoryRow | HostRow | StepRow | CeilingRow
_KINDS = {"time": TimeRow, "memory": MemoryRow, "host": HostRow, "step": StepRow, "ceiling": CeilingRow}


def origin() -> Origin:
    """The origin of rows measured now, in this process."""
    facts = info.collect()
    host, library = facts["cpu"], facts["cpu_library"]
    commit, dirty = _commit()
    return Origin(
        machine={
            "cpu": host["model"],
            "cores": host["cores"],
            "threads": host["threads"],
            "torch_instruction_set": host["torch_instruction_set"],
            "instruction_sets": library["instruction_sets"],
            "cuda_devices": facts["cuda"]["devices"] if isinstance(facts["cuda"], dict) else facts["cuda"],
        },
        versions={name: facts[key] for name, key in _VERSIONS.items()},
        commit=commit,
        dirty=dirty,
        taken=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


_VERSIONS = {"qacg_kernels": "package", "python": "python", "torch": "torch", "triton": "triton", "os": "os"}


def _commit() -> tuple[str, bool]:
    """The commit of the sources, and whether anything but results differs from it."""
    folder = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
        return git("rev-parse", "--short=12", "HEAD"), bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return "not a git checkout", True


def time_rows(
    case: Case,
    providers: dict[str, Provider],
    taken: dict[str, list[float]],
    others_share: float | None,
    source: Origin,
    matrix_peak_gflops: float | None = None,
) -> list[TimeRow]:
    """Rows of one case from the seconds that `timing.interleave` returned."""
    rows = []
    for name, seconds in taken.items():
        spread = Spread.of([1e3 * s for s in seconds])
        ratio = paired = None
        if EAGER in taken:
            ratio = 1e3 * Spread.of(taken[EAGER]).median / spread.median
            paired = Spread.of([eager / own for eager, own in zip(taken[EAGER], seconds)])
        flops_per_cell = providers[name].flops_per_cell(case)
        rows.append(
            TimeRow(
                origin=source,
                **case_fields(case),
                provider=name,
                median_ms=figure(spread.median),
                min_ms=figure(spread.least),
                q1_ms=figure(spread.q1),
                q3_ms=figure(spread.q3),
                repeats=len(seconds),
                others_share=others_share if others_share is None else round(others_share, 3),
                flops_per_cell=flops_per_cell,
                gflops=figure(flops_per_cell * case.products / spread.median / 1e6),
                ratio_to_eager=ratio and figure(ratio),
                ratio_q1=paired and figure(paired.q1),
                ratio_q3=paired and figure(paired.q3),
                matrix_peak_gflops=matrix_peak_gflops and figure(matrix_peak_gflops),
            )
        )
    return rows


def ceiling_row(product: str, dtype: str, device: str, rates: list[float], source: Origin) -> CeilingRow:
    """The row of a product from its rates in GFLOP/s."""
    spread = Spread.of(rates)
    parts = (figure(rate) for rate in (spread.median, spread.q1, spread.q3))
    return CeilingRow(source, product, dtype, device, *parts, len(rates))


def step_rows(
    taken: dict[tuple[str, str], list[float]],
    others_share: float | None,
    source: Origin,
    rival: tuple[str, str],
    *,
    size: str,
    mode: str,
    lengths: str,
    batches: int,
    sentences: int,
    tokens: int,
    cells: int,
) -> list[StepRow]:
    """Rows of one size and mode from the seconds by (provider, dtype) that `timing.interleave` returned."""
    spreads = {key: Spread.of([1e3 * s for s in seconds]) for key, seconds in taken.items()}
    return [
        StepRow(
            origin=source,
            size=size,
            mode=mode,
            provider=provider,
            dtype=dtype,
            lengths=lengths,
            batches=batches,
            sentences=sentences,
            tokens=tokens,
            cells=cells,
            median_ms=figure(spread.median),
            min_ms=figure(spread.least),
            q1_ms=figure(spread.q1),
            q3_ms=figure(spread.q3),
            repeats=len(taken[provider, dtype]),
            others_share=others_share if others_share is None else round(others_share, 3),
            sentences_per_second=figure(1e3 * sentences / spread.median),
            ratio_to_released=figure(spreads[rival].median / spread.median) if rival in spreads else None,
        )
        for (provider, dtype), spread in spreads.items()
    ]


def case_fields(case: Case) -> dict[str, object]:
    """The fields of a row that name its case."""
    fields_beside_shape = asdict(case)
    del fields_beside_shape["shape"]
    return case.shape._asdict() | fields_beside_shape


def figure(x: float) -> float:
    """Five significant digits: more than any of these measurements has."""
    return float(f"{x:.5g}")


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
    if kind not in _KINDS:
        raise ValueError(f"kind: got {kind!r}, wanted one of {', '.join(map(repr, _KINDS))}")
    row_type = _KINDS[kind]
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
            known = {f.name for f in fields(_KINDS[kind])} if kind in _KINDS else set()
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
