"""Dropout of hidden states at half the cost on the CPU."""

import torch
from torch import Tensor, nn

_CELLS = 1 << 16
_PER_DRAW = 4  # cells that the 64 bits of one draw decide


class Dropout(nn.Dropout):
    """torch's dropout, with 16 random bits a cell in place of a number of its own for each.

    Those numbers come from a serial generator and took a sixth of a training step. The probability is rounded to a
    multiple of 2^-16, as in the attention kernels, and kept cells are scaled by the rounded one, so the mean is
    exact. On other devices and under torch.compile, which have generators of their own, it is torch's. Masks follow
    torch.manual_seed, and gradient checkpointing repeats them.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Any shape; the identity in evaluation mode."""
        if not self.training or self.p == 0 or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        dropped = min(round(self.p * _CELLS), _CELLS - 1)
        draws = torch.empty((x.numel() + _PER_DRAW - 1) // _PER_DRAW, dtype=torch.int64)
        bits = draws.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= dropped - _CELLS // 2
        return x * kept.to(x.dtype).mul_(_CELLS / (_CELLS - dropped))
