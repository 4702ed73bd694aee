"""Tile tables: tile sizes, warps and pipeline stages of the Triton kernels. Imports no Triton.

A table is a JSON file with the fields of `Table`. A table has one entry for each kernel, element width, head size range
and kind of call (`kind_of`). Shipped tables are in `tables/`. If `tune` has saved a table for the name of the current
GPU (`saved_path`), that table takes precedence over shipped ones.
"""

import contextlib
import functools
import itertools
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from qacg_kernels.call.problem import Problem, is_key_mask
from qacg_kernels.utils.torch_internals import constant_when_traced

SHIPPED = Path(__file__).resolve().parent / "tables"
KERNELS = ("whole_row_forward", "tiled_forward", "whole_row_backward", "key_gradients", "query_gradients")
BITS = (16, 32)
HEAD_DIMS = (64, 128, 256)  # an entry applies to head sizes up to its own, and above the next smaller one
MOST_HEAD_DIM = HEAD_DIMS[-1]
KINDS = ("plain", "dropout", "masked")
_POWERS = (16, 32, 64, 128)
Key = tuple[str, int, int, str]
KEYS: tuple[Key, ...] = tuple(itertools.product(KERNELS, BITS, HEAD_DIMS, KINDS))


def kind_of(p: Problem) -> str:
    """Returns the kind of a call, one of KINDS.

    A column gate and a mask that depends on the query require registers for every attention entry, and dropout requires
    some. A mask that is the same for all queries does not count if the head size is at most 64. With larger heads, the
    plain tiles would spill registers with such a mask (112 bytes on sm_90 with head size 128).
    """
    mask = p.attn_mask
    has_entry_mask = mask is not None and (p.head_dim > HEAD_DIMS[0] or not is_key_mask(mask))
    if has_entry_mask or p.column_gate:
        return "masked"
    # Literals: torch.compile may trace dropout_p as a symbol, and `longest_whole_rows` accepts no symbolic value.
    return "dropout" if p.dropout_p > 0 else "plain"


def is_short(kernel: str, queries: int, keys: int, longest: int) -> bool:
    """Whether a call has few enough queries and keys for a single-tile kernel, which supports `longest` keys.

    With 0 keys the result is False, so the tiled kernels run. The backward also requires 1 to 128 queries.
    """
    few_queries = kernel == "whole_row_forward" or 0 < queries <= _POWERS[-1]
    return few_queries and 0 < keys <= longest


@dataclass(frozen=True)
class TileEntry:
    """Tile sizes and launch options of one kernel for one element width, head size range and kind of call."""

    kernel: str
    bits: int  # element width
    head_dim: int  # the largest head size that the entry applies to
    kind: str  # the kind of call (`kind_of`)
    block_m: int  # queries of a tile
    block_n: int  # keys of a tile; a single-tile kernel supports rows of up to as many keys
    num_warps: int
    num_stages: int
    registers: int = 0  # limit per thread, so that more blocks fit on a multiprocessor; 0 for no limit

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            value = getattr(self, name)
            if value not in allowed or type(value) is not type(allowed[0]):
                raise ValueError(f"{name}: expected one of {', '.join(map(repr, allowed))}, got {value!r}")

    @property
    def key(self) -> Key:
        return self.kernel, self.bits, self.head_dim, self.kind


_ALLOWED: dict[str, tuple] = dict(
    kernel=KERNELS,
    bits=BITS,
    head_dim=HEAD_DIMS,
    kind=KINDS,
    block_m=_POWERS,
    block_n=_POWERS,
    num_warps=(1, 2, 4, 8, 16),
    num_stages=(1, 2, 3, 4, 5),
    registers=(0, 128, 168),
)


