"""Tile sizes, warps and pipeline stages: tables as data, and which row a call takes. Imports no Triton.

A table is a JSON file: `architecture`, `shared_bytes` (the memory of a block that its rows may take), `measured` (None,
or where and when the rows were timed) and `rows`, one for each kernel, width of the elements, greatest head size and
kind of call: busy or not. Shipped tables are in `tables/`; one for this very GPU in the folder that `saved_path` names
is preferred.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

SHIPPED = Path(__file__).resolve().parent / "tables"
KERNELS = ("whole_row_forward", "tiled_forward", "whole_row_backward", "key_gradients", "query_gradients")
BITS = (16, 32)
HEAD_DIMS = (64, 128, 256)  # a row serves head sizes up to its own
MOST_HEAD_DIM = HEAD_DIMS[-1]
# Keys of the longest row at which backends are measured; each serves calls above the one before.
LENGTHS = (128, 512, 2048, 8192)
_ANY_LENGTH = 1 << 62
MEASURED_BACKENDS = ("hopper", "gluon", "cuda", "triton")
_POWERS = (16, 32, 64, 128)
Key = tuple[str, int, int, bool]
KEYS: tuple[Key, ...] = tuple(itertools.product(KERNELS, BITS, HEAD_DIMS, (False, True)))


def is_busy(has_mask: bool, dropout_p: float, column_gate: bool) -> bool:
    """Whether a call's cells cost registers beside the products: a mask, dropout or a column gate."""
    return has_mask or dropout_p > 0 or column_gate


def is_short(kernel: str, queries: int, keys: int, longest: int) -> bool:
    """Whether a whole-row kernel that takes `longest` keys takes a call of these sizes."""
    few_queries = kernel == "whole_row_forward" or 0 < queries <= _POWERS[-1]
    return few_queries and 0 < keys <= longest


