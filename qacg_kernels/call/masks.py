"""Which values of an additive mask hide their key (MATH.md, eq. 1)."""

import torch
from torch import Tensor

# Half the lowest finite number of the type, not the lowest itself: a mask that was filled with the lowest number may
# later be rounded to another type, or added to a bias or another mask. float64 has float32's bound, because float64
# masks are usually made in float32 and converted. C++ and CUDA have these numbers in csrc/common/mask.h.
HIDING = {dtype: torch.finfo(dtype).min / 2 for dtype in (torch.float16, torch.bfloat16, torch.float32)}
HIDING[torch.float64] = HIDING[torch.float32]


def hides(mask: Tensor) -> Tensor:
    """Returns a boolean tensor, True where an additive mask hides its key as completely as False in a boolean mask."""
    return mask <= HIDING[mask.dtype]


def is_key_mask(mask: Tensor) -> bool:
    """Whether a mask of four dimensions stores one row for all queries, as a padding mask (B, 1, 1, S) does."""
    return mask.shape[-2] == 1 or mask.stride(-2) == 0


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Converts an additive mask to a float type, with -inf where it hides a key.

    A mask that already has this type is returned unchanged.
    """
    return mask if mask.dtype == dtype else mask.to(dtype).masked_fill(hides(mask), -torch.inf)
