"""Memory with guard zones: every tensor that a kernel allocates lies between bytes that the kernel must not change.

New tensors and the zones are filled with 0xff bytes, which are NaN in the float types of kernels. So a float element of
a new tensor is NaN if the kernel does not write it. A float that the kernel reads in a zone is NaN too.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten
_ALLOCATORS = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_FILL = 0xFF
# Bytes of a zone: a multiple of every alignment that kernels require, and more than a row of 256 float32 values.
_ZONE = 1 << 14


class GuardedMemory(TorchDispatchMode):
    """A context manager that places every new uninitialised tensor between two guard zones.

    This includes the tensors that C++ code allocates.

    Example:
        >>> with GuardedMemory() as memory:
        ...     t = torch.empty(3)
        >>> memory.touched(), t.isnan().all().item()
        (False, True)
    """

    def __init__(self) -> None:
        super().__init__()
        self.zones: list[Tensor] = []  # views of bytes, two for each allocation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        # Tensors on "meta" have no memory.
        return self._guarded(result) if func in _ALLOCATORS and not result.is_meta else result

    def _guarded(self, t: Tensor) -> Tensor:
        """Returns a tensor full of 0xff bytes, with the shape and strides of t, that lies between two new zones."""
        size = t.element_size()
        extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 if t.numel() else 0
        used = extent * size
        memory = torch.full((2 * _ZONE + used + -used % 16,), _FILL, dtype=torch.uint8, device=t.device)
        self.zones += [memory[:_ZONE], memory[_ZONE + used :]]
        return memory.view(t.dtype).as_strided(t.shape, t.stride(), _ZONE // size)

    def touched(self) -> bool:
        """Whether any zone has changed since it was made.

        Then forgets these zones, so that the next call checks only zones that were made in between.
        """
        zones, self.zones = self.zones, []
        return any(bool((zone != _FILL).any()) for zone in zones)
