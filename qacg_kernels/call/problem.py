"""The description of a call: its tensors and options by name."""

from dataclasses import dataclass

from torch import Tensor


# Not frozen: that would take 2 us of each call, where a call of short rows should take the host less than 30.
@dataclass(eq=False)
class Problem:
    """A validated call, which nobody changes. Field order and names are those of the operator schema in `ops.py`.

    Dense tensors are (B, H, L or S, D); packed ones, with `cu_seqlens`, are (T, H, D).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    context_query: Tensor
    context_key: Tensor
    gate_lambda: Tensor | None
    gate_query: Tensor | None
    gate_context_query: Tensor | None
    gate_key: Tensor | None
    gate_context_key: Tensor | None
    gate_query_bias: Tensor | None
    gate_key_bias: Tensor | None
    attn_mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None
    dropout_seed: Tensor | None
    max_seqlen: int
    is_causal: bool
    dropout_p: float
    scale: float
    quasi_scale: float
    beta: float
    gamma: float
    column_gate: bool

    @property
    def packed(self) -> bool:
        return self.cu_seqlens is not None

    @property
    def head_dim(self) -> int:
        return self.query.shape[-1]

    @property
    def longest_row(self) -> int:
        """Number of keys in the longest row of scores."""
        return self.max_seqlen if self.packed else self.key.shape[-2]

    # Spelled out: torch.compile follows it, and for short rows the host's time is what counts.
    def tensors(self) -> tuple[Tensor | None, ...]:
        return (
            self.query,
            self.key,
            self.value,
            self.context_query,
            self.context_key,
            self.gate_lambda,
            self.gate_query,
            self.gate_context_query,
            self.gate_key,
            self.gate_context_key,
            self.gate_query_bias,
            self.gate_key_bias,
            self.attn_mask,
            self.key_lengths,
            self.cu_seqlens,
            self.dropout_seed,
        )

    def options(self) -> dict[str, object]:
        return {
            "max_seqlen": self.max_seqlen,
            "is_causal": self.is_causal,
            "dropout_p": self.dropout_p,
            "scale": self.scale,
            "quasi_scale": self.quasi_scale,
            "beta": self.beta,
            "gamma": self.gamma,
            "column_gate": self.column_gate,
        }
