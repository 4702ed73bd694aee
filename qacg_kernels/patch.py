"""Replaces the context self-attentions of a published model, and has all that only published models need.

These are attentions whose layers have the published names, a placeholder for maps that the models clone, and the
attention of CG-BERT.
"""

from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from qacg_kernels.attention_layers import NAMINGS, ContextAttention, accept_other_naming, layer_sizes
from qacg_kernels.backends.dispatch import NAMES as BACKEND_NAMES
from qacg_kernels.call.problem import hides
from qacg_kernels.call.validation import check_choice, check_flag, finite_number, mask_for_scores, one_context
from qacg_kernels.nn import FusedQuasiAttention


class _Found(NamedTuple):
    """A module to replace, by its path in the model, with settings read from its layers, and its nn.Dropout."""

    where: str
    module: nn.Module
    settings: dict[str, Any]
    dropout: nn.Dropout


def apply_fused_attention(
    model: nn.Module,
    *,
    output_attentions: bool = False,
    quasi_scale: float = 1.0,
    beta: float = 1.0,
    gamma: float = 1.0,
    backend: str = "auto",
    verify: bool = True,
) -> int:
    """Replaces every context self-attention of a model by a fused one, in place.

    A module is replaced if it has the nine layers of either naming of `FusedQuasiAttention`. The module is first called
    on three random tokens, with the hooks of its layers but without its own. If it returns five results, it becomes a
    `PatchedQuasiAttention`, which is a `FusedQuasiAttention`; if it returns one tensor, as CG-BERT's attention does, a
    `FusedContextMixing`. The object stays the same, with another class and further attributes. So parameters,
    state-dict keys, device, dtype, training mode, hooks, optimizers and other references stay valid. Head size, number
    of heads, context projection, biases and dropout are read from the module.

    Args:
        model: any module; may itself be a context self-attention.
        output_attentions: whether the maps are computed by default. If False, each map is a `PlaceholderMap` of
            shape (B, H, 0, 0). A placeholder can be cloned and moved, so a model that collects the maps of every layer
            runs unchanged. Reading a placeholder raises a RuntimeError that names this argument. Lambda is returned in
            either case.
        quasi_scale: alpha, the factor on the sigmoid map in the replaced code.
        beta: the weight of the query gate in the replaced code.
        gamma: the weight of the key gate in the replaced code.
        backend: "auto", or a name of available_backends(). A call that the named backend does not support raises
            RuntimeError.
        verify: whether to compare the output of each module with that of its replacement before changing anything.
            Both are called in any case. Modules on the meta device have no values to compare.

    Returns:
        The number of replaced modules. Modules that were already fused are not counted.

    Raises:
        TypeError: `model` is no module, or an option has the wrong type.
        ValueError: an option is invalid, or must be the default because a module is CG-BERT's attention. Or a module
            has the nine layers but cannot be replaced, for example because it has dropout without an nn.Dropout, or
            (with verify) because the outputs differ. The message names the option or the module. The model is then
            unchanged.

    Example:
        >>> from torch import nn
        >>> apply_fused_attention(nn.Linear(4, 4))  # without context self-attentions
        0
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model: expected a torch.nn.Module, got {type(model).__name__}. Pass the model itself")
    check_choice("backend", backend, BACKEND_NAMES)
    check_flag("output_attentions", output_attentions)
    check_flag("verify", verify)
    factors = {"quasi_scale": quasi_scale, "beta": beta, "gamma": gamma}
    chosen: dict[str, Any] = {name: finite_number(name, value) for name, value in factors.items()}
    chosen |= {"backend": backend, "output_attentions": output_attentions}
    found = []
    for path, module in model.named_modules():
        if isinstance(module, FusedQuasiAttention | FusedContextMixing):
            continue
        for naming, names in NAMINGS.items():
            # Not getattr: a wrapper such as that of torch.compile has the attributes of its module, which comes later.
            if all(module._modules.get(name) is not None for name in names.values()):
                where = path or type(module).__name__
                found.append(_Found(where, module, _settings(where, module, naming), _dropout_of(where, module)))
    kinds = [_try(each, chosen, verify) for each in found]
    for kind, (_, module, settings, dropout) in zip(kinds, found):
        module.__class__ = kind
        _configure(module, settings, chosen)
        module.dropout = dropout
    return len(found)


def _configure(module: nn.Module, settings: dict[str, Any], chosen: dict[str, Any]) -> None:
    if isinstance(module, FusedQuasiAttention):
        module.configure(**settings, **chosen, quasi_bias=0.0)  # the published code has no bias
    elif isinstance(module, FusedContextMixing):
        module.configure(**settings)


def _settings(where: str, module: nn.Module, naming: str) -> dict[str, Any]:
    """Reads the replacement's settings from the layers; raises ValueError if `module` cannot be replaced."""
    if "forward" in vars(module):
        raise ValueError(
            f"{where}: expected a forward method of the class, got one set on the instance, which would stay in use. "
            "Delete the instance's attribute forward"
        )
    size = {}
    for role, name in NAMINGS[naming].items():
        layer = getattr(module, name)
        if not (hasattr(layer, "in_features") and hasattr(layer, "out_features")):
            raise ValueError(f"{where}.{name}: expected a linear layer, got a {type(layer).__name__}")
        size[role] = (layer.in_features, layer.out_features)
    hidden_size, head_dim = size["query"][0], size["gate_query"][0]
    num_heads = hidden_size // head_dim
    context_projection = "hidden" if size["context_query"][0] == hidden_size else "head"
    gate_rows = num_heads if size["gate_query"][1] == num_heads else 1
    expected = layer_sizes(hidden_size, head_dim, context_projection, gate_rows)
    for role, (size_in, size_out) in expected.items():
        if size[role] != (size_in, size_out):
            raise ValueError(
                f"{where}.{NAMINGS[naming][role]}: expected a layer from {size_in} to {size_out} features for hidden "
                f"size {hidden_size} and head size {head_dim}, got one from {size[role][0]} to {size[role][1]} features"
            )
    return dict(hidden_size=hidden_size, num_heads=num_heads, context_projection=context_projection, naming=naming)


