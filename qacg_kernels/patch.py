"""Fused attention for an existing model, whose context self-attention is found by its attributes."""

from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from qacg_kernels.context_mixing import FusedContextMixing
from qacg_kernels.dispatch import NAMES as BACKEND_NAMES
from qacg_kernels.nn import CONTEXT_ROLES, GATE_ROLES, NAMINGS, ContextAttention, FusedQuasiAttention, check_choice


class _Found(NamedTuple):
    """A module to be replaced: its path, and what it becomes."""

    where: str
    module: nn.Module
    settings: dict[str, object]
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
    """Makes every context self-attention of an existing model a fused one, in place.

    A module is recognised by its attributes: the nine layers of either naming. What it computes is told by calling it
    once on three random tokens: one with five results becomes a `FusedQuasiAttention`, one with a single tensor, as
    CG-BERT's, a `FusedContextMixing`. It stays the object it was and only changes class, so parameters, state-dict
    keys, device, dtype, training mode, hooks and the handles that remove them, optimizers, and references from
    elsewhere all stay valid. Head size, number of heads, form of the context projection, biases and dropout are read
    from its layers.

    Args:
        model: any module; may itself be a context self-attention.
        output_attentions: True: the maps are returned on every call, as before. False: an `AbsentMap` is in each
            place, a tensor of shape (B, H, 0, 0) which can be cloned and moved for nothing, so that a model that
            collects the maps of every layer runs unchanged; reading one raises a RuntimeError that names this
            argument. Lambda is always returned.
        quasi_scale, beta, gamma: the scalars that the replaced code has written in it.
        backend: as for `FusedQuasiAttention`.
        verify: before changing anything, compare the results of each module with those of its replacement. False
            leaves out this comparison alone: both are called nevertheless, so that nothing is installed that its
            model cannot call. Modules on the meta device have no values to compare.

    Returns:
        How many modules were replaced. Those that are fused already do not count.

    Raises:
        ValueError: a module with these attributes has layers of other shapes, is called in another way, returns
            something else or (with verify) computes something else; or an argument is given that CG-BERT's attention
            has no use for. The model is then unchanged.
    """
    check_choice("backend", backend, BACKEND_NAMES)
    chosen = {"quasi_scale": quasi_scale, "beta": beta, "gamma": gamma, "backend": backend}
    chosen["output_attentions"] = output_attentions
    found = []
    for path, module in model.named_modules():
        if isinstance(module, ContextAttention):
            continue
        for naming, names in NAMINGS.items():
            if all(isinstance(getattr(module, name, None), nn.Module) for name in names.values()):
                where = path or type(module).__name__
                found.append(_Found(where, module, _settings(where, module, naming), _dropout_of(where, module)))
    kinds = [_try(each, chosen, verify) for each in found]
    for kind, (_, module, settings, dropout) in zip(kinds, found):
        module.__class__ = kind
        _configure(module, settings, chosen)
        module.dropout = dropout
    return len(found)


def _configure(module: ContextAttention, settings: dict[str, object], chosen: dict[str, object]) -> None:
    if isinstance(module, FusedQuasiAttention):
        module.configure(**settings, **chosen)
        module.stands_in_for_maps = True
    else:
        module.configure(**settings)


def _settings(where: str, module: nn.Module, naming: str) -> dict[str, object]:
    """What the layers of `module` say about the fused attention that it would become."""
    if "forward" in vars(module):
        raise ValueError(f"{where}: has a forward set on the instance, which a new class would not replace")
    size = {}
    for role, name in NAMINGS[naming].items():
        layer = getattr(module, name)
        if not (hasattr(layer, "in_features") and hasattr(layer, "out_features")):
            raise ValueError(f"{where}.{name}: got a {type(layer).__name__}, wanted a linear layer")
        size[role] = (layer.in_features, layer.out_features)
    hidden_size, head_dim = size["query"][0], size["gate_query"][0]
    num_heads = hidden_size // head_dim
    context_projection = "hidden" if size["context_query"][0] == hidden_size else "head"
    context_size = hidden_size if context_projection == "hidden" else head_dim
    gate_rows = num_heads if size["gate_query"][1] == num_heads else 1
    wanted = {
        **dict.fromkeys(("query", "key", "value"), (hidden_size, num_heads * head_dim)),
        **dict.fromkeys(CONTEXT_ROLES, (context_size, context_size)),
        **dict.fromkeys(GATE_ROLES, (head_dim, gate_rows)),
    }
    for role, (size_in, size_out) in wanted.items():
        if size[role] != (size_in, size_out):
            raise ValueError(
                f"{where}.{NAMINGS[naming][role]}: got a layer from {size[role][0]} to {size[role][1]}, "
                f"wanted {size_in} to {size_out}, hidden size being {hidden_size} and head size {head_dim}"
            )
    return {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "context_projection": context_projection,
        "naming": naming,
    }


