"""The placeholder for attention maps that were not requested from a patched model."""

from torch import Tensor

# The methods that are allowed, because code that only passes a map on uses them: copies, moves and queries of metadata.
# Torch's full backward hooks call view_as.
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
_QUERIES = ("dim", "get_device", "is_floating_point", "numel", "size", "__hash__")
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
_ALLOWED = {getattr(Tensor, name) for name in _MOVES + _QUERIES} | {
    getattr(Tensor, name).__get__ for name in _PROPERTIES
}


class PlaceholderMap(Tensor):
    """A tensor (B, H, 0, 0) in place of a map that was not computed; reading it raises RuntimeError.

    The published models clone every map of every layer. So the Tensor methods in `_ALLOWED`, for copies, moves and
    metadata, work as usual. Other torch functions raise an error that names the cause. A plain empty tensor would
    instead give an empty histogram or a shape error.

    Example:
        >>> import torch
        >>> PlaceholderMap.for_heads(torch.zeros(2, 4, 10, 16)).shape
        torch.Size([2, 4, 0, 0])
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in _ALLOWED:
            return super().__torch_function__(func, types, args, kwargs or {})
        name = func.__name__ if func.__name__ != "__get__" else f".{func.__self__.__name__}"
        raise RuntimeError(
            f"{name}: expected an attention map, got the placeholder of one that was not computed. Patch the model "
            "with apply_fused_attention(model, output_attentions=True), or set output_attentions = True on the "
            "FusedQuasiAttention modules of a patched model"
        )

    def __deepcopy__(self, memo):
        return self.clone()

    def __repr__(self):
        return f"PlaceholderMap(device={str(self.device)!r}, dtype={self.dtype})"

    def __format__(self, spec):
        return repr(self)

    @classmethod
    def for_heads(cls, heads: Tensor) -> Tensor:
        """Returns the placeholder (B, H, 0, 0) for a map of `heads`, (B, H, L, D), with their device and dtype.

        If `heads` is of another subclass of Tensor, such as the fake tensors of torch.export, the result is an empty
        tensor of that subclass. Reading it raises no error.
        """
        empty = heads.new_empty((*heads.shape[:2], 0, 0))
        return empty.as_subclass(cls) if type(empty) is Tensor else empty