@dataclass(frozen=True)
class Table:
    """All entries for one architecture (NVIDIA's "sm_90", AMD's "gfx942") or for one GPU."""

    architecture: str
    shared_bytes: int  # shared memory per block that the entries may use
    # GPU, time and versions of the measurement; None if nothing was measured. In a shipped table, the item "entries"
    # states which entries were measured, if not all that `tune` measures.
    measured: dict[str, str] | None
    entries: tuple[TileEntry, ...]  # one for each of KEYS

    def __post_init__(self) -> None:
        have = [entry.key for entry in self.entries]
        for key in KEYS:
            if have.count(key) != 1:
                raise ValueError(
                    f"entries: expected one for {key} (kernel, bits, head_dim, kind), got {have.count(key)}"
                )
        if is_amd(self.architecture) and any(entry.registers for entry in self.entries):
            raise ValueError(
                "registers: expected 0 (no limit) in all entries of an AMD GPU, got other values. The compiler for AMD"
                " GPUs cannot limit registers."
            )

    def most_features_in_tf32(self, kernel: str) -> int:
        """Returns the largest head size for which the TF32 products of a kernel have whole tiles as operands.

        GPUs of sm_90 and sm_100 read operands from shared memory. Older ones and sm_120 keep operands in registers,
        where those of single-tile rows or of more than 64 features do not fit.
        """
        if is_amd(self.architecture):
            return 0
        if _number("sm_90") <= _number(self.architecture) < _number("sm_120"):
            return HEAD_DIMS[1]
        return 0 if kernel.startswith("whole_row") else HEAD_DIMS[0]

    @functools.cached_property
    def by_key(self) -> dict[Key, TileEntry]:
        return {entry.key: entry for entry in self.entries}

    def entry(self, kernel: str, dtype: torch.dtype, head_dim: int, kind: str) -> TileEntry:
        return self.by_key[kernel, 8 * dtype.itemsize, next(d for d in HEAD_DIMS if head_dim <= d), kind]

    def takes_whole_rows(
        self, kernel: str, dtype: torch.dtype, head_dim: int, kind: str, queries: int, keys: int
    ) -> bool:
        """Whether a call runs the single-tile kernel `kernel`; False if no entry is for its dtype or head size."""
        if dtype.itemsize > 4 or head_dim > MOST_HEAD_DIM:
            return False
        return is_short(kernel, queries, keys, self.entry(kernel, dtype, head_dim, kind).block_n)


def parse(text: str) -> Table:
    """Reads a table from JSON; raises ValueError if the text is not a valid table."""
    try:
        record = json.loads(text)
        entries = tuple(TileEntry(**entry) for entry in record["entries"])
        return Table(**record | {"entries": entries})
    except (AttributeError, KeyError, TypeError) as error:  # a field is missing, unknown or of another type
        raise ValueError(f"expected the fields of a tile table, got others ({error})") from error


def save(table: Table, path: Path) -> None:
    """Writes a table to a file atomically; creates missing folders and replaces an existing file."""
    record = asdict(table)
    entries = ",\n".join("    " + json.dumps(entry) for entry in record.pop("entries"))
    head = json.dumps(record, indent=2).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a new folder with a random name: at a predictable name, others could place a link to one of the user's files.
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        unfinished = Path(folder) / path.name
        unfinished.write_text(f'{head},\n  "entries": [\n{entries}\n  ]\n}}\n', encoding="utf-8")
        os.replace(unfinished, path)


def saved_path(device_name: str) -> Path | None:
    """Returns the path of the table tuned for a GPU of this name, whether or not the file exists.

    The folder is QACG_TRITON_TABLES, or qacg_kernels/triton in the user's cache; None if the user has no home folder.
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
    """Returns the architectures that have a shipped table: NVIDIA's before AMD's, oldest first."""
    return sorted((path.stem for path in SHIPPED.glob("*.json")), key=lambda name: (is_amd(name), _number(name)))


def is_amd(architecture: str) -> bool:
    return architecture.startswith("gfx")


def has_wide_waves(architecture: str) -> bool:
    """Whether a warp has 64 lanes, as on AMD's CDNA GPUs (gfx9). NVIDIA's GPUs and AMD's RDNA GPUs have 32."""
    return architecture.startswith("gfx9")


def _number(architecture: str) -> int:
    return int(architecture.removeprefix("gfx"), 16) if is_amd(architecture) else int(architecture.removeprefix("sm_"))


