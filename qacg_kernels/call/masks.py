"""Which values of an additive mask hide their key (MATH.md, eq. 1)."""

import torch
from torch import Tensor

# Half the lowest finite number of the type, because such masks arrive with a little added (a bias, a second mask) or
# rounded to another type. float64 has float32's bound: masks are made in float32 and then widened.
# C++ and CUDA have these numbers in csrc/common/mask.h.
HIDING = {dtype: torch.finfo(dtype).min / 2 for dtype in (torch.float16, torch.bfloat16, torch.float32)}
HIDING[torch.float64] = HIDING[torch.float32]


def hides(mask: Tensor) -> Tensor:
    """True where an additive mask hides its key as completely as False in a boolean mask does."""
    return mask <= HIDING[mask.dtype]


def is_key_mask(mask: Tensor) -> bool:
    """Whether a mask of four dimensions is the same for all queries, as a padding mask (B, 1, 1, S) is."""
    return mask.shape[-2] == 1 or mask.stride(-2) == 0


def cast_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """An additive mask in another float type, -inf where it hides a key in its own type."""
    return mask if mask.dtype == dtype else mask.to(dtype).masked_fill(hides(mask), -torch.inf)
