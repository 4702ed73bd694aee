"""The part of the Gluon and Triton languages that the kernels use, on torch tensors and a `Machine`.

The unchanged Python function of a kernel runs; the names that it looks up are replaced. Layouts determine where a value
is stored and change no value, so they are ignored here; the compiler checks them.
"""

import functools
import inspect
import types
from collections.abc import Callable

import torch
import triton

from gluon_model.machine import Barrier, Buffer, Fault, Machine, Product


class Pointer:
    """Addresses of elements of one tensor's memory."""

    def __init__(self, memory: torch.Tensor, offsets: torch.Tensor) -> None:
        self.memory, self.offsets = memory, offsets
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, offset) -> "Pointer":
        return Pointer(self.memory, self.offsets + offset)

    def __getitem__(self, where) -> "Pointer":
        return Pointer(self.memory, self.offsets[where])

    def places(self, mask) -> tuple[torch.Tensor, torch.Tensor]:
        """Offsets, 0 where masked, and the mask, of one shape."""
        mask = torch.ones((), dtype=torch.bool) if mask is None else mask
        offsets, mask = torch.broadcast_tensors(self.offsets, mask)
        inside = (offsets >= 0) & (offsets < self.memory.numel())
        if not bool((inside | ~mask).all()):
            raise Fault("an address outside its tensor")
        return torch.where(mask, offsets, 0), mask


def pointer_to(t: torch.Tensor) -> Pointer:
    memory = t.new_empty(0).set_(t.untyped_storage())
    return Pointer(memory, torch.tensor(t.storage_offset()))


def load(pointer: Pointer, mask=None, other=0) -> torch.Tensor:
    offsets, mask = pointer.places(mask)
    return torch.where(mask, pointer.memory[offsets], torch.tensor(other, dtype=pointer.memory.dtype))


def store(pointer: Pointer, values, mask=None) -> None:
    offsets, mask = pointer.places(mask)
    pointer.memory[offsets[mask]] = values.broadcast_to(mask.shape)[mask].to(pointer.memory.dtype)


class Tile:
    """A view of one buffer of shared memory."""

    def __init__(self, buffer: Buffer, transposed: bool = False) -> None:
        self.buffer, self.transposed = buffer, transposed
        self.dtype, self.shape = buffer.cells.dtype, buffer.cells.shape

    def permute(self, order) -> "Tile":
        assert tuple(order) == (1, 0)
        return Tile(self.buffer, not self.transposed)

    def cells(self) -> torch.Tensor:
        return self.buffer.cells.T if self.transposed else self.buffer.cells


class Ring:
    """Tiles or barriers, one per stage."""

    def __init__(self, members: list) -> None:
        self.members = members

    def index(self, stage):
        return self.members[int(stage)]


def _scalar(x) -> torch.Tensor:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x)


def names(machine: Machine, program: int) -> dict[str, object]:
    """Replacements of `gl`, `tl` and of the names of Hopper's instructions for one program."""

    def allocate(dtype, shape, layout):
        if dtype == torch.int64:
            return Ring([Barrier() for _ in range(shape[0])])
        if len(shape) == 2:
            return Tile(Buffer(*shape, dtype))
        return Ring([Tile(Buffer(*shape[1:], dtype)) for _ in range(shape[0])])

    def specialise(partitions, warps, registers):
        functions = [functools.partial(run, *arguments) for run, arguments in partitions]
        machine.run(list(zip(functions, (8, *warps))))

    def wait_for_barrier(barrier, parity):
        machine.pause(lambda: barrier.is_over(parity))

    def initialise(barrier, count):
        barrier.count = barrier.left = count

    def arrive(barrier, count):
        barrier.arrive(count)
        machine.pause()

    def finished(value):
        """Returns the sums of a product that has been waited for; other values unchanged."""
        if isinstance(value, Product):
            if not value.awaited:
                raise Fault("a product in flight is read")
            return value.result.clone()
        return value

    def wait_for_products(pending, values):
        machine.await_products(pending)
        found = tuple(map(finished, values))
        return found if len(found) > 1 else found[0]

    def begin(sums):
        product = Product(torch.zeros(0, 0), torch.zeros(0, 0), sums, True)
        product.result, product.awaited = sums, True
        return product

    language = types.SimpleNamespace(
        int32=torch.int32,
        int64=torch.int64,
        float32=torch.float32,
        arange=lambda start, stop, layout=None: torch.arange(start, stop),
        full=lambda shape, value, dtype, layout=None: torch.full(tuple(shape), value, dtype=dtype),
        program_id=lambda axis: torch.tensor(program),
        cdiv=lambda a, b: -(-a // b),
        minimum=lambda a, b: torch.minimum(_scalar(a), _scalar(b)),
        maximum=lambda a, b: torch.maximum(_scalar(a), _scalar(b)),
        where=lambda condition, a, b: torch.where(_scalar(condition), _scalar(a), _scalar(b)),
        max=lambda x, axis: x.amax(axis),
        sum=lambda x, axis: x.sum(axis),
        exp2=torch.exp2,
        abs=torch.abs,
        load=load,
        store=store,
        convert_layout=lambda value, layout: value,
        allocate_shared_memory=allocate,
        warp_specialize=specialise,
        static_range=range,
        **dict.fromkeys(
            ("BlockedLayout", "SliceLayout", "NVMMASharedLayout", "NVMMADistributedLayout", "DotOperandLayout"),
            lambda *parts: None,
        ),
    )
    return dict(
        gl=language,
        tl=language,
        mbarrier=types.SimpleNamespace(
            MBarrierLayout=lambda: None, init=initialise, wait=wait_for_barrier, arrive=arrive
        ),
        async_copy=types.SimpleNamespace(
            mbarrier_arrive=lambda barrier, increment_count: machine.arrive_after_copies(barrier),
        ),
        copy_to_shared=lambda tile, pointer, mask: machine.copy(tile, load(pointer, mask)),
        fence_async_shared=machine.fence,
        warpgroup_mma=lambda a, b, sums, use_acc=True, is_async=False: machine.multiply(a, b, sums, use_acc),
        warpgroup_mma_init=begin,
        warpgroup_mma_wait=wait_for_products,
    )


def as_python(function: Callable, replaced: dict[str, object]) -> Callable:
    """A kernel's function, and those that it calls, with names replaced and constants as plain values."""
    converted: dict[Callable, Callable] = {}

    def convert(source: Callable) -> Callable:
        if source not in converted:
            names = dict(source.__globals__)
            converted[source] = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__)
            for name, value in source.__globals__.items():
                if name in replaced:
                    names[name] = replaced[name]
                elif isinstance(value, triton.language.constexpr):
                    names[name] = value.value
                elif inspect.isfunction(getattr(value, "fn", None)):
                    names[name] = convert(value.fn)
        return converted[source]

    return convert(function)


def kernel_argument(value):
    """An argument as a kernel receives it: tensors become pointers, also within tuples."""
    if isinstance(value, torch.Tensor):
        return pointer_to(value)
    if isinstance(value, tuple):
        return type(value)(*map(kernel_argument, value))
    return value


def run(kernel, programs: int, arguments: tuple, constants: dict[str, object], **machine: object) -> None:
    """Runs the programs of a launch, one after another."""
    given = tuple(map(kernel_argument, arguments))
    for program in range(programs):
        as_python(kernel.fn, names(Machine(**machine), program))(*given, **constants)