@dataclass(frozen=True)
class Row:
    """The configuration of one kernel for one width of elements, one range of head sizes and one kind of call.

    Attributes:
        busy: for calls whose cells cost registers beside the products (`is_busy`).
        block_m, block_n: queries and keys of a tile, 16 to 128; a kernel that takes rows whole takes them up to
            block_n keys, and backward up to 128 queries.
        registers: of a thread at most, so that another block lives on a multiprocessor; 0 is no limit.
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
    registers: int = 0
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
            ("registers", (0, 128, 168)),
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
class Choice:
    """The backend that was measured to be the fastest for some calls.

    Attributes:
        training: for calls with a backward pass; False for inference.
        longest: keys of the longest row up to which it is chosen, above those of the choice before.
    """

    bits: int
    head_dim: int
    training: bool
    longest: int
    backend: str

    def __post_init__(self) -> None:
        for name, choices in (
            ("bits", BITS),
            ("head_dim", HEAD_DIMS),
            ("training", (False, True)),
            ("longest", LENGTHS),
            ("backend", MEASURED_BACKENDS),
        ):
            value = getattr(self, name)
            if value not in choices or type(value) is not type(choices[0]):
                raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


@dataclass(frozen=True)
class Table:
    """All rows of one architecture ("sm_90") or of one GPU, and for the latter which backend is the fastest."""

    architecture: str
    shared_bytes: int
    measured: dict[str, str] | None
    rows: tuple[Row, ...]
    choices: tuple[Choice, ...] = ()

    def __post_init__(self) -> None:
        have = [row.key for row in self.rows]
        for key in KEYS:
            if have.count(key) != 1:
                raise ValueError(f"rows: got {have.count(key)} for {key} (kernel, bits, head_dim, busy), wanted one")

    @functools.cached_property
    def by_key(self) -> dict[Key, Row]:
        return {row.key: row for row in self.rows}

    @functools.cached_property
    def backends_by_kind(self) -> dict[tuple[int, int, bool], tuple[tuple[int, str], ...]]:
        """By bits, head size and training: pairs of the longest row and the backend, in rising order; the last is of
        any length."""
        found: dict[tuple[int, int, bool], list[tuple[int, str]]] = {}
        for choice in sorted(self.choices, key=lambda choice: choice.longest):
            kind = (choice.bits, choice.head_dim, choice.training)
            found.setdefault(kind, []).append((choice.longest, choice.backend))
        return {kind: (*pairs[:-1], (_ANY_LENGTH, pairs[-1][1])) for kind, pairs in found.items()}

    def row(self, kernel: str, dtype: torch.dtype, head_dim: int, busy: bool) -> Row:
        return self.by_key[kernel, 8 * dtype.itemsize, next(d for d in HEAD_DIMS if head_dim <= d), busy]

    def takes_whole_rows(
        self, kernel: str, dtype: torch.dtype, head_dim: int, busy: bool, queries: int, keys: int
    ) -> bool:
        """Whether a call of these sizes goes through the whole-row `kernel`."""
        if dtype.itemsize > 4 or head_dim > MOST_HEAD_DIM:
            return False
        return is_short(kernel, queries, keys, self.row(kernel, dtype, head_dim, busy).block_n)


def parse(text: str) -> Table:
    """A table from JSON.

    Raises:
        ValueError: it is not one; the message names the field, and the row by its number.
    """
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if isinstance(record, dict):
        record.setdefault("choices", [])  # only tables of one GPU have them
    _check_members("table", record, {field.name for field in fields(Table)})
    architecture, shared, measured, rows, choices = (record[field.name] for field in fields(Table))
    if not isinstance(architecture, str) or not re.fullmatch(r"sm_\d{2,3}", architecture):
        raise ValueError(f"architecture: got {architecture!r}, wanted one such as 'sm_90'")
    if type(shared) is not int or shared <= 0:
        raise ValueError(f"shared_bytes: got {shared!r}, wanted a number of bytes")
    if measured is not None and not isinstance(measured, dict):
        raise ValueError(f"measured: got {measured!r}, wanted null or an object")
    if not isinstance(rows, list):
        raise ValueError(f"rows: got {type(rows).__name__}, wanted a list")
    if not isinstance(choices, list):
        raise ValueError(f"choices: expected a list, got {type(choices).__name__}")
    return Table(
        architecture,
        shared,
        measured,
        tuple(_member(Row, f"rows[{number}]", row) for number, row in enumerate(rows)),
        tuple(_member(Choice, f"choices[{number}]", choice) for number, choice in enumerate(choices)),
    )


def _member(kind: type, name: str, record: object):
    try:
        _check_members(kind.__name__.lower(), record, {field.name for field in fields(kind)})
        return kind(**record)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _check_members(what: str, record: object, wanted: set[str]) -> None:
    if not isinstance(record, dict):
        raise ValueError(f"{what}: got {type(record).__name__}, wanted an object")
    missing, unknown = sorted(wanted - set(record)), sorted(set(record) - wanted)
    if missing or unknown:
        raise ValueError(f"{what}: missing members {missing}, unknown members {unknown}")


def save(table: Table, path: Path) -> None:
    """Writes a table whole or not at all."""
    record = asdict(table)
    rows = ",\n".join("    " + json.dumps(row) for row in record.pop("rows"))
    head = json.dumps(record, indent=2).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a new folder with a random name: a predictable name could be planted as a link to a file of the user's.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        unfinished.write_text(f'{head},\n  "rows": [\n{rows}\n  ]\n}}\n', encoding="utf-8")
        os.replace(unfinished, path)


def saved_path(device_name: str) -> Path | None:
    """Where the table tuned for a GPU of this name lies: QACG_TRITON_TABLES, or a folder of the user's cache.

    None for a user without either: neither XDG_CACHE_HOME nor HOME is set, and the system does not know the uid.
    """
    name = re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-")
    if folder := os.environ.get("QACG_TRITON_TABLES"):
        return Path(folder) / f"{name}.json"
    cache = os.environ.get("XDG_CACHE_HOME")
    if not cache:
        try:
            cache = Path.home() / ".cache"
        except RuntimeError:
            return None
    return Path(cache) / "qacg_kernels" / "triton" / f"{name}.json"


def shipped(architecture: str) -> Table:
    return parse((SHIPPED / f"{architecture}.json").read_text(encoding="utf-8"))


def shipped_architectures() -> list[str]:
    """Oldest first."""
    return sorted((path.stem for path in SHIPPED.glob("sm_*.json")), key=_number)


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("sm_"))


def architecture_of(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def load(path: Path, architecture: str) -> Table:
    """The table of a file, which has to be of this architecture.

    Raises:
        ValueError: it is damaged or another GPU's; the message names file and field.
    """
    try:
        table = parse(path.read_text(encoding="utf-8"))
        if table.architecture != architecture:
            raise ValueError(f"architecture: got {table.architecture!r}, wanted {architecture!r} as this GPU has")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete it or tune again") from error
    return table


def shared_bytes_of(device: torch.device) -> int:
    """The most shared memory that a block may have."""
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


def nearest_shipped(architecture: str, shared_bytes: int) -> Table:
    """The newest shipped table that is not for a newer architecture and whose rows fit in so much shared memory.

    A GPU may have less of it than an older one: sm_86, sm_89 and sm_120 have 99 KiB.

    Raises:
        ValueError: there is none.
    """
    older = [shipped(a) for a in shipped_architectures() if _number(a) <= _number(architecture)]
    if not older:
        raise ValueError(f"architecture: got {architecture!r}, wanted {shipped_architectures()[0]!r} or newer")
    fitting = [table for table in older if table.shared_bytes <= shared_bytes]
    if not fitting:
        least = min(table.shared_bytes for table in older)
        raise ValueError(f"shared memory of a block: got {shared_bytes} bytes, wanted {least} or more")
    return fitting[-1]


_on_trial: list[Table] = []


@contextlib.contextmanager
def trial(table: Table) -> Iterator[None]:
    """Within it every call takes its tiles from `table`, on any device."""
    _on_trial.append(table)
    try:
        yield
    finally:
        _on_trial.pop()


def table_for(device: torch.device) -> Table:
    """The table of a device: its own tuned one, else `nearest_shipped`.

    A tuned table that cannot be read is passed by, with a warning that names its file.

    Raises:
        ValueError: no shipped table fits the device.
    """
    return _on_trial[-1] if _on_trial else _found(device)[0]


def longest_whole_rows(device: torch.device, kernel: str, bits: int, busy: bool) -> tuple[int, ...]:
    """Up to how many keys a kernel takes a row whole, for the head sizes of HEAD_DIMS."""
    rows = table_for(device).by_key
    return tuple(rows[kernel, bits, head_dim, busy].block_n for head_dim in HEAD_DIMS)


# A trace takes its result and does not enter it, where files are read. This is all that
# torch.compiler.assume_constant_result does, which would import the compiler.
longest_whole_rows._dynamo_marked_constant = True


def tuned_backends(device: torch.device, bits: int, head_dim: int, training: bool) -> tuple[tuple[int, str], ...]:
    """Pairs of the longest row of keys and the backend measured to be the fastest up to it; () without measurement."""
    try:
        table = table_for(device)
    except ValueError:  # no table fits such a GPU
        return ()
    if not table.choices or head_dim > MOST_HEAD_DIM:  # the usual way out, at every call
        return ()
    return table.backends_by_kind.get((bits, next(d for d in HEAD_DIMS if head_dim <= d), training), ())


tuned_backends._dynamo_marked_constant = True


def source_of(device: torch.device) -> str:
    """Where a device's tiles come from, for `explain`."""
    return _found(device)[1]


