"""Quasi-attention as a module that replaces the context self-attention of the published code."""

import torch
from torch import Tensor, nn

from qacg_kernels.attention_layers import (
    CONTEXT_PROJECTIONS,
    GATE_ROLES,
    NAMINGS,
    ContextAttention,
    accept_other_naming,
    plain_parameters,
)
from qacg_kernels.backends.dispatch import NAMES as BACKEND_NAMES
from qacg_kernels.call.dropout import draw_dropout_seed
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.problem import row_dtype
from qacg_kernels.call.validation import (
    check_choice,
    check_flag,
    check_parameter_options,
    checked_quasi_bias,
    finite_number,
    mask_for_scores,
    one_context,
    probability,
)
from qacg_kernels.functional import attention_maps, quasi_attention, quasi_attention_varlen

_GATE_LAYERS = {naming: [names[role] for role in GATE_ROLES] for naming, names in NAMINGS.items()}


class FusedQuasiAttention(ContextAttention):
    """Fused multi-head self-attention with a context, A = softmax(T) + lambda * alpha * sigmoid(Tc).

    Projects hidden states to query, key and value, and a context to context query and context key. Then runs
    `quasi_attention` on these five tensors (MATH.md, eq. 1 to 8). T are the scores of query and key, Tc those of
    context query and context key. `dropout` acts on A and, as in the published code, on the context query and key.

    Layers are called as modules, so hooks, adapters, parametrizations and quantized weights keep working. Only plain
    layers of the gate are not called: the kernel reads their weights and biases.

    Args:
        hidden_size: size of hidden states and of the context; a multiple of num_heads.
        num_heads: H; the head size D is hidden_size / num_heads.
        dropout: probability in [0, 1).
        context_projection: "hidden" projects the whole context with hidden_size x hidden_size weights; "head" projects
            the slice of each head with D x D weights that all heads share.
        lambda_bias: whether the gate's layers have biases. The query gate adds up the biases of its two layers, and the
            key gate those of the other two.
        lambda_per_head: whether each head has its own gate weights, (H, D), instead of sharing (1, D).
        naming: attribute names of the layers: "released" (query, context_for_q, lambda_q_query_layer, ...) or
            "compact" (Wq, Wcq, lambda_Q, ...). A state dict in the other naming loads as well.
        quasi_scale: alpha, the factor on the sigmoid map.
        quasi_bias: number that is added to the context scores, or "-log(keys)": minus the logarithm of the number of
            keys that a query sees (see `quasi_attention`).
        beta: the weight of the query gate.
        gamma: the weight of the key gate.
        backend: "auto", or a name of available_backends(). A call that the named backend does not support raises
            RuntimeError.
        output_attentions: whether forward returns the maps by default.
        device: device of the parameters, torch's default when None.
        dtype: dtype of the parameters, torch's default when None.

    Raises:
        TypeError, ValueError: an argument has the wrong type or is out of range.

    Example:
        >>> import torch
        >>> attention = FusedQuasiAttention(hidden_size=64, num_heads=4)
        >>> hidden_states, context = torch.randn(2, 10, 64), torch.randn(2, 10, 64)
        >>> attended, *maps, lam = attention(hidden_states, context=context)
        >>> tuple(attended.shape), maps, tuple(lam.shape)
        ((2, 10, 64), [None, None, None], (2, 4, 10, 1))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        dropout: float = 0.1,
        context_projection: str = "hidden",
        lambda_bias: bool = True,
        lambda_per_head: bool = False,
        naming: str = "released",
        quasi_scale: float = 1.0,
        quasi_bias: float | str = 0.0,
        beta: float = 1.0,
        gamma: float = 1.0,
        backend: str = "auto",
        output_attentions: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        for name, value in (("hidden_size", hidden_size), ("num_heads", num_heads)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name}: expected an integer, got {value!r}")
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if hidden_size % num_heads:
            raise ValueError(f"hidden_size: expected a multiple of num_heads = {num_heads}, got {hidden_size}")
        dropout = probability("dropout", dropout)
        for name, flag in (("lambda_bias", lambda_bias), ("lambda_per_head", lambda_per_head)):
            check_flag(name, flag)
        check_parameter_options(device, dtype)
        check_choice("naming", naming, tuple(NAMINGS))
        self.configure(
            hidden_size=hidden_size,
            num_heads=num_heads,
            context_projection=context_projection,
            naming=naming,
            quasi_scale=quasi_scale,
            quasi_bias=quasi_bias,
            beta=beta,
            gamma=gamma,
            backend=backend,
            output_attentions=output_attentions,
        )
        self.add_layers(lambda_bias=lambda_bias, lambda_per_head=lambda_per_head, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def configure(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        context_projection: str,
        naming: str,
        quasi_scale: float,
        quasi_bias: float | str,
        beta: float,
        gamma: float,
        backend: str,
        output_attentions: bool,
    ) -> None:
        """Sets all attributes except the layers and `dropout`, and registers `accept_other_naming` as a load hook.

        The constructor and `apply_fused_attention` call this method. It does not validate hidden_size, num_heads
        and naming.

        Raises:
            TypeError, ValueError: another argument has the wrong type or value.
        """
        check_choice("context_projection", context_projection, CONTEXT_PROJECTIONS)
        check_choice("backend", backend, BACKEND_NAMES)
        check_flag("output_attentions", output_attentions)
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.context_projection = context_projection
        self.naming = naming
        self.quasi_scale = finite_number("quasi_scale", quasi_scale)
        self.quasi_bias = checked_quasi_bias(quasi_bias)
        self.beta = finite_number("beta", beta)
        self.gamma = finite_number("gamma", gamma)
        self.backend = backend
        self.output_attentions = output_attentions
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def project(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Projects two inputs (..., hidden_size) to heads, with dropout on the two of the context."""
        *heads, context_query, context_key = super().project(hidden_states, context)
        return *heads, self.dropout(context_query), self.dropout(context_key)

    def gate(self, heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]) -> GateParameters | Tensor:
        """Returns the argument `gate` of `quasi_attention` for five tensors (B, H, L, D), or packed (T, H, D).

        These are the weights and biases of the gate's layers, without a copy; or lambda, if a layer must be called (see
        `plain_parameters`), or if the kernels do not support its dtype beside that of the heads.
        """
        modules, names = self._modules, _GATE_LAYERS[self.naming]  # self.layer(role) takes four times as long
        plain = [plain_parameters(modules[name]) for name in names]  # type: ignore[arg-type]
        dtypes = {None if parameters is None else parameters[0].dtype for parameters in plain}
        if len(dtypes) > 1 or not dtypes <= {heads[0].dtype, row_dtype(heads[0])}:
            query_gate = self.gate_logits("query", heads[0], heads[3], 1).sigmoid()
            key_gate = self.gate_logits("key", heads[1], heads[4], 1).sigmoid()
            return 1 - (self.beta * query_gate + self.gamma * key_gate)
        query, context_query, key, context_key = (weight for weight, _ in plain)  # type: ignore[misc]
        biases = [bias for _, bias in plain]  # type: ignore[misc]
        return GateParameters(
            query,
            context_query,
            key,
            context_key,
            query_bias=biases[0],
            key_bias=biases[2],
            beta=self.beta,
            gamma=self.gamma,
            context_query_bias=biases[1],
            context_key_bias=biases[3],
        )

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        context: Tensor | None = None,
        *,
        C_embed: Tensor | None = None,
        context_embedded: Tensor | None = None,
        output_attentions: bool | None = None,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
        output_lambda: bool = True,
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
        """Computes quasi-attention within each sequence.

        Args:
            hidden_states: (B, L, hidden_size); packed, with `cu_seqlens`, (T, hidden_size).
            attention_mask: None, a key mask or a score mask. A key mask is (B, L), boolean or integer, with True or 1
                where a key is visible. A score mask has three dimensions that broadcast to (B, L, L), or four that
                broadcast to (B, H, L, L). It is either boolean, with True where attention is allowed, or floating-point
                and added to both scores. A floating mask is converted to the dtype of the queries (that of
                hidden_states, unless autocast changes it). A value hides the key if, before or after this conversion,
                it is at or below half the lowest finite number of its dtype (of float32 if the dtype is float64).
            device: not used. If it is not None, its type must be that of hidden_states. The published models pass it.
            context: (B, L, hidden_size), packed (T, hidden_size).
            C_embed: another name of `context` in published code; pass exactly one of the three names.
            context_embedded: another name of `context` in published code.
            output_attentions: whether to return the maps; the module's attribute output_attentions when None.
            cu_seqlens: (N + 1,) int32 or int64 offsets of packed sequences; None for a padded batch.
            max_seqlen: length of the longest packed sequence, or more; required with cu_seqlens.
            output_lambda: whether to return lambda; True launches two or three more small kernels.

        Returns:
            Five values: the output in the shape of hidden_states; three maps (B, H, L, L), each None if not requested;
            and lambda (B, H, L, 1), packed (T, H, 1), None if not requested. The maps are A after dropout, the
            softmax map, and the gated quasi-attention map lambda * alpha * sigmoid(Tc). The tensors are differentiable;
            maps are float32 for 16-bit inputs.

        Raises:
            TypeError: an argument has the wrong type or dtype, or the context is missing or given twice.
            ValueError: an argument has the wrong shape, device or value, or does not apply to packed sequences. Or the
                mask has an unsupported dtype or requires gradients.
            RuntimeError: the backend named in the constructor or by QACG_BACKEND does not support the call. With
                QACG_SELF_CHECK=strict, a kernel fails its check, or "auto" finds no fused kernel for a call on a GPU.
        """
        context = one_context((context, C_embed, context_embedded), hidden_states, attention_mask, device)
        self.check_inputs(hidden_states, context, device, packed=cu_seqlens is not None)
        returns_maps = self.output_attentions if output_attentions is None else output_attentions
        longest = 0
        if cu_seqlens is not None:
            longest = _check_packed(attention_mask, max_seqlen, returns_maps)
        elif max_seqlen is not None:
            raise ValueError("max_seqlen: expected None without cu_seqlens, got a length. Pass both or neither")

        heads = self.project(hidden_states, context)
        dropout_p = self.dropout.p if self.dropout.training else 0.0
        if cu_seqlens is not None:
            out, lam = with_lambda(
                quasi_attention_varlen(
                    *heads,
                    self.gate(heads),
                    cu_seqlens=cu_seqlens,
                    max_seqlen=longest,
                    dropout_p=dropout_p,
                    quasi_scale=self.quasi_scale,
                    quasi_bias=self.quasi_bias,
                    backend=self.backend,
                    return_lambda=output_lambda,
                )
            )
            return out.flatten(-2), None, None, None, lam
        query, key, value, context_query, context_key = (t.transpose(1, 2) for t in heads)
        mask = mask_for_scores(attention_mask, query)
        if mask is not None and mask.requires_grad:  # here, because the operator would name its own argument
            raise ValueError(
                "attention_mask: expected a tensor without gradient, got one that requires grad. Pass"
                " attention_mask.detach(); a learned mask is not supported"
            )
        dense = (query, key, value, context_query, context_key)
        out, maps, lam = self.attend(dense, self.gate(dense), mask, dropout_p, returns_maps, output_lambda)
        return out.transpose(1, 2).flatten(-2), *(maps or (None, None, None)), lam

    def attend(
        self,
        heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
        gate: GateParameters | Tensor,
        mask: Tensor | None,
        dropout_p: float,
        returns_maps: bool,
        returns_lambda: bool,
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor] | None, Tensor | None]:
        """Computes the attention of a padded batch; a subclass may override this method.

        Args:
            heads: query, key, value, context query and context key, (B, H, L, D) each.
            gate: vectors and biases of the gate, or lambda (B, H, L).
            mask: None, or boolean or additive with four dimensions that broadcast to (B, H, L, L).
            dropout_p: probability, in [0, 1), that an attention entry is dropped.
            returns_maps: whether to compute the maps.
            returns_lambda: whether to return lambda.

        Returns:
            The output (B, H, L, D); the three maps of `forward`, or None; lambda (B, H, L, 1), or None.
        """
        # The same seed for the output and the maps, so that A shows the entries that were dropped from the output.
        seed = draw_dropout_seed(heads[0].device) if dropout_p > 0 else None
        attended = quasi_attention(
            *heads,
            gate,
            attn_mask=mask,
            dropout_p=dropout_p,
            quasi_scale=self.quasi_scale,
            quasi_bias=self.quasi_bias,
            backend=self.backend,
            dropout_seed=seed,
            return_lambda=returns_lambda,
        )
        out, lam = with_lambda(attended)
        if not returns_maps:
            return out, None, lam
        maps = attention_maps(
            *heads,
            gate,
            attn_mask=mask,
            dropout_p=dropout_p,
            quasi_scale=self.quasi_scale,
            quasi_bias=self.quasi_bias,
            dropout_seed=seed,
        )
        return out, maps[:3], lam

    def extra_repr(self) -> str:
        """The options, for the module's printed form."""
        return (
            f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, "
            f"context_projection={self.context_projection!r}, naming={self.naming!r}, "
            f"quasi_scale={self.quasi_scale}, quasi_bias={self.quasi_bias!r}, "
            f"beta={self.beta}, gamma={self.gamma}, backend={self.backend!r}"
        )


def with_lambda(attended: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Splits a result of `quasi_attention` into the output and lambda (..., 1); lambda is None if not returned."""
    if isinstance(attended, Tensor):
        return attended, None
    return attended[0], attended[1].unsqueeze(-1)


def _check_packed(attention_mask: object, max_seqlen: int | None, returns_maps: bool) -> int:
    """Returns max_seqlen; raises ValueError if it is None, or for an argument that packed sequences do not support."""
    if max_seqlen is None:
        raise ValueError("max_seqlen: expected the length of the longest sequence, because of cu_seqlens, got None")
    if attention_mask is not None:
        raise ValueError("attention_mask: expected None with cu_seqlens, got a mask. Packed sequences have no padding")
    if returns_maps:
        raise ValueError("output_attentions: expected False with cu_seqlens, got True. Pad the batch to get the maps")
    return max_seqlen
