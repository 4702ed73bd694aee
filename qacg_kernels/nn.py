"""Quasi-attention as a module that replaces the context self-attention of the published code."""

from typing import Any

import torch
from torch import Tensor, nn

from qacg_kernels.backends.dispatch import NAMES as BACKEND_NAMES
from qacg_kernels.call.dropout import draw_dropout_seed
from qacg_kernels.call.gate import GateParameters
from qacg_kernels.call.masks import HIDING, cast_mask
from qacg_kernels.call.validation import broadcasts, checked_quasi_bias, dense_tensor, finite_number, probability
from qacg_kernels.functional import attention_maps, quasi_attention, quasi_attention_varlen
from qacg_kernels.placeholder_attentions import PlaceholderMap
from qacg_kernels.utils.torch_internals import is_fake, values_readable

# The roles of the layers, and their names in the two published namings.
NAMINGS = {
    "released": {
        "query": "query",
        "key": "key",
        "value": "value",
        "context_query": "context_for_q",
        "context_key": "context_for_k",
        "gate_query": "lambda_q_query_layer",
        "gate_context_query": "lambda_q_context_layer",
        "gate_key": "lambda_k_key_layer",
        "gate_context_key": "lambda_k_context_layer",
    },
    "compact": {
        "query": "Wq",
        "key": "Wk",
        "value": "Wv",
        "context_query": "Wcq",
        "context_key": "Wck",
        "gate_query": "lambda_Q",
        "gate_context_query": "lambda_Qc",
        "gate_key": "lambda_K",
        "gate_context_key": "lambda_Kc",
    },
}
CONTEXT_PROJECTIONS = ("hidden", "head")
CONTEXT_ROLES = ("context_query", "context_key")
GATE_ROLES = ("gate_query", "gate_context_query", "gate_key", "gate_context_key")
GATE_STD = 0.01
_AUTOCAST = {torch.float32, torch.float16, torch.bfloat16}  # dtypes that autocast converts


