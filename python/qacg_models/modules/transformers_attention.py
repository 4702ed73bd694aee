"""Softmax attention by the fused operator, for other models of transformers.

Select it by `attn_implementation="qacg_fused"`.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface
from transformers.utils import logging

from qacg_kernels import quasi_attention

NAME = "qacg_fused"


def register_attention() -> None:
    """Registers the attention implementation and its mask with transformers."""
    AttentionInterface.register(NAME, fused_attention_forward)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def fused_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Computes softmax attention by `quasi_attention`, for transformers' `AttentionInterface`.

    Quasi-attention with a gate of 0 is softmax attention. Query is (B, H, L, D), key and value are (B, H / G, S, D) for
    G query heads per key head. The mask is boolean (True: attend) or additive. The arguments have the meaning of
    transformers' "sdpa"; other arguments are ignored, except those that would change the result.

    Returns:
        The output (B, L, H, D), and None for the attention matrix.

    Raises:
        ValueError: position_bias, softcap or s_aux is given, or the mask requires gradients.

    Example:
        >>> import torch
        >>> query, key, value = torch.randn(3, 2, 4, 5, 8)
        >>> out, _ = fused_attention_forward(torch.nn.Module(), query, key, value, None, is_causal=False)
        >>> expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        >>> torch.allclose(out.transpose(1, 2), expected, atol=1e-5)
        True
    """
    for name in ("position_bias", "softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name}: expected None with attn_implementation={NAME!r}, got a value. "
                "Use attn_implementation='eager'."
            )
    if attention_mask is not None and attention_mask.requires_grad:
        raise ValueError(
            f"attention_mask: expected a mask without gradient with attn_implementation={NAME!r}, got one that "
            "requires grad, such as a learned position bias. Call model.set_attn_implementation('sdpa') or 'eager'."
        )
    if kwargs.get("output_attentions"):
        logging.get_logger(f"transformers.{NAME}").warning_once(
            f"`{NAME}` attention does not support `output_attentions=True`, so no attention maps are returned. Call "
            "model.set_attn_implementation('eager') if you need them."
        )
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and attention_mask is None and query.shape[2] > 1
    if causal:
        key, value = key[:, :, : query.shape[2]], value[:, :, : query.shape[2]]
    # With a gate of 0 any context gives the same result. Detaching avoids adding gradients of 0.
    gate = query.new_zeros(query.shape[:3])
    context = query.detach(), key.detach()
    options = {"attn_mask": attention_mask, "dropout_p": dropout, "is_causal": causal, "scale": scaling}
    out = quasi_attention(query, key, value, *context, gate, **options)
    return out.transpose(1, 2).contiguous(), None