def _dropout_of(where: str, module: nn.Module) -> nn.Dropout:
    named = getattr(module, "dropout", None)
    if isinstance(named, nn.Dropout):
        return named
    if isinstance(named, float | int):
        return nn.Dropout(named).train(module.training)
    others = [child for child in module.children() if isinstance(child, nn.Dropout)]
    for child in module.children():
        if isinstance(child, _DropoutNd) and not isinstance(child, nn.Dropout):
            raise ValueError(f"{where}: expected an nn.Dropout, got {type(child).__name__}. Use an nn.Dropout")
    if len(others) > 1:
        raise ValueError(
            f"{where}: expected an nn.Dropout named 'dropout', or at most one with another name, got {len(others)} "
            "with other names. Rename the dropout of the attention map to 'dropout'"
        )
    return others[0] if others else nn.Dropout(0.0).train(module.training)


_CALL = "(hidden_states, additive mask, device, context)"


def _try(found: _Found, chosen: dict[str, Any], verify: bool) -> type[ContextAttention]:
    """Returns the class of a module's replacement, after it has called both and compared the results."""
    where, module, settings, dropout = found
    layers = getattr(module, NAMINGS[settings["naming"]]["query"]), module  # quantized layers may have no parameters
    floating = (p for layer in layers for p in layer.parameters() if p.is_floating_point())
    like = next(floating, torch.empty(0, dtype=torch.float32, device="cpu"))
    generator = torch.Generator("cpu").manual_seed(0)
    # Large inputs: with initial weights, small inputs give almost equal scores, for which all formulas agree.
    size = (2, 1, 3, settings["hidden_size"])
    # On the CPU whatever torch's default device is, because the generator is there.
    tokens, context = (8 * torch.randn(size, generator=generator, device="cpu")).to(like.device, like.dtype)
    mask = torch.tensor([0.0, 0.0, -10000.0], device="cpu").view(1, 1, 1, 3).to(like.device, like.dtype)
    with torch.no_grad(), _evaluating(module):
        try:
            theirs = module.forward(tokens, mask, tokens.device, context)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(
                f"{where}: expected a module that can be called as {_CALL}, got the error: {error}"
            ) from error
        if dropout.p == 0.0 and _drops_entries(module, theirs, (tokens, mask, tokens.device, context)):
            raise ValueError(
                f"{where}: expected dropout by an nn.Dropout of the module, got results that differ in training mode "
                "without one. Assign an nn.Dropout with the same probability to the module's attribute 'dropout'"
            )
        kind = FusedContextMixing if isinstance(theirs, Tensor) else PatchedQuasiAttention
        if kind is FusedContextMixing:
            _check_unused(where, chosen)
        elif not isinstance(theirs, tuple) or len(theirs) != 5:
            got = f"{len(theirs)} values" if isinstance(theirs, tuple) else type(theirs).__name__
            raise ValueError(
                f"{where}: expected its forward to return one tensor, or a tuple of five values like"
                f" FusedQuasiAttention.forward, got {got}"
            )
        ours = kind.__new__(kind)
        nn.Module.__init__(ours)
        ours._modules.update(module._modules)
        _configure(ours, settings, chosen | {"output_attentions": False})
        ours.dropout = nn.Dropout(0.0).eval()
        try:
            mine = ours(tokens, mask, tokens.device, context)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(
                f"{where}: expected layers that {kind.__name__} can use, got the error: {error}"
            ) from error
    mine, theirs = _first(mine), _first(theirs)
    if mine.shape != theirs.shape:
        raise ValueError(
            f"{where}: expected a result of shape {tuple(mine.shape)} like its input, got {tuple(theirs.shape)}"
        )
    if verify and not like.is_meta:
        _compare(where, mine, theirs, kind)
    return kind