def architecture_of(device: torch.device) -> str:
    if torch.version.hip:
        return torch.cuda.get_device_properties(device).gcnArchName.split(":")[0]
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def load(path: Path, architecture: str) -> Table:
    """Reads a tuned table; raises ValueError, which names the file, if it is damaged or for another architecture."""
    try:
        table = parse(path.read_text(encoding="utf-8"))
        if table.architecture != architecture:
            raise ValueError(f"architecture: expected {architecture!r}, that of this GPU, got {table.architecture!r}")
    except ValueError as error:
        raise ValueError(f"{path}: {error}; delete the file or tune again") from error
    return table


def shared_bytes_of(device: torch.device) -> int:
    """Returns the most shared memory that a thread block of a GPU can have, in bytes."""
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block if torch.version.hip else properties.shared_memory_per_block_optin


def nearest_shipped(architecture: str, shared_bytes: int) -> Table:
    """Returns the newest shipped table that a GPU can use; raises ValueError if none fits.

    The table is for the GPU's family (NVIDIA's GPUs, AMD's with warps of 64 lanes, AMD's with 32) and not for a newer
    GPU, and it fits the shared memory per block: sm_86, sm_89 and sm_120 have 99 KiB, less than the older sm_80.
    """
    family = (is_amd(architecture), has_wide_waves(architecture))
    related = [a for a in shipped_architectures() if (is_amd(a), has_wide_waves(a)) == family]
    older = [shipped(a) for a in related if _number(a) <= _number(architecture)]
    if not older:
        oldest = f"{related[0]!r} or newer" if related else f"one related to {', '.join(shipped_architectures())}"
        raise ValueError(f"architecture: expected {oldest}, got {architecture!r}")
    fitting = [table for table in older if table.shared_bytes <= shared_bytes]
    if not fitting:
        least = min(table.shared_bytes for table in older)
        raise ValueError(f"shared memory per block: expected {least} bytes or more, got {shared_bytes}")
    return fitting[-1]


on_trial: Table | None = None  # the table of the innermost `trial`
restarts: list[Callable[[], object]] = []  # functions that forget what follows from a table, for `trial`


@contextlib.contextmanager
def trial(table: Table) -> Iterator[None]:
    """A context manager: every Triton call uses the tile sizes of `table`, on any device."""
    global on_trial  # noqa: PLW0603
    before, on_trial = on_trial, table
    _restart()
    try:
        yield
    finally:
        on_trial = before
        _restart()


def _restart() -> None:
    for restart in restarts:
        restart()


def table_for(device: torch.device) -> Table:
    """Returns the table of a device: its tuned table if there is one, else `nearest_shipped`.

    A tuned table that cannot be used is skipped with a warning that names the file. In a `trial`, the result is the
    table of that context.
    """
    return on_trial or _found(device)[0]


@constant_when_traced  # it reads files
def longest_whole_rows(device: torch.device, kernel: str, bits: int, kind: str) -> tuple[int, ...]:
    """Returns the most keys that the single-tile kernel `kernel` supports, for each head size of HEAD_DIMS."""
    entries = table_for(device).by_key
    return tuple(entries[kernel, bits, head_dim, kind].block_n for head_dim in HEAD_DIMS)


def source_of(device: torch.device) -> str:
    """Returns a line that states where the tile sizes of a device come from, for `explain`; ignores a `trial`."""
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
    measured = "estimated, not measured"
    if table.measured:
        part = "partly " if "entries" in table.measured else ""
        measured = f"{part}measured on {table.measured['gpu']}"
    advice = fault or "run python -m qacg_kernels.tune to make a table for this GPU"
    return table, f"shipped tiles of {nearest}{how}, {measured}; {advice}"


@functools.cache
def _tuned(path: Path, architecture: str) -> tuple[Table | None, str]:
    """Returns (table, "") for a usable file, (None, "") if there is no file, else (None, why it cannot be used).

    Warns, once per file, if the file cannot be used.
    """
    try:
        return load(path, architecture), ""
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except OSError as error:
        fault = f"{path}: {error.strerror}; make the file readable, delete it or tune again"
    except ValueError as error:
        fault = str(error)
    warnings.warn(f"the tiles tuned for this GPU are ignored and shipped tiles are used: {fault}", stacklevel=2)
    return None, fault
