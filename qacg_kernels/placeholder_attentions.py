"""What stands in a patched model's results for an attention map that nobody asked for."""

from torch import Tensor

# What code does that only hands a map on: moves and copies of it, which stay absent, and questions about it. Torch's
# own backward hooks take a view_as.
_MOVES = (
    "bfloat16",
    "clone",
    "contiguous",
    "cpu",
    "cuda",
    "detach",
    "double",
    "float",
    "half",
    "requires_grad_",
    "to",
    "type",
    "view_as",
)
_QUESTIONS = ("dim", "get_device", "is_floating_point", "numel", "size", "__hash__")
_PROPERTIES = (
    "data",
    "device",
    "dtype",
    "grad_fn",
    "is_cpu",
    "is_cuda",
    "is_leaf",
    "is_meta",
    "is_sparse",
    "layout",
    "ndim",
    "output_nr",
    "requires_grad",
    "shape",
)
_ALLOWED = {getattr(Tensor, name) for name in _MOVES + _QUESTIONS} | {
    getattr(Tensor, name).__get__ for name in _PROPERTIES
}


class AbsentMap(Tensor):
    """A tensor (B, H, 0, 0) in place of a map that was not computed; reading it is an error that says so.

    The published models call .clone() on every map of every layer and pass it on, wanted or not: that costs nothing
    here. Whoever then looks at values (by NumPy, an index, arithmetic, a plot) would see an empty histogram or an
    error about shapes.

    Raises:
        RuntimeError: of every use but copies, moves and questions about shape, dtype and device.
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in _ALLOWED:
            return super().__torch_function__(func, types, args, kwargs or {})
        name = func.__name__ if func.__name__ != "__get__" else f".{func.__self__.__name__}"
        raise RuntimeError(
            f"this attention map was not computed, so {name} has nothing to work on: patch the model with "
            "apply_fused_attention(model, output_attentions=True), or, where that is done, set output_attentions = "
            "True on its FusedQuasiAttention modules"
        )

    def __deepcopy__(self, memo):
        return self.clone()

    def __repr__(self):
        return f"AbsentMap(device={str(self.device)!r}, dtype={self.dtype})"

    def __format__(self, spec):
        return repr(self)


def absent_map(like: Tensor) -> Tensor:
    """An absent map of heads (B, H, L, D)."""
    return like.new_empty((*like.shape[:2], 0, 0)).as_subclass(AbsentMap)