def _drops_entries(module: nn.Module, in_evaluation: Tensor | tuple, arguments: tuple) -> bool:
    """Whether a module's results change in training mode, while its submodules stay in evaluation mode."""
    # Dropout of 0.1 changes results by 10 %, the order of additions by less than 1 %. One call may drop no entry.
    expected = _first(in_evaluation)
    if expected.is_meta:
        return False
    with torch.random.fork_rng([expected.device] if expected.is_cuda else []):
        module.training = True
        changes = [_first(module.forward(*arguments)) - expected for _ in range(4)]
        module.training = False
    return any(float(change.abs().max()) > 0.02 * float(expected.abs().max()) for change in changes)


def _first(results: Tensor | tuple) -> Tensor:
    return results if isinstance(results, Tensor) else results[0]


def _compare(where: str, mine: Tensor, theirs: Tensor, kind: type[ContextAttention]) -> None:
    # The tolerances lie between measured relative differences. The same formula in another order of operations differs
    # by 5e-7 in float32 and 1.4e-2 in bfloat16. With half the quasi_scale, beta or gamma, results differ by 0.1, but
    # only by 4e-3 with BERT's initial weights. The tolerance for 16 bits is too large to detect this 4e-3.
    tolerance = 1e-3 if mine.dtype in (torch.float32, torch.float64) else 5e-2
    error = float((theirs - mine).abs().max() / theirs.abs().max().clamp_min(1e-12))
    if not error <= tolerance:
        advice = (
            "Pass the quasi_scale, beta and gamma of the model"
            if kind is PatchedQuasiAttention
            else "The module's gate must be a sigmoid, as in CG-BERT"
        )
        raise ValueError(
            f"{where}: expected results within {tolerance:.0e} (relative) of those of {kind.__name__}, got a relative "
            f"difference of {error:.1e}. {advice}"
        )


def _check_unused(where: str, chosen: dict[str, Any]) -> None:
    usual = {"quasi_scale": 1.0, "beta": 1.0, "gamma": 1.0, "backend": "auto", "output_attentions": False}
    for name, value in chosen.items():
        if value != usual[name]:
            raise ValueError(
                f"{name}: expected the default, got {value!r}. {where} is CG-BERT's attention, which returns no maps "
                "and runs torch's scaled_dot_product_attention. Omit the argument"
            )


@contextmanager
def _evaluating(module: nn.Module):
    """A context manager: a module and its submodules are in evaluation mode."""
    saved = [(m, m.training) for m in module.modules()]
    try:
        for m, _ in saved:
            m.training = False
        yield
    finally:
        for m, training in saved:
            m.training = training


# The methods that are allowed, because code that only passes a map on uses them: copies, moves and queries of metadata.
# Torch's full backward hooks call view_as.
_METHODS = (
    "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double", "float", "half", "requires_grad_", "to",
    "type", "view_as", "dim", "get_device", "is_floating_point", "numel", "size", "__hash__",
)  # fmt: skip
_PROPERTIES = (
    "data", "device", "dtype", "grad_fn", "is_cpu", "is_cuda", "is_leaf", "is_meta", "is_sparse", "layout", "ndim",
    "output_nr", "requires_grad", "shape",
)  # fmt: skip
_ALLOWED = {getattr(Tensor, name) for name in _METHODS} | {getattr(Tensor, name).__get__ for name in _PROPERTIES}


