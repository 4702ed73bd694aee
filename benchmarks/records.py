"""Benchmark records: the fields of a measurement, and the files that store records.

A file has one JSON object per line. A line of kind "shared" holds fields that the records after it have in common, up
to the next such line.
"""

import json
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.cases import FLOP_CONVENTION, FULL, LAMBDA, Case, Shape
from qacg_kernels import info
from qacg_kernels.utils.source_revision import checkout_of

# Rows are of one state of the AMX tiles if the ratios of the tiles' rate to that of multiply-adds differ by less than
# this factor. The tiles of a virtual machine have run at 3.4 to 4.4 and at 8.5 times the rate of multiply-adds.
STATE_BAND = 1.5
MOST_CONTENTION = 0.05  # if other processes used more than this share of the CPU, a time should not be quoted


@dataclass(frozen=True)
class Quartiles:
    """The median, minimum and quartiles of a list of numbers."""

    median: float
    least: float
    q1: float
    q3: float

    @classmethod
    def of(cls, numbers: list[float]) -> "Quartiles":
        if len(numbers) == 1:
            return cls(*numbers * 4)
        q1, median, q3 = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, min(numbers), q1, q3)

    def in_ms(self) -> dict[str, float]:
        """Returns quartiles of milliseconds as the `*_ms` fields of a TimeRecord or StepRecord."""
        values = {"median_ms": self.median, "min_ms": self.least, "q1_ms": self.q1, "q3_ms": self.q3}
        return {name: rounded(value) for name, value in values.items()}


def rounded(x: float) -> float:
    """Rounds to five significant digits, more than any measurement here has."""
    return float(f"{x:.5g}")


@dataclass(frozen=True)
class Origin:
    """The machine, versions and commit of a measurement."""

    machine: dict[str, object]  # cpu, cores, threads, instruction sets, CUDA devices
    versions: dict[str, str]
    commit: str
    dirty: bool
    measured_at: str  # UTC

    @property
    def instruction_sets(self) -> list[str]:
        return sorted(set((self.machine["instruction_sets"] or {}).values()))

    @property
    def has_amx(self) -> bool:
        return "amx" in self.instruction_sets

    def __str__(self) -> str:
        machine, sets = self.machine, self.instruction_sets
        kernels = "kernels on " + ", ".join(sets) if sets else "no compiled kernels"
        changed = ", with local changes" if self.dirty else ""
        threads = f"{machine['threads']} thread{'' if machine['threads'] == 1 else 's'}"
        return (
            f"{machine['cpu']}, {threads}, {kernels}, torch {self.versions['torch']}, "
            f"commit {self.commit}{changed}, {self.measured_at[:10]}."
        )


_VERSIONS = {"qacg_kernels": "package", "python": "python", "torch": "torch", "triton": "triton", "os": "os"}


def origin() -> Origin:
    """Returns the origin of records that this process measures now."""
    facts = info.collect()
    host, library = facts["cpu"], facts["cpu_library"]
    revision = checkout_of(__file__, "--", ":/", ":(top,exclude)benchmarks/results")
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
        commit=revision[0][:12] if revision else "not a git checkout",
        dirty=revision[1] if revision else True,
        measured_at=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


@dataclass(frozen=True)
class CaseRecord:
    """Fields of every record about one case and one implementation."""

    origin: Origin
    batch: int
    heads: int
    length: int
    head_dim: int
    dtype: str
    mode: str
    dropout: float
    device: str
    implementation: str
    lengths: str = field(default=FULL, kw_only=True)
    keys: int | None = field(default=None, kw_only=True)
    gate: str = field(default=LAMBDA, kw_only=True)

    @property
    def case(self) -> Case:
        shape = Shape(self.batch, self.heads, self.length, self.head_dim)
        return Case(shape, self.dtype, self.mode, self.dropout, self.device, self.lengths, self.keys, self.gate)


def case_fields(case: Case) -> dict[str, object]:
    """The fields of a record that describe its case."""
    beside_shape = asdict(case)
    del beside_shape["shape"]
    return case.shape._asdict() | beside_shape


@dataclass(frozen=True)
class TimeRecord(CaseRecord):
    """The time of one implementation in a case; all implementations of a case run interleaved in one process."""

    median_ms: float
    min_ms: float
    q1_ms: float
    q3_ms: float
    repeats: int
    cpu_contention: float | None  # share of the CPU that other processes used; None where it is unknown
    flops_per_entry: int
    gflops: float
    ratio_to_eager: float | None  # eager's median over this one; None when eager did not run
    ratio_q1: float | None  # quartiles of the ratios of each round
    ratio_q3: float | None
    flop_convention: str = FLOP_CONVENTION
    matrix_peak_gflops: float | None = None  # of the fastest matrix product in this dtype, in the same rounds
    product_gflops: dict[str, float] | None = None  # `cpu.product_rates` of one thread in the same rounds
    kind: str = "time"

    @property
    def summary(self) -> str:
        share = "" if self.share_of_peak is None else f" ({self.share_of_peak:.0%} of the ceiling)"
        return f"{self.implementation} {self.median_ms:.4g} ms{share}"

    @property
    def share_of_peak(self) -> float | None:
        """Share of the matrix-product ceiling, by the FLOP convention."""
        return self.gflops / self.matrix_peak_gflops if self.matrix_peak_gflops else None


