"""Tile sizes, warps and pipeline stages: tables as data, and which row a call takes. Imports no Triton.

A table is a JSON file: `architecture`, `measured` (None, or where and when the rows were timed) and `rows`, one
for each kernel, width of the elements, greatest head size and kind of call: busy or not. Shipped tables are in
`tables/`; one for this very GPU in the folder that `saved_path` names is preferred.
"""

import functools
import itertools
import json
import os
import re
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

SHIPPED = Path(__file__).resolve().parent / "tables"
KERNELS = ("whole_row_forward", "tiled_forward", "whole_row_backward", "key_gradients", "query_gradients")
BITS = (16, 32)
HEAD_DIMS = (64, 128, 256)  # a row serves head sizes up to its own
MOST_HEAD_DIM = HEAD_DIMS[-1]
_POWERS = (16, 32, 64, 128)
Key = tuple[str, int, int, bool]
KEYS: tuple[Key, ...] = tuple(itertools.product(KERNELS, BITS, HEAD_DIMS, (False, True)))


def is_busy(has_mask: bool, dropout_p: float, column_gate: bool) -> bool:
    """Whether a call's cells cost registers beside the products: a mask, dropout or a column gate."""
    return has_mask or dropout_p > 0 or column_gate


@dataclass(frozen=True)
class Row:
    """The configuration of one kernel for one width of elements, one range of head sizes and one kind of call.

    Attributes:
        busy: for calls whose cells cost registers beside the products (`is_busy`).
        block_m, block_n: queries and keys of a tile, 16 to 128; a kernel that takes rows whole takes them up to
            block_n keys, and backward up to 128 queries.
        atomic: of key_gradients alone: dQ by atomic additions, in one kernel for two, where torch's algorithms
            need not be deterministic.
    """

    kernel: str
    bits: int
    head_dim: int
    busy: bool
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    atomic: bool = False

    def __post_init__(self) -> None:
        for name, choices in (
            ("kernel", KERNELS),
            ("bits", BITS),
            ("head_dim", HEAD_DIMS),
            ("busy", (False, True)),
            ("block_m", _POWERS),
            ("block_n", _POWERS),
            ("num_warps", (1, 2, 4, 8, 16)),
            ("num_stages", (1, 2, 3, 4, 5)),
            ("atomic", (False, True)),
        ):
            value = getattr(self, name)
            if value not in choices or type(value) is not type(choices[0]):
                raise ValueError(f"{name}: got {value!r}, wanted one of {', '.join(map(repr, choices))}")
        if self.atomic and self.kernel != "key_gradients":
            raise ValueError(f"atomic: got True for {self.kernel}, wanted it for key_gradients alone")

    @property
    def key(self) -> Key:
        return self.kernel, self.bits, self.head_dim, self.busy


@dataclass(frozen=True)
class Table:
    """All rows of one architecture ("sm_90") or of one GPU."""

    architecture: str
    measured: dict[str, str] | None
    rows: tuple[Row, ...]

    def __post_init__(self) -> None:
        have = [row.key for row in self.rows]
        for key in KEYS:
            if have.count(key) != 1:
                raise ValueError(f"rows: got {have.count(key)} for {key} (kernel, bits, head_dim, busy), wanted one")

    @functools.cached_property
    def _by_key(self) -> dict[Key, Row]:
        return {row.key: row for row in self.rows}

    def row(self, kernel: str, dtype: torch.dtype, head_dim: int, busy: bool) -> Row:
        return self._by_key[kernel, 8 * dtype.itemsize, next(d for d in HEAD_DIMS if head_dim <= d), busy]

    def takes_whole_rows(
        self, kernel: str, dtype: torch.dtype, head_dim: int, busy: bool, queries: int, keys: int
    ) -> bool:
        """Whether a call of these sizes goes through the whole-row `kernel`."""
        if dtype.itemsize > 4 or head_dim > MOST_HEAD_DIM:
            return False
        few_queries = kernel == "whole_row_forward" or 0 < queries <= _POWERS[-1]
        return few_queries and 0 < keys <= self.row(kernel, dtype, head_dim, busy).block_n


def parse(text: str) -> Table:
    """A table from JSON.

    Raises:
        ValueError: it is not one; the message says what is wrong.
    """
    record = json.loads(text)
    wanted = {field.name for field in fields(Table)}
    if not isinstance(record, dict) or set(record) != wanted:
        raise ValueError(f"table: wanted an object with the members {', '.join(sorted(wanted))}")
    names = {field.name for field in fields(Row)}
    for row in record["rows"]:
        if not isinstance(row, dict) or not names - {"atomic"} <= set(row) <= names:
            raise ValueError(f"rows: got {row!r}, wanted the members {', '.join(sorted(names))}")
    return Table(record["architecture"], record["measured"], tuple(Row(**row) for row in record["rows"]))


def save(table: Table, path: Path) -> None:
    """Writes a table whole or not at all."""
    record = asdict(table)
    rows = ",\n".join("    " + json.dumps(row) for row in record.pop("rows"))
    head = json.dumps(record, indent=2).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        file.write(f'{head},\n  "rows": [\n{rows}\n  ]\n}}\n')
    os.replace(file.name, path)


def saved_path(device_name: str) -> Path:
    """Where the table tuned for a GPU of this name lies: QACG_TRITON_TABLES, or a folder of the user's cache."""
    folder = os.environ.get("QACG_TRITON_TABLES")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    return (Path(folder) if folder else cache / "qacg_kernels" / "triton") / f"{name}.json"


def shipped(architecture: str) -> Table:
    return parse((SHIPPED / f"{architecture}.json").read_text(encoding="utf-8"))


def shipped_architectures() -> list[str]:
    """Oldest first."""
    return sorted((path.stem for path in SHIPPED.glob("sm_*.json")), key=_number)


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


@functools.cache
def table_for(device: torch.device) -> Table:
    """The table of a device: its own tuned one, else that of the newest shipped architecture not above it.

    Raises:
        ValueError: the tuned table is malformed; the message names its file.
    """
    if device.type != "cuda":  # the interpreter
        return shipped(shipped_architectures()[0])
    path = saved_path(torch.cuda.get_device_name(device))
    if path.exists():
        try:
            return parse(path.read_text(encoding="utf-8"))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: {error}; correct or delete it") from error
    major, minor = torch.cuda.get_device_capability(device)
    fitting = [a for a in shipped_architectures() if _number(a) <= 10 * major + minor]
    return shipped(fitting[-1])
