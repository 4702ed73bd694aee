"""What is kept of a measurement, with all that is needed to judge it; the names that other rooms use."""

from benchmarks.rows.files import Writer, from_line, load, to_line
from benchmarks.rows.kinds import CeilingRow, HostRow, Measured, MemoryRow, Row, StepRow, TimeRow, case_fields
from benchmarks.rows.provenance import Origin, heading, machine_of, origin, source_line
from benchmarks.rows.spread import Spread, figure

__all__ = [
    "CeilingRow",
    "HostRow",
    "Measured",
    "MemoryRow",
    "Origin",
    "Row",
    "Spread",
    "StepRow",
    "TimeRow",
    "Writer",
    "case_fields",
    "figure",
    "from_line",
    "heading",
    "load",
    "machine_of",
    "origin",
    "source_line",
    "to_line",
]