@dataclass(frozen=True)
class MemoryRecord(CaseRecord):
    """Peak memory of one forward, and of its backward unless the mode is inference. An MB is 10**6 bytes."""

    input_mb: float  # with the gradient of the output
    output_mb: float
    saved_mb: float  # saved for the backward, without inputs and output
    gradient_mb: float
    forward_extra_mb: float
    backward_extra_mb: float
    extra_mb: float  # the larger of forward_extra_mb and backward_extra_mb
    control_mb: float  # the result of the same method for an allocation of 64 MB
    method: str
    kind: str = "memory"

    @property
    def summary(self) -> str:
        return f"{self.implementation} {self.extra_mb:.4g} MB of temporary memory"


@dataclass(frozen=True)
class OverheadRecord(CaseRecord):
    """Host overhead: the time until a call returns, without waiting for the device."""

    median_us: float
    q1_us: float
    q3_us: float
    repeats: int
    kind: str = "overhead"

    @property
    def summary(self) -> str:
        return f"{self.implementation} {self.median_us:.4g} us of host overhead"


@dataclass(frozen=True)
class StepRecord:
    """The time of whole model steps; all implementations of a size and mode run interleaved in one process."""

    origin: Origin
    size: str  # a name of benchmarks.model_steps.implementations.SIZES
    mode: str  # one of benchmarks.model_steps.MODES
    implementation: str
    dtype: str  # bfloat16 stands for autocast
    lengths: str  # source of the sentences
    batches: int  # batches per repeat; times are those of a repeat
    sentences: int
    tokens: int
    padded_tokens: int  # tokens and padding
    median_ms: float
    min_ms: float
    q1_ms: float
    q3_ms: float
    repeats: int
    cpu_contention: float | None
    sentences_per_second: float
    ratio_to_released: float | None  # median of the released operations in float32, padded, over this median
    product_gflops: dict[str, float] | None = None  # as in TimeRecord
    kind: str = "step"

    def __str__(self) -> str:
        ratio = "" if self.ratio_to_released is None else f", {self.ratio_to_released:.2f}x released"
        return (
            f"{self.size} {self.mode} {self.dtype}, {self.implementation}: {self.median_ms / self.batches:.4g} ms a "
            f"batch ({self.min_ms / self.batches:.4g} at best), {self.sentences_per_second:.4g} sentences/s{ratio}"
        )


# Names of implementations in application records begin with these.
OWN, ONNX_RUNTIME, OPENVINO, PIPELINE = "qacg", "ONNX Runtime", "OpenVINO", "pipeline of sentence pairs"


@dataclass(frozen=True)
class ApplicationRecord:
    """The time to predict the aspects of texts; all implementations run interleaved in one process."""

    origin: Origin
    implementation: str
    ran: str  # library, version and precision
    rows: int  # texts times aspects
    median_ms: float  # for all rows, from texts to labels
    min_ms: float
    q1_ms: float
    q3_ms: float
    repeats: int
    cpu_contention: float | None
    rows_per_second: float
    equal_labels: float | None  # share of the rows with the label of this package in float32; None for another model
    product_gflops: dict[str, float] | None = None  # as in TimeRecord
    kind: str = "application"


@dataclass(frozen=True)
class CeilingRecord:
    """The rate of a matrix product that was tried as the ceiling."""

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


Record = TimeRecord | MemoryRecord | OverheadRecord | StepRecord | ApplicationRecord | CeilingRecord
KINDS = {
    cls.kind: cls for cls in (TimeRecord, MemoryRecord, OverheadRecord, StepRecord, ApplicationRecord, CeilingRecord)
}


_SHARED = "shared"
_SHARED_FIELDS = ("origin", "flop_convention")


def load(paths: Iterable[str | Path]) -> list[Record]:
    """Reads all records of some files. The ValueError for a line that is no record has the file and the line number."""
    return [record for path in paths for record in _parse(Path(path).read_text(encoding="utf-8"), path)]


