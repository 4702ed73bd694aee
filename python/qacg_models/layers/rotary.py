"""Positions of tokens in the layers of ModernBERT: rotated queries and keys, and attention within a window.

BERT adds the embedding of a position to that of a word instead. Context queries and context keys are not rotated.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from qacg_models.layers.batch import Packing, near
from qacg_models.layers.context import FirstHeads


class RotaryPositions(NamedTuple):
    """The positions of one layer.

    Attributes:
        theta: base of the angles (Su et al., 2021).
        window: the largest distance of a token to the tokens that it attends to; None: any distance.
    """

    theta: float
    window: int | None

    @classmethod
    def of(cls, config, layer: int) -> "RotaryPositions | None":
        """Returns the positions of a layer, by its index; None for layers of BERT."""
        if (fields := config.modernbert) is None:
            return None
        local = layer in fields["local_layers"]
        theta = fields["local_rotary_theta" if local else "rotary_theta"]
        return cls(theta, fields["local_attention"] // 2 if local else None)

    def mask(self, mask: Packing | Tensor | None, hidden_states: Tensor) -> Packing | Tensor | None:
        """Returns the mask of the layer, which hides tokens outside the window, from the mask of an encoder."""
        if self.window is None:
            return mask
        if isinstance(mask, Packing):
            return mask if mask.max_seqlen <= self.window + 1 else mask._replace(window=self.window)
        length = hidden_states.shape[1]
        # A graph is traced for any length.
        if not torch.compiler.is_compiling() and length <= self.window + 1:
            return mask
        visible = near(length, self.window, hidden_states.device)
        return visible if mask is None else mask & visible

    def rotate(self, heads: tuple[Tensor, ...] | FirstHeads, mask: Packing | Tensor | None):
        """Returns the heads, (B, L, H, D) or packed (T, H, D), of which the first two, query and key, are rotated."""
        if isinstance(heads, FirstHeads):  # a rotation by position 0 is the identity
            return heads._replace(key=self._rotated(heads.key, _arange(heads.key)))
        places = mask.places if isinstance(mask, Packing) else _arange(heads[0])
        return *(self._rotated(x, places) for x in heads[:2]), *heads[2:]

    def _rotated(self, x: Tensor, places: Tensor) -> Tensor:
        # Angles are float32, as in transformers. Products are computed in float32 under autocast.
        size = x.shape[-1]
        exponents = torch.arange(0, size, 2, dtype=torch.float32, device=x.device) / size
        angles = (places.unsqueeze(-1) * (1 / self.theta**exponents)).unsqueeze(-2)
        cos, sin = angles.cos(), angles.sin()
        left, right = x.to(torch.promote_types(x.dtype, torch.float32)).chunk(2, -1)
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1).to(x.dtype)


def _arange(heads: Tensor) -> Tensor:
    """Returns the positions (L) of padded heads (B, L, H, D)."""
    return torch.arange(heads.shape[1], device=heads.device)
