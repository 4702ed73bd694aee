"""Records the kernel launches of a call, without a GPU.

The operator's Python code runs, but its kernels are recorded instead of launched.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.cases import LAMBDA
from qacg_kernels.backends.triton import launch
from qacg_kernels.backends.triton.arguments import KernelConfig
from qacg_kernels.backends.triton.tile_tables import KERNELS, Table, TileEntry, is_entry_mask, trial
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import Residuals, Saved
from qacg_kernels.call.validation import dense_problem

DROPOUT = 0.1  # as in the plan of the GPU benchmark
_LONG = 256  # more keys than a single-tile row can have
_HEADS = 12
_DTYPES = {16: torch.bfloat16, 32: torch.float32}
_MASK_DTYPES = {"boolean-keys": torch.bool, "boolean-full": torch.bool}


class Launch(NamedTuple):
    """A launch of a kernel; `kernel.warmup(*arguments, grid=(programs,), **constants, **options)` compiles it.

    Attributes:
        kernel: the function that triton.jit returned.
        programs: number of programs in the grid, which has one dimension.
        arguments: the run-time arguments, by position.
        constants: the constexpr arguments, by name.
        options: Triton's compile options, such as num_warps.
    """

    kernel: Callable
    programs: int
    arguments: tuple
    constants: dict[str, object]
    options: dict[str, int | bool]

    @property
    def config(self) -> KernelConfig:
        return self.constants["config"]

    @property
    def role(self) -> str:
        """The kernel's name in the tile tables, or its function's name if it has no entry there."""
        roles = {"forward_kernel": KERNELS[:2], "key_blocks_kernel": KERNELS[2:4]}
        name = self.kernel.fn.__name__
        if name in roles:
            return next(role for role in roles[name] if role.startswith("whole_row") == self.config.whole_row)
        return "query_gradients" if name == "query_blocks_kernel" else name


def launches_of(
    table: Table,
    shape: tuple[int, int, int, int],
    bits: int,
    busy: bool,
    backward: bool,
    mask: str = "none",
    gate: str = LAMBDA,
) -> list[Launch]:
    """The launches of an inference forward, or of the backward of a training step.

    Args:
        table: the tile table.
        shape: (B, H, L, D); tensors of this size are allocated but not written.
        bits: element width, 16 or 32.
        busy: whether the call has dropout, so that it uses the table's entries for a mask, dropout or a column gate.
        backward: whether to return the launches of the backward instead of the forward.
        mask: a member of `hardware.MASKS`.
        gate: a member of `cases.GATES`; gate vectors are shared by all heads, as in models.
    """
    found: list[Launch] = []

    def keep(kernel, programs, arguments, constants, options, device):
        found.append(Launch(kernel, programs, arguments, constants, options))

    def tensor(*sizes: int) -> torch.Tensor:
        return torch.empty(sizes, dtype=_DTYPES[bits])

    dropout_p = DROPOUT if busy else 0.0
    seed = torch.zeros((), dtype=torch.int64) if busy else None
    problem = dense_problem(
        *(tensor(*shape) for _ in range(5)),
        tensor(*shape[:3]) if gate == LAMBDA else GateParameters(*(tensor(shape[-1]) for _ in range(4))),
        attn_mask=_mask(mask, shape, _DTYPES[bits]),
        key_lengths=None,
        is_causal=False,
        dropout_p=dropout_p,
        scale=None,
        quasi_scale=1.0,
        quasi_bias=0.0,
        dropout_seed=seed,
    )
    with trial(table), launch.through(keep):
        whole = backward and table.takes_whole_rows(KERNELS[2], _DTYPES[bits], shape[-1], busy, shape[2], shape[2])
        saves = backward and not whole
        outputs = launch.forward(problem, Residuals(saves, saves))
        if backward:
            found.clear()
            # As autograd calls the backward: with the gates that the forward saved, but no gradients of the gates.
            launch.backward(problem, Saved(tensor(*shape), None, None, *outputs[1:]))
    return found


def _mask(kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> torch.Tensor | None:
    batch, _, length, _ = shape
    if kind == "none":
        return None
    return torch.empty((batch, 1, length if kind.endswith("full") else 1, length), dtype=_MASK_DTYPES.get(kind, dtype))


def is_used(entry: TileEntry, mask: str) -> bool:
    """Whether calls with this kind of mask, a member of `hardware.MASKS`, use a tile-table entry.

    Entries for calls with a mask, dropout or a column gate (`entry.busy`) are always used, because a call with this
    mask may also have dropout. The other entries are used unless calls with this mask always use `busy` entries.
    """
    example = _mask(mask, (1, 1, 2, entry.head_dim), _DTYPES[entry.bits])
    return entry.busy or not is_entry_mask(example, entry.head_dim)


def launch_of_row(table: Table, row: TileEntry, mask: str = "none") -> Launch:
    """The launch that uses a tile-table entry, in a call with full tiles and a mask of `hardware.MASKS`."""
    length = row.block_n if row.kernel.startswith("whole_row") else _LONG
    backward = row.kernel not in ("whole_row_forward", "tiled_forward")
    shape = (1, _HEADS, length, row.head_dim)
    found = launches_of(table, shape, row.bits, row.busy, backward, mask=mask)
    return next(f for f in found if f.role == row.kernel)
