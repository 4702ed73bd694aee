"""Checks of a model's inputs: shapes always, values where reading them costs nothing."""

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32)


def values_readable(t: Tensor) -> bool:
    """Whether values may be looked at: on a GPU that would synchronise, and under compile break the graph.

    There an index out of range is caught by the embedding's own device-side check.
    """
    return t.device.type == "cpu" and not torch.compiler.is_compiling()


def check_ids(name: str, ids: object, shape: tuple[int, ...] | None, limit: int, field: str) -> None:
    """Raises unless `ids` is an integer tensor of `shape` (None: two dimensions) with values below `limit`.

    Args:
        name: the argument, for the message.
        field: the configuration field that sets the limit, for the message.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: got {type(ids).__name__}, wanted a torch.Tensor")
    if ids.dtype not in _INTEGERS:
        raise TypeError(f"{name}: got dtype {ids.dtype}, wanted torch.int64 or torch.int32")
    if shape is None and ids.dim() != 2:
        raise ValueError(f"{name}: got shape {tuple(ids.shape)}, wanted two dimensions (B, L)")
    if shape is not None and tuple(ids.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(ids.shape)}, wanted {shape}")
    if values_readable(ids) and ids.numel():
        low, high = (int(x) for x in ids.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(
                f"{name}: got values from {low} to {high}, wanted 0 to {limit - 1} ({field} is {limit})"
            )


def key_mask(attention_mask: object, shape: tuple[int, int]) -> Tensor | None:
    """The (B, L) mask of 0 and 1 as booleans, True where a token is read; None when that is known to be all.

    Raises:
        TypeError, ValueError: not a tensor, another shape, or values other than 0 and 1.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask: got {type(attention_mask).__name__}, wanted a torch.Tensor or None")
    if tuple(attention_mask.shape) != shape:
        raise ValueError(f"attention_mask: got shape {tuple(attention_mask.shape)}, wanted (B, L) = {shape}")
    visible = attention_mask != 0
    if values_readable(attention_mask):
        if bool((visible & (attention_mask != 1)).any()):
            raise ValueError(
                "attention_mask: got values other than 0 and 1, wanted 1 for tokens and 0 for padding"
            )
        if bool(visible.all()):
            return None
    return visible
