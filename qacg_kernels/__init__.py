"""Fused quasi-attention: softmax attention plus sigmoid attention on a context, weighted by a gate lambda."""

from qacg_kernels.backends.dispatch import available_backends
from qacg_kernels.call.dropout import draw_dropout_seed
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.functional import attention_maps, explain, keep_mask, quasi_attention, quasi_attention_varlen
from qacg_kernels.nn import FusedQuasiAttention
from qacg_kernels.patch import apply_fused_attention

__version__ = "0.1.0"
__all__ = [
    "FusedQuasiAttention",
    "GateParameters",
    "apply_fused_attention",
    "attention_maps",
    "available_backends",
    "draw_dropout_seed",
    "explain",
    "keep_mask",
    "quasi_attention",
    "quasi_attention_varlen",
]