@functools.cache
def _found(device: torch.device) -> tuple[Table, str]:
    if device.type != "cuda":  # the interpreter
        oldest = shipped_architectures()[0]
        return shipped(oldest), f"tiles of {oldest}, for the interpreter"
    architecture = architecture_of(device)
    path = saved_path(torch.cuda.get_device_name(device))
    tuned, fault = _tuned(path, architecture) if path else (None, "")
    if tuned:
        return tuned, f"tiles tuned for this GPU, {path}"
    table = nearest_shipped(architecture, shared_bytes_of(device))
    nearest = table.architecture
    how = "" if nearest == architecture else f", the nearest older one that fits this GPU's {architecture}"
    measured = "measured" if table.measured else "reckoned, not measured"
    advice = fault or "python -m qacg_kernels.tune makes a table for this GPU"
    return table, f"shipped tiles of {nearest}{how}, {measured}; {advice}"


@functools.cache
def _tuned(path: Path, architecture: str) -> tuple[Table | None, str]:
    """The table of a file, or None and what is wrong with the file, which is told once; "" where there is none."""
    try:
        return load(path, architecture), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        fault = f"{path}: {error.strerror}; make it readable, delete it or tune again"
    except ValueError as error:
        fault = str(error)
    warnings.warn(f"the tiles tuned for this GPU are passed by, shipped ones are used: {fault}", stacklevel=2)
    return None, fault