def _parse(text: str, path: str | Path) -> list[Record]:
    records, shared = [], {}
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
            if found["kind"] == _SHARED:
                shared = {name: found[name] for name in _SHARED_FIELDS if name in found}
                continue
            cls = KINDS[found["kind"]]
            known = {f.name for f in fields(cls)}
            found = {name: value for name, value in shared.items() if name in known} | found
            records.append(cls(**found | {"origin": Origin(**found["origin"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}:{number}: expected a benchmark record, got {error!r}") from error
    return records


class Writer:
    """Writes each record as soon as it is measured, so that an interrupted run loses none.

    Attributes:
        path: path of the file, named after machine, release and command; None if nothing is written.
        kept: records of an earlier run that stay in the file.
    """

    def __init__(self, folder: str | Path | None, command: str, source: Origin, resume: bool = False) -> None:
        """Creates the file in `folder`, or none if `folder` is None; an existing file is overwritten.

        With `resume`, the records of the existing file are kept if all have the same machine, versions and commit as
        `source`. Records of a checkout with local changes are never kept, since the changes may differ.
        """
        self.path, self.kept = None, []
        if folder is None:
            return
        machine, release = source.machine, source.versions["qacg_kernels"]
        gpus = machine.get("cuda_devices") if command.startswith("gpu") else None
        where = gpus[0]["name"] if gpus else f"{machine['cpu']}-{machine['threads']}t"
        name = re.sub(r"[^a-z0-9]+", "-", str(where).lower()).strip("-")
        self.path = Path(folder) / f"{name}-{release}-{command}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resume and self.path.exists():
            text = self.path.read_text(encoding="utf-8")
            complete = text[: text.rfind("\n") + 1]  # a run that was killed may have left part of a line
            found = _parse(complete, self.path)
            if all(_same_sources(record.origin, source) for record in found):
                self.kept = found
        self._shared: dict[str, object] = {}
        self.path.write_text("", encoding="utf-8")
        self.add(self.kept)

    def add(self, records: Iterable[Record]) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            for record in records:
                own = asdict(record)
                shared = {name: own.pop(name) for name in _SHARED_FIELDS if name in own}
                if any(self._shared.get(name) != value for name, value in shared.items()):
                    self._shared |= shared
                    file.write(json.dumps({"kind": _SHARED, **self._shared}) + "\n")
                file.write(json.dumps(own) + "\n")


def _same_sources(one: Origin, other: Origin) -> bool:
    clean = not (one.dirty or other.dirty)
    return clean and replace(one, measured_at="") == replace(other, measured_at="")


# Selecting records.


def by_case(records: Sequence[TimeRecord]) -> dict[Case, dict[str, TimeRecord]]:
    """Groups records by case, then by implementation, in the order of their first appearance.

    Of several records with the same case and implementation, the last is kept.
    """
    cases: dict[Case, dict[str, TimeRecord]] = {}
    for record in records:
        cases.setdefault(record.case, {})[record.implementation] = record
    return cases


def fastest_products(records: Iterable[Record]) -> dict[str, CeilingRecord]:
    """The record of the fastest matrix product, by dtype."""
    best: dict[str, CeilingRecord] = {}
    for record in records:
        if isinstance(record, CeilingRecord) and (
            record.dtype not in best or record.gflops > best[record.dtype].gflops
        ):
            best[record.dtype] = record
    return best


def require_one_origin(records: Sequence[Record]) -> None:
    """Raises an error for records that cannot be shown in one table or plot."""
    origins = (record.origin for record in records)
    if len({str((one.machine, one.versions, one.commit, one.dirty)) for one in origins}) > 1:
        raise ValueError(
            "records: expected one machine, thread count, version and commit, got several. Pass records that agree "
            "in these."
        )


def chosen(records: Iterable[Record], **kept: Sequence[object] | None) -> list[Record]:
    """Keeps the time records that match all of `kept` (None: any value), and all records of other kinds."""
    return [
        record
        for record in records
        if not isinstance(record, TimeRecord)
        or all(values is None or getattr(record, name) in values for name, values in kept.items())
    ]


def of_one_state(rates: Iterable[dict[str, float] | None]) -> bool:
    """Whether all `product_gflops` are of one state of the AMX tiles; those without tiles are of any state."""
    ratios = [one["amx"] / one["fma"] for one in rates if one and "amx" in one]
    return not ratios or max(ratios) < STATE_BAND * min(ratios)


def state_note(records: Sequence[Record]) -> list[str]:
    """The rates of products beside the records of one machine with AMX, and a warning if they are of several states."""
    rates = [one for record in records if "amx" in (one := getattr(record, "product_gflops", None) or {})]
    if not rates:
        return []
    spans = [(name, min(one[name] for one in rates), max(one[name] for one in rates)) for name in rates[0]]
    note = "GFLOP/s of one thread: " + ", ".join(f"{name} {least:.4g} to {most:.4g}" for name, least, most in spans)
    return [f"{note}." if of_one_state(rates) else f"{note}. The AMX tiles had several states: compare rows of one."]


def contention_note(records: Sequence[Record]) -> list[str]:
    """A warning if other processes used so much of the CPU that the times should not be quoted; else []."""
    share = max((getattr(record, "cpu_contention", None) or 0.0 for record in records), default=0.0)
    if share <= MOST_CONTENTION:
        return []
    return [
        f"Do not quote these times: other processes used up to {share:.0%} of the CPU, which slows some "
        "implementations more than others. Repeat on an idle machine."
    ]
