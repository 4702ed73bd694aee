"""The nine linear layers of a self-attention with a context: names, sizes, initial weights, projection to heads."""

from typing import Any

import torch
from torch import Tensor, nn

from qacg_kernels.call.validation import dense_tensor, device_type
from qacg_kernels.utils.torch_internals import is_fake

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
_LINEAR_FORWARD = nn.Linear.forward
_AUTOCAST = {torch.float32, torch.float16, torch.bfloat16}  # dtypes that autocast converts


class GateLayer(nn.Linear):
    """One of the four linear layers of the gate, from D features to 1, or to H if each head has its own weights.

    Its initial weights are those of the published code, so lambda starts near 0 (for beta = gamma = 1).
    """

    def reset_parameters(self) -> None:
        """Draws the weights from a normal distribution with standard deviation 0.01 and sets the bias to 0."""
        nn.init.normal_(self.weight, std=GATE_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def plain_parameters(layer: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Returns weight and bias of a linear layer if reading them equals calling the layer; None if it must be called.

    A layer must be called if it is of another class than nn.Linear and GateLayer, such as an adapter; if `forward` was
    replaced on it or its class; if it has hooks (those for all modules, which profilers register, do not count); or if
    its weight is no plain tensor, or is computed at each access.
    """
    kind = type(layer)
    if kind not in (nn.Linear, GateLayer) or kind.forward is not _LINEAR_FORWARD or "forward" in vars(layer):
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

    `gate_rows` is 1 if all heads share the gate's weights, else the number of heads.
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
    dropout: nn.Dropout

    def layer(self, role: str) -> nn.Module:
        """Returns the layer of a role. The roles are the keys of NAMINGS["released"]."""
        return getattr(self, NAMINGS[self.naming][role])

    def add_layers(self, *, lambda_bias: bool, lambda_per_head: bool, **options: Any) -> None:
        """Adds the nine layers of the attention; `options` are further arguments of nn.Linear."""
        gate_rows = self.num_heads if lambda_per_head else 1
        sizes = layer_sizes(self.hidden_size, self.hidden_size // self.num_heads, self.context_projection, gate_rows)
        for role, (size_in, size_out) in sizes.items():
            name = NAMINGS[self.naming][role]
            if role in GATE_ROLES:
                self.add_module(name, GateLayer(size_in, size_out, bias=lambda_bias, **options))
            else:
                self.add_module(name, nn.Linear(size_in, size_out, **options))

    def project(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Returns query, key, value, context query and context key, (..., H, D) each, of (..., hidden_size)."""
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
        """Returns x . v + context . vc + b of the two layers of the gate `side`, "query" or "key", by calling them.

        x and context have the same shape: (B, H, L, D), (B, L, H, D) or packed (T, H, D), with H at `head_axis`. The
        result is in the dtype of x and lacks the last dimension.
        """

        def logits(role: str, x: Tensor) -> Tensor:
            layer = self.layer(role)
            # Without a bias, torch multiplies with a weight on "meta" silently; the result is uninitialised memory.
            parameters = plain_parameters(layer)
            if parameters is not None and parameters[0].device != x.device:
                name, got = NAMINGS[self.naming][role], parameters[0].device
                raise ValueError(f"{name}: expected weights on device {x.device} like its input, got {got}")
            out = layer(x)
            if out.shape[-1] == 1:
                return out.squeeze(-1)
            return out.diagonal(dim1=head_axis, dim2=-1).movedim(-1, head_axis)  # row h of the weights for head h

        return (logits(f"gate_{side}", x) + logits(f"gate_context_{side}", context)).to(x.dtype)

    def check_inputs(
        self, hidden_states: Tensor, context: Tensor, device: torch.device | str | None, packed: bool
    ) -> None:
        """Validates the inputs of `forward`: (B, L, hidden_size), or packed (T, hidden_size)."""
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
        if device is not None and device_type(device) != hidden_states.device.type:
            raise ValueError(
                f"device: expected type {hidden_states.device.type!r} like hidden_states, got {str(device)!r}"
            )


def autocast_enabled(device_type: str) -> bool:
    """Whether autocast is enabled for a device type; False for types without autocast, such as "meta"."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def check_input_dtype(name: str, t: Tensor, layer: nn.Module) -> None:
    """Raises TypeError if a plain layer does not support the dtype of its input; other layers may convert it."""
    if (parameters := plain_parameters(layer)) is None or t.dtype == parameters[0].dtype:
        return
    expected = parameters[0].dtype
    if not t.is_floating_point():
        raise TypeError(f"{name}: expected a floating dtype, such as {expected}, got {t.dtype}. Convert it")
    if {t.dtype, expected} <= _AUTOCAST and autocast_enabled(t.device.type):
        return
    raise TypeError(f"{name}: expected dtype {expected}, that of the weights, got {t.dtype}. Convert one of them")


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