def _dropout_of(where: str, module: nn.Module) -> nn.Dropout:
    named = getattr(module, "dropout", None)
    if isinstance(named, nn.Dropout):
        return named
    if isinstance(named, float | int):
        return nn.Dropout(named).train(module.training)
    others = [child for child in module.children() if isinstance(child, nn.Dropout)]
    if len(others) > 1:
        raise ValueError(f"{where}: has {len(others)} dropouts and none called 'dropout', wanted one for A")
    return others[0] if others else nn.Dropout(0.0).train(module.training)


_CALL = "(hidden_states, additive mask, device, context)"


def _try(found: _Found, chosen: dict[str, object], verify: bool) -> type[ContextAttention]:
    """The class that a module is to become, after a call of both; raises ValueError where it can become none."""
    where, module, settings, _ = found
    weight = getattr(module, NAMINGS[settings["naming"]]["query"]).weight
    generator = torch.Generator().manual_seed(0)
    # Large inputs: at the usual initial weights small ones give scores so flat that every formula agrees.
    tokens, context = (8 * torch.randn(2, 1, 3, settings["hidden_size"], generator=generator)).to(weight)
    mask = torch.tensor([0.0, 0.0, -10000.0]).view(1, 1, 1, 3).to(weight)
    with torch.no_grad(), _quiet(module):
        try:
            theirs = module.forward(tokens, mask, tokens.device, context)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(f"{where}: cannot be called as {_CALL}: {error}") from error
        kind = FusedContextMixing if isinstance(theirs, Tensor) else FusedQuasiAttention
        if kind is FusedContextMixing:
            _check_unused(where, chosen)
        elif not isinstance(theirs, tuple) or len(theirs) != 5:
            got = f"{len(theirs)} values" if isinstance(theirs, tuple) else type(theirs).__name__
            raise ValueError(
                f"{where}: returns {got}, wanted the five of FusedQuasiAttention.forward or CG-BERT's one tensor"
            )
        ours = kind.__new__(kind)
        nn.Module.__init__(ours)
        ours._modules.update(module._modules)
        _configure(ours, settings, chosen | {"output_attentions": False})
        ours.dropout = nn.Dropout(0.0).eval()
        try:
            mine = ours(tokens, mask, tokens.device, context)
        except (TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise ValueError(f"{where}: {kind.__name__} cannot run with its layers: {error}") from error
    mine, theirs = (x if isinstance(x, Tensor) else x[0] for x in (mine, theirs))
    if mine.shape != theirs.shape:
        raise ValueError(f"{where}: returns shape {tuple(theirs.shape)}, wanted {tuple(mine.shape)} as it was given")
    if verify and not weight.is_meta:
        _compare(where, mine, theirs, kind)
    return kind


def _compare(where: str, mine: Tensor, theirs: Tensor, kind: type[ContextAttention]) -> None:
    # The same formula in another order of operations was seen to differ by 5e-7 in float32 and by 1.4e-2 in bfloat16;
    # half of quasi_scale, beta or gamma by 4e-3 at BERT's initial weights (not seen in 16 bits), by 0.1 at larger ones.
    tolerance = 1e-3 if mine.dtype in (torch.float32, torch.float64) else 5e-2
    error = float((theirs - mine).abs().max() / theirs.abs().max().clamp_min(1e-12))
    if not error <= tolerance:
        advice = "other quasi_scale, beta or gamma" if kind is FusedQuasiAttention else "a gate that is no sigmoid"
        raise ValueError(
            f"{where}: has the layers of a context self-attention but computes something else than "
            f"{kind.__name__}: relative difference {error:.1e}, wanted at most {tolerance:.0e}; {advice}?"
        )


def _check_unused(where: str, chosen: dict[str, object]) -> None:
    usual = {"quasi_scale": 1.0, "beta": 1.0, "gamma": 1.0, "backend": "auto", "output_attentions": False}
    for name, value in chosen.items():
        if value != usual[name]:
            raise ValueError(
                f"{name}: got {value!r}, wanted it left out: {where} is CG-BERT's attention, which returns no maps and "
                "is run by torch's scaled_dot_product_attention"
            )


@contextmanager
def _quiet(module: nn.Module):
    """Evaluation mode without forward hooks, for a call that nobody else should notice."""
    saved = [(m, m.training, m._forward_hooks, m._forward_pre_hooks) for m in module.modules()]
    try:
        for m, *_ in saved:
            m.training, m._forward_hooks, m._forward_pre_hooks = False, {}, {}
        yield
    finally:
        for m, *state in saved:
            m.training, m._forward_hooks, m._forward_pre_hooks = state