class PlaceholderMap(Tensor):
    """A tensor (B, H, 0, 0) in place of a map that was not computed; reading it raises RuntimeError.

    The published models clone every map of every layer. So the Tensor methods in `_ALLOWED`, for copies, moves and
    metadata, work as usual. A plain empty tensor would give an empty histogram or a shape error.
    """

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in _ALLOWED:
            return super().__torch_function__(func, types, args, kwargs or {})
        name = func.__name__ if func.__name__ != "__get__" else f".{func.__self__.__name__}"
        raise RuntimeError(
            f"{name}: expected an attention map, got the placeholder of one that was not computed. Patch the model "
            "with apply_fused_attention(model, output_attentions=True), or set output_attentions = True on the "
            "FusedQuasiAttention modules of a patched model"
        )

    def __deepcopy__(self, memo):
        return self.clone()

    def __repr__(self):
        return f"PlaceholderMap(device={str(self.device)!r}, dtype={self.dtype})"

    def __format__(self, spec):
        return repr(self)

    @classmethod
    def for_heads(cls, heads: Tensor) -> Tensor:
        """Returns the placeholder (B, H, 0, 0) for a map of `heads`, (B, H, L, D), with their device and dtype.

        If `heads` is of another subclass of Tensor, such as the fake tensors of torch.export, the result is an empty
        tensor of that subclass. Reading it raises no error.
        """
        empty = heads.new_empty((*heads.shape[:2], 0, 0))
        return empty.as_subclass(cls) if type(empty) is Tensor else empty


class PatchedQuasiAttention(FusedQuasiAttention):
    """A `FusedQuasiAttention` in a published model: padded calls return a `PlaceholderMap` for each map not requested.

    The published models call clone() on every map, so None would raise an error in them.
    """

    def attend(self, heads, gate, mask, dropout_p, returns_maps, returns_lambda):
        """Computes the attention as `FusedQuasiAttention.attend` does, with placeholders for maps not requested."""
        out, maps, lam = super().attend(heads, gate, mask, dropout_p, returns_maps, returns_lambda)
        return out, maps or (PlaceholderMap.for_heads(out),) * 3, lam


class FusedContextMixing(ContextAttention):
    """CG-BERT's self-attention: softmax attention after gates mix a context into queries and keys.

    The output is softmax(Q' K'^T / sqrt(D)) V, with

        Q' = (1 - lq) Q + lq Qc,  lq = sigmoid(Q . vq + Qc . vqc + bq),  and K' in the same way.

    Q and Qc are query and context query; vq, vqc and bq are the weights and the bias of the query gate.
    Follows Wu and Ong (2021) and their released code: there is no dropout on the context query and key, and `forward`
    returns one tensor. The softmax attention is torch.nn.functional.scaled_dot_product_attention.
    `apply_fused_attention` replaces a module by this class if it has the nine layers of NAMINGS and returns one tensor.
    """

    def configure(self, *, hidden_size: int, num_heads: int, context_projection: str, naming: str) -> None:
        """Sets all attributes except the layers and `dropout`, and registers `accept_other_naming` as a load hook."""
        self.hidden_size = hidden_size
        self.num_heads = num_heads
        self.context_projection = context_projection
        self.naming = naming
        self.register_load_state_dict_pre_hook(accept_other_naming)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        device: torch.device | str | None = None,
        context: Tensor | None = None,
        *,
        C_embed: Tensor | None = None,
        context_embedded: Tensor | None = None,
    ) -> Tensor:
        """Computes the attention within each sequence; in training, dropout acts on the attention map.

        Args:
            hidden_states: (B, L, hidden_size).
            attention_mask: None, a key mask or a score mask, as of `FusedQuasiAttention.forward`.
            device: not used. If it is not None, its type must be that of hidden_states. The published models pass it.
            context: (B, L, hidden_size), one context per token.
            C_embed: another name of `context` in published code; pass exactly one of the three names.
            context_embedded: another name of `context` in published code.

        Returns:
            The output, (B, L, hidden_size); 0 for a query that sees no key.
        """
        context = one_context((context, C_embed, context_embedded), hidden_states, attention_mask, device)
        self.check_inputs(hidden_states, context, device, packed=False)
        heads = (x.transpose(1, 2) for x in self.project(hidden_states, context))
        query, key, value, context_query, context_key = heads
        query, key = self._mixed("query", query, context_query), self._mixed("key", key, context_key)
        mask = mask_for_scores(attention_mask, query)
        if mask is not None and mask.is_floating_point():
            mask = mask.masked_fill(hides(mask), -torch.inf)
        out = nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=self.dropout.p if self.dropout.training else 0.0
        )
        return out.transpose(1, 2).flatten(-2)

    def _mixed(self, side: str, x: Tensor, context: Tensor) -> Tensor:
        """Mixes x and context, (B, H, L, D) each: (1 - l) x + l context with the gate l of `side`, query or key."""
        gate = self.gate_logits(side, x, context, 1).sigmoid().unsqueeze(-1)
        return torch.lerp(x, context, gate)

    def extra_repr(self) -> str:
        """The options, for the module's printed form."""
        return (
            f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, "
            f"context_projection={self.context_projection!r}, naming={self.naming!r}"
        )