class GateLayer(nn.Linear):
    """One of the four linear layers of the gate, from D features to 1, or to H if each head has its own weights.

    As in the published code, initial weights have a standard deviation of 0.01, and initial biases are 0. So lambda
    starts near 0 (for beta = gamma = 1).

    Example:
        >>> tuple(GateLayer(64, 1).weight.shape)
        (1, 64)
    """

    def reset_parameters(self) -> None:
        """Draws the weights from a normal distribution with standard deviation 0.01 and sets the bias to 0."""
        nn.init.normal_(self.weight, std=GATE_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def plain_parameters(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Returns weight and bias of a linear layer if reading them equals calling the layer; None if it must be called.

    A layer must be called if it is of another class than nn.Linear and GateLayer, such as an adapter, has hooks, or has
    a `forward` on the instance. It must also be called if its weight is no plain tensor, or is computed at each access.
    Hooks for all modules, which profilers register, do not count.
    """
    if type(layer) not in (nn.Linear, GateLayer) or "forward" in vars(layer):
        return None
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        return None
    # Not layer.weight, which takes longer than all these checks. Under torch.func a weight is a Tensor, and a fake one
    # in an export.
    weight = layer._parameters.get("weight")
    if weight is None or not (type(weight) in (nn.Parameter, Tensor) or is_fake(weight)):
        return None
    return (weight, layer._parameters["bias"]) if "bias" in layer._parameters else None


def layer_sizes(
    hidden_size: int, head_size: int, context_projection: str, gate_rows: int
) -> dict[str, tuple[int, int]]:
    """Returns the numbers of input and output features of the attention's nine layers, by role.

    Args:
        hidden_size: size of hidden states and of the context.
        head_size: D.
        context_projection: "hidden" or "head", as in `FusedQuasiAttention`.
        gate_rows: 1 if all heads share the gate's weights, else the number of heads.
    """
    context_size = hidden_size if context_projection == "hidden" else head_size
    return {
        **dict.fromkeys(("query", "key", "value"), (hidden_size, hidden_size // head_size * head_size)),
        **dict.fromkeys(CONTEXT_ROLES, (context_size, context_size)),
        **dict.fromkeys(GATE_ROLES, (head_size, gate_rows)),
    }


class ContextAttention(nn.Module):
    """Base class of self-attentions with a context: has the nine layers of NAMINGS and splits features into heads.

    A subclass sets the attributes hidden_size, num_heads, context_projection and naming, and the submodule `dropout`.
    """

    hidden_size: int
    num_heads: int
    context_projection: str
    naming: str

    def layer(self, role: str) -> nn.Module:
        """Returns the layer of a role. The roles are the keys of NAMINGS["released"]."""
        return getattr(self, NAMINGS[self.naming][role])

    def add_layers(self, *, lambda_bias: bool, lambda_per_head: bool, **options: Any) -> None:
        """Adds the nine layers of the attention.

        Args:
            lambda_bias: whether the gate's layers have biases.
            lambda_per_head: whether the gate's layers have one row of weights per head.
            **options: further arguments of nn.Linear, such as device and dtype.
        """
        gate_rows = self.num_heads if lambda_per_head else 1
        sizes = layer_sizes(self.hidden_size, self.hidden_size // self.num_heads, self.context_projection, gate_rows)
        for role, (size_in, size_out) in sizes.items():
            name = NAMINGS[self.naming][role]
            if role in GATE_ROLES:
                self.add_module(name, GateLayer(size_in, size_out, bias=lambda_bias, **options))
            else:
                self.add_module(name, nn.Linear(size_in, size_out, **options))

    def project(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Projects hidden states and context, (..., hidden_size) each, to heads.

        Args:
            hidden_states: input of query, key and value.
            context: input of context query and context key.

        Returns:
            Query, key, value, context query and context key, (..., H, D) each.
        """
        query, key, value = (self._split(self.layer(role)(hidden_states)) for role in ("query", "key", "value"))
        context_query, context_key = (self._project_context(role, context) for role in CONTEXT_ROLES)
        return query, key, value, context_query, context_key

    def _split(self, projected: Tensor) -> Tensor:
        """Splits the last dimension into heads: a view of (..., hidden_size) as (..., H, D)."""
        return projected.unflatten(-1, (self.num_heads, self.hidden_size // self.num_heads))

    def _project_context(self, role: str, context: Tensor) -> Tensor:
        layer = self.layer(role)
        return layer(self._split(context)) if self.context_projection == "head" else self._split(layer(context))

    def gate_logits(self, side: str, x: Tensor, context: Tensor, head_axis: int) -> Tensor:
        """Returns x . v + context . vc + b of the two layers of a gate, by calling them.

        Args:
            side: "query" or "key".
            x: queries or keys, (B, H, L, D), (B, L, H, D) or packed (T, H, D).
            context: context queries or context keys, in the shape of x.
            head_axis: index of H in the shape of x.

        Returns:
            A tensor in the shape of x without the last dimension, in the dtype of x.
        """

        def logits(role: str, x: Tensor) -> Tensor:
            out = self.layer(role)(x)
            if out.shape[-1] == 1:
                return out.squeeze(-1)
            return out.diagonal(dim1=head_axis, dim2=-1).movedim(-1, head_axis)  # row h of the weights for head h

        return (logits(f"gate_{side}", x) + logits(f"gate_context_{side}", context)).to(x.dtype)

    def check_inputs(
        self, hidden_states: Tensor, context: Tensor, device: torch.device | str | None, packed: bool
    ) -> None:
        """Validates the inputs of `forward`.

        Args:
            hidden_states: expected to be (B, L, hidden_size), packed (T, hidden_size).
            context: expected to have the shape and device of hidden_states.
            device: None, or expected to be a device of the same type as that of hidden_states.
            packed: whether the inputs are packed sequences.

        Raises:
            TypeError: hidden_states or context is no tensor, or `check_input_dtype` rejects its dtype.
            ValueError: hidden_states or context has the wrong shape or device, or `device` has another type.
        """
        for name, t in (("hidden_states", hidden_states), ("context", context)):
            dense_tensor(name, t)
        expected = f"(T, {self.hidden_size})" if packed else f"(B, L, {self.hidden_size})"
        if hidden_states.dim() != (2 if packed else 3) or hidden_states.shape[-1] != self.hidden_size:
            raise ValueError(f"hidden_states: expected shape {expected}, got {tuple(hidden_states.shape)}")
        if context.shape != hidden_states.shape:
            raise ValueError(
                f"context: expected shape {tuple(hidden_states.shape)} like hidden_states, got {tuple(context.shape)}"
            )
        if context.device != hidden_states.device:
            raise ValueError(
                f"context: expected device {hidden_states.device} like hidden_states, got {context.device}"
            )
        check_input_dtype("hidden_states", hidden_states, self.layer("query"))
        check_input_dtype("context", context, self.layer("context_query"))
        # Only the device type: the published models pass the device of the whole model, such as cuda:0, also to a
        # replica on cuda:1.
        if device is not None and _device_type(device) != hidden_states.device.type:
            raise ValueError(
                f"device: expected type {hidden_states.device.type!r} like hidden_states, got {str(device)!r}"
            )


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
        _check_parameters(device, dtype)
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
        # True after apply_fused_attention, because the patched models call .clone() on every map.
        self.returns_placeholders = False
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def gate(self, heads: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]) -> GateParameters | Tensor:
        """Returns the argument `gate` of `quasi_attention`.

        Args:
            heads: query, key, value, context query and context key, (B, H, L, D), or packed (T, H, D) each.

        Returns:
            The gate's parameters in the dtype of the heads, which under autocast may differ from that of the weights.
            If a layer of the gate must be called (see `plain_parameters`), lambda, (B, H, L) or packed (T, H).
        """
        layers = [plain_parameters(self.layer(role)) for role in GATE_ROLES]
        plain = [parameters for parameters in layers if parameters is not None]
        if len(plain) < len(GATE_ROLES):
            query_gate = self.gate_logits("query", heads[0], heads[3], 1).sigmoid()
            key_gate = self.gate_logits("key", heads[1], heads[4], 1).sigmoid()
            return 1 - (self.beta * query_gate + self.gamma * key_gate)
        dtype = heads[0].dtype
        query, context_query, key, context_key = (_of_heads(weight.to(dtype)) for weight, _ in plain)
        biases = [bias for _, bias in plain]
        return GateParameters(
            query,
            context_query,
            key,
            context_key,
            query_bias=_sum_of_biases(biases[:2], dtype),
            key_bias=_sum_of_biases(biases[2:], dtype),
            beta=self.beta,
            gamma=self.gamma,
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
            maps are float32 for 16-bit inputs. After apply_fused_attention, padded calls return a `PlaceholderMap` for
            each map that was not requested.

        Raises:
            TypeError: an argument has the wrong type or dtype, or the context is missing or given twice.
            ValueError: an argument has the wrong shape, device or value, or does not apply to packed sequences. Or the
                mask has an unsupported dtype or requires gradients.
            RuntimeError: the backend named in the constructor or by QACG_BACKEND does not support the call. With
                QACG_SELF_CHECK=strict, a kernel fails its check, or "auto" finds no fused kernel for a call on a GPU.
        """
        check_order(hidden_states, attention_mask, device, (context, C_embed, context_embedded))
        context = one_context(context, C_embed, context_embedded)
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
        out, computed, lam = self.attend(dense, self.gate(dense), mask, dropout_p, returns_maps, output_lambda)
        placeholder = PlaceholderMap.for_heads(out) if computed is None and self.returns_placeholders else None
        maps = (placeholder, placeholder, placeholder) if computed is None else computed
        return out.transpose(1, 2).flatten(-2), *maps, lam

    def project(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Projects two inputs (..., hidden_size) to heads.

        Args:
            hidden_states: input of query, key and value.
            context: input of context query and context key; dropout acts on these two projections.

        Returns:
            Query, key, value, context query and context key, (..., H, D) each.
        """
        *heads, context_query, context_key = super().project(hidden_states, context)
        return *heads, self.dropout(context_query), self.dropout(context_key)

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
            Three values: the output (B, H, L, D); a tuple of the attention map, softmax map and gated quasi-attention
            map, (B, H, L, L) each, or None without `returns_maps`; and lambda (B, H, L, 1), or None without
            `returns_lambda`.
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


def _of_heads(rows: Tensor) -> Tensor:
    """Returns a gate layer's weight (D) or bias () if the heads share it, else (H, D) or (H)."""
    return rows[0] if rows.shape[0] == 1 else rows


def _sum_of_biases(biases: list[Tensor | None], dtype: torch.dtype) -> Tensor | None:
    """Returns the sum of the biases of two gate layers; None without biases."""
    present = [bias for bias in biases if bias is not None]
    if not present:
        return None
    # Not torch.stack(...).sum(), with which the gradients of both biases would share memory. A second backward pass
    # would then add to that memory twice, and gradient clipping would scale it twice.
    return _of_heads((present[0] if len(present) == 1 else present[0] + present[1]).to(dtype))


def with_lambda(attended: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Splits a result of `quasi_attention` into the output and lambda (..., 1); lambda is None if not returned."""
    if isinstance(attended, Tensor):
        return attended, None
    return attended[0], attended[1].unsqueeze(-1)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises ValueError with the name of the argument if its value is not one of the choices."""
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Raises TypeError with the name of the argument if its value is not True or False."""
    if value is not True and value is not False:
        raise TypeError(f"{name}: expected True or False, got {value!r}")


def autocast_enabled(device_type: str) -> bool:
    """Whether autocast is enabled for a device type; False for types without autocast, such as "meta"."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_input_dtype(name: str, t: Tensor, layer: nn.Module) -> None:
    """Checks the dtype of a tensor that is the input of a linear layer.

    Only a plain layer is checked, because other layers may convert their input. With autocast, float32, float16 and
    bfloat16 may be mixed.

    Raises:
        TypeError: the tensor does not have the dtype of the layer's weight, and autocast does not permit the mixture.
    """
    if (parameters := plain_parameters(layer)) is None or t.dtype == parameters[0].dtype:
        return
    expected = parameters[0].dtype
    if not t.is_floating_point():
        raise TypeError(f"{name}: expected a floating dtype, such as {expected}, got {t.dtype}. Convert it")
    if {t.dtype, expected} <= _AUTOCAST and autocast_enabled(t.device.type):
        return
    raise TypeError(f"{name}: expected dtype {expected}, that of the weights, got {t.dtype}. Convert one of them")


def _check_parameters(device: object, dtype: object) -> None:
    """Raises TypeError if `dtype` is neither floating nor None, and ValueError if torch has no device of this name."""
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype: expected a floating torch.dtype or None, got {dtype!r}")
    if device is not None and _device_type(device) is None:
        raise ValueError(f"device: expected a device of torch or None, got {device!r}")


def check_order(hidden_states: object, attention_mask: object, device: object, contexts: tuple) -> None:
    """Checks the order of the arguments of `forward`, which is easily confused.

    Raises:
        TypeError: `device` is a tensor. Or no context is given, and attention_mask is floating and has the shape of
            hidden_states.
    """
    order = "The order is (hidden_states, attention_mask, device, context). Pass context=..."
    if isinstance(device, Tensor):
        raise TypeError(f"device: expected a device, got a tensor as the third argument. {order}")
    if not isinstance(attention_mask, Tensor) or any(c is not None for c in contexts):
        return
    if attention_mask.is_floating_point() and attention_mask.shape == getattr(hidden_states, "shape", None):
        got = f"got shape {tuple(attention_mask.shape)}, that of hidden_states, and no context"
        raise TypeError(f"attention_mask: expected a mask, {got}. {order}")


def one_context(context: Tensor | None, C_embed: Tensor | None, context_embedded: Tensor | None) -> Tensor:
    """Returns the one of the three arguments that is not None; raises TypeError if none or several are given."""
    given = [c for c in (context, C_embed, context_embedded) if c is not None]
    if len(given) != 1:
        raise TypeError(
            "context: expected exactly one of context, C_embed and context_embedded, which are names of the same "
            f"argument, got {len(given)}"
        )
    return given[0]


def _check_packed(attention_mask: object, max_seqlen: int | None, returns_maps: bool) -> int:
    """Returns max_seqlen; raises ValueError if it is None, or for an argument that packed sequences do not support."""
    if max_seqlen is None:
        raise ValueError("max_seqlen: expected the length of the longest sequence, because of cu_seqlens, got None")
    if attention_mask is not None:
        raise ValueError("attention_mask: expected None with cu_seqlens, got a mask. Packed sequences have no padding")
    if returns_maps:
        raise ValueError("output_attentions: expected False with cu_seqlens, got True. Pad the batch to get the maps")
    return max_seqlen


def _device_type(device: object) -> str | None:
    """The type of a device, None if torch has no device of this name."""
    try:
        return torch.device(device).type  # type: ignore[call-overload]
    except (RuntimeError, TypeError):
        return None


def mask_for_scores(mask: object, query: Tensor) -> Tensor | None:
    """Returns a mask in the operator's form: four dimensions, boolean or in query's dtype; None stays None.

    Args:
        mask: None, a key mask (B, L), or a score mask that broadcasts to (B, L, L) or (B, H, L, L).
        query: (B, H, L, D).

    Raises:
        TypeError: the mask is no tensor.
        ValueError: the mask has an unsupported dtype, or the wrong device or shape; or a key mask has integers other
            than 0 and 1 (checked only on the CPU, and not while compiling or under vmap).
    """
    if mask is None:
        return None
    mask = dense_tensor("attention_mask", mask, "a torch.Tensor or None")
    if mask.device != query.device:
        raise ValueError(f"attention_mask: expected device {query.device} like hidden_states, got {mask.device}")
    got = f"got {mask.dtype} of shape {tuple(mask.shape)}"
    if mask.dim() == 2:
        if mask.is_floating_point() or mask.is_complex():
            # A floating (B, L) mask may state visibility or be added to the scores; a wrong guess would be silent.
            kinds = "boolean or integer (B, L), or additive with four dimensions (B, 1, 1, L)"
            raise ValueError(f"attention_mask: expected {kinds}, {got}")
        if mask.shape != (query.shape[0], query.shape[2]):
            raise ValueError(f"attention_mask: expected shape (B, L) = ({query.shape[0]}, {query.shape[2]}), {got}")
        if values_readable(mask) and mask.dtype != torch.bool and bool(((mask != 0) & (mask != 1)).any()):
            raise ValueError("attention_mask: expected 1 where a key is visible and 0 elsewhere, got other integers")
        return (mask != 0)[:, None, None, :]
    if mask.dim() not in (3, 4) or not (mask.dtype == torch.bool or mask.dtype in HIDING):
        kinds = "boolean or integer for (B, L), boolean or floating (16 to 64 bits) for (B, L, L) or (B, H, L, L)"
        raise ValueError(f"attention_mask: expected {kinds}, {got}")
    mask = mask if mask.dim() == 4 else mask[:, None]
    full = (*query.shape[:3], query.shape[2])
    if not broadcasts(mask.shape, full):
        raise ValueError(f"attention_mask: expected a shape that broadcasts to (B, H, L, L) = {full}, {got}")
    return mask if mask.dtype == torch.bool else cast_mask(mask, query.dtype)


def accept_other_naming(module, state_dict, prefix, *_) -> None:
    """Load hook that renames entries of a state dict in the other naming to the names of `module.naming`, in place."""
    own = NAMINGS[module.naming]
    for naming, names in NAMINGS.items():
        if naming == module.naming:
            continue
        for role, name in names.items():
            for kind in ("weight", "bias"):
                theirs, ours = f"{prefix}{name}.{kind}", f"{prefix}{own[role]}.{kind}"
                if theirs in state_dict and ours not in state_dict:
                    state_dict[ours] = state_dict.pop(theirs)
