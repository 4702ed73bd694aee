"""Memory with guard zones: whatever a kernel allocates lies between bytes that nobody may change.

Fresh memory and the zones hold 0xff bytes, which are NaN in every float type: what a kernel leaves unwritten, or reads
from beyond a tensor, shows as NaN in its results.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from qacg_kernels.ops import NAMESPACE

_aten = torch.ops.aten
_ALLOCATORS = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_FILL = 0xFF
# On either side; a multiple of what kernels and the allocator align to, and more than a row of 256 float32.
_ZONE = 1 << 14

AfterKernel = Callable[["GuardedMemory", object], object]


class GuardedMemory(TorchDispatchMode):
    """Within it the operators of this package allocate between guard zones.

    Args:
        after_kernel: called with this and an operator's outputs after each one, and returns what is handed on: the
            place where a rehearsal puts its faults.
    """

    def __init__(self, after_kernel: AfterKernel | None = None) -> None:
        super().__init__()
        self._after_kernel = after_kernel
        self._inside = False
        self.zones: list[Tensor] = []  # views of bytes, two for each allocation

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.namespace == NAMESPACE and not self._inside:
            return self._run_kernel(func, args, kwargs)
        result = func(*args, **kwargs)
        allocated = self._inside and func in _ALLOCATORS and not result.is_meta  # on "meta" only layouts are reckoned
        return self._guarded(result) if allocated else result

    def _run_kernel(self, func, args, kwargs):
        # The operator's own kernel, called past the dispatcher, so that this mode sees what happens inside.
        python = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeExplicitAutograd")
        device = next(a for a in args if isinstance(a, Tensor)).device.type
        key = "CompositeExplicitAutograd" if python else device.upper()
        self._inside = True
        try:
            with self:
                outputs = func._op_dk(getattr(torch._C.DispatchKey, key), *args, **kwargs)
        finally:
            self._inside = False
        return outputs if self._after_kernel is None else self._after_kernel(self, outputs)

    def _guarded(self, t: Tensor) -> Tensor:
        """In place of a fresh tensor, one of its shape and strides between two zones."""
        size = t.element_size()
        extent = sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1 if t.numel() else 0
        used = extent * size
        memory = torch.full((2 * _ZONE + used + -used % 16,), _FILL, dtype=torch.uint8, device=t.device)
        self.zones += [memory[:_ZONE], memory[_ZONE + used :]]
        return memory.view(t.dtype).as_strided(t.shape, t.stride(), _ZONE // size)

    def touched(self) -> bool:
        """Whether any zone was written since the last time this was asked."""
        zones, self.zones = self.zones, []
        return any(bool((zone != _FILL).any()) for zone in zones)
