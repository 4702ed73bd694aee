"""The kinds of rows: what is kept of a measurement, with all that is needed to judge it."""

from dataclasses import asdict, dataclass, field

from benchmarks.cases import flops
from benchmarks.cases.case import FULL, Case, Shape
from benchmarks.rows.provenance import Origin


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
    keys: int | None = field(default=None, kw_only=True)

    @property
    def case(self) -> Case:
        shape = Shape(self.batch, self.heads, self.length, self.head_dim)
        return Case(shape, self.dtype, self.mode, self.dropout, self.device, self.lengths, self.keys)


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
    flop_convention: str = flops.CONVENTION
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
    size: str  # a name of benchmarks.steps.providers.SIZES
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
KINDS = {"time": TimeRow, "memory": MemoryRow, "host": HostRow, "step": StepRow, "ceiling": CeilingRow}


def case_fields(case: Case) -> dict[str, object]:
    """The fields of a row that name its case."""
    fields_beside_shape = asdict(case)
    del fields_beside_shape["shape"]
    return case.shape._asdict() | fields_beside_shape
