"""Attribution of a predicted logit to tokens: gradient sensitivity, and layer-wise relevance propagation.

Relevance is computed as in the analysis released with QACG-BERT. The relevance of a value is its share of a logit. A
rule computes the relevance of an input from the relevance R of an output. The attention rule is one matrix product, so
that no L x L x D tensor is materialised.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qacg_kernels.attention_layers import autocast_enabled
from qacg_models.errors import InputError
from qacg_models.layers.attention import merge_heads, split_heads
from qacg_models.layers.embeddings import AttentionPooler
from qacg_models.models.base import EncoderPreTrainedModel
from qacg_models.utils.fields import check_number

_INTEGERS = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)


def token_sensitivity(
    model: EncoderPreTrainedModel, batch: Mapping[str, Tensor], target: int | Tensor | None = None
) -> Tensor:
    """Returns the squared norm of d logit / d embedding (after LayerNorm) for every token.

    Args:
        model: a sequence classifier of this package, which is run in evaluation mode; parameter gradients do not
            change. No other thread may run the model at the same time.
        batch: keyword arguments of the model's forward. The batch is padded and has no text_ids. Its labels are
            ignored.
        target: class of the logit: an integer for all examples, or (B,) integers; None: for each example the class with
            the highest logit.

    Returns:
        (B, L) squared norms, 0 for padding after the last token.

    Raises:
        TypeError: `model` is not a sequence classifier of this package, or `target` or the batch has a wrong type.
        ValueError: `target` has a wrong shape or dtype or is not a class of the model, or the model rejects the batch.

    Example:
        >>> import torch
        >>> from qacg_models import BertForSequenceClassification, PlainBertConfig
        >>> config = PlainBertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
        >>> model, batch = BertForSequenceClassification(config), {"input_ids": torch.tensor([[2, 5, 6, 3]])}
        >>> token_sensitivity(model, batch).shape
        torch.Size([1, 4])
    """
    leaves = []

    def cut(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        # A leaf has a gradient even if all parameters are frozen, and none is computed for the embedding tables.
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    with _evaluation_mode(model), torch.inference_mode(False), torch.enable_grad():
        handle = model.base_model.embeddings.register_forward_hook(cut)
        try:
            logits = _classify(model, batch)
        finally:
            handle.remove()
        (gradient,) = torch.autograd.grad(logits, leaves[0], grad_outputs=_one_hot(logits, target))
    return gradient.square().sum(-1)


def _classify(model: EncoderPreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the (B, C) logits of a sequence classifier; labels of the batch are ignored."""
    return model(**{name: value for name, value in batch.items() if name != "labels"}, return_dict=True).logits


@contextmanager
def _evaluation_mode(model: EncoderPreTrainedModel) -> Iterator[None]:
    """Sets evaluation mode and `config.unpad = False` inside the context, and restores the earlier values."""
    if not isinstance(model, EncoderPreTrainedModel) or not hasattr(model, "classifier"):
        raise TypeError(f"model: expected a sequence classifier of this package, got {type(model).__name__}")
    training = [module for module in model.modules() if module.training]
    unpad, model.config.unpad = model.config.unpad, False  # attributions need every token of the input
    model.eval()
    try:
        yield
    finally:
        model.config.unpad = unpad
        for module in training:
            module.training = True


def _one_hot(logits: Tensor, target: int | Tensor | None) -> Tensor:
    """Returns (B, C), in the dtype of `logits`, with 1 at the target class of each row, and 0 elsewhere."""
    rows, classes = logits.shape
    if target is None:
        target = logits.argmax(-1)
    target = torch.as_tensor(target, device=logits.device)
    if target.dtype not in _INTEGERS or target.dim() > 1 or (target.dim() == 1 and len(target) != rows):
        raise ValueError(
            f"target: expected an integer or {rows} integers, got {target.dtype} of shape {tuple(target.shape)}"
        )
    target = target.long()  # torch cannot compute the minimum of some unsigned dtypes
    if target.numel() and not 0 <= int(target.min()) <= int(target.max()) < classes:
        raise ValueError(
            f"target: expected classes from 0 to {classes - 1}, got {int(target.min())} to {int(target.max())}"
        )
    return nn.functional.one_hot(target.expand(rows), classes).to(logits.dtype)


def gradient_relevance(output: Tensor, inputs: Tensor, relevance: Tensor, eps: float = 1e-7) -> Tensor:
    """Returns the relevance of a module's inputs x, given the relevance R of its outputs y.

    The relevance is `|x * d(s . y)/dx|` with s = R / y. It is scaled so that its sum over the last dimension equals
    that of R. For attention, use `attention_relevance`.

    Args:
        output: y, (..., N), computed from `inputs` with autograd enabled.
        inputs: x, (..., M).
        relevance: R, (..., N).
        eps: added to x, and to both divisors: y, and the sum of the unscaled relevance. If a divisor is 0 nevertheless,
            the result is NaN.

    Returns:
        (..., M) relevance, without gradient. Its sum over the last dimension equals the sum of `relevance`, up to
        `eps`. If all gradients are 0, so is the relevance, because the inputs do not change the outputs.

    Raises:
        TypeError: `eps` is not a number.
        ValueError: the shapes do not match, `inputs` does not require gradients, `output` was not computed from
            `inputs` with autograd enabled, or `eps` is not finite.

    Example:
        >>> import torch
        >>> inputs = torch.randn(2, 3, requires_grad=True)
        >>> output = inputs @ torch.randn(3, 4)
        >>> gradient_relevance(output, inputs, relevance=torch.rand(2, 4)).shape
        torch.Size([2, 3])
    """
    check_number("eps", eps)
    _check_shape("inputs", inputs, (*output.shape[:-1], *inputs.shape[-1:]))
    _check_shape("relevance", relevance, output.shape)
    if not (inputs.requires_grad and output.requires_grad):
        raise ValueError(
            "output: expected a tensor computed from `inputs` with autograd enabled, got one without gradient. Call "
            "inputs.requires_grad_() before."
        )
    output_share = relevance / (output.detach() + eps)
    (gradient,) = torch.autograd.grad(output, inputs, grad_outputs=output_share, retain_graph=True, allow_unused=True)
    if gradient is None:
        raise ValueError("output: expected a tensor computed from `inputs`, got one that does not depend on them")
    parts = ((inputs.detach() + eps) * gradient).abs()
    return parts * (relevance.sum(-1, keepdim=True) / (parts.sum(-1, keepdim=True) + eps))


def attention_relevance(
    output: Tensor, value: Tensor, attention: Tensor, relevance: Tensor, eps: float = 1e-6
) -> Tensor:
    """Returns the relevance of the values V of attention, given the relevance R of its output O = A V.

    In each dimension d, value j receives the share A_ij V_jd / O_id of the relevance of output i. To avoid a division
    by zero, e = eps sign(O) is added, with sign(0) = 1: the share is (A_ij V_jd + e_id / (S D)) / (O_id + e_id). Summed
    over i, the relevance is V o (A^T M) + sum_i e o M / (S D), with M = R / (O + e) and the elementwise product o.

    Args:
        output: O, (..., L, D).
        value: V, (..., S, D).
        attention: A, (..., L, S); entries can be negative.
        relevance: R, (..., L, D).
        eps: absolute value of e.

    Returns:
        (..., S, D) relevance of the values.

    Raises:
        TypeError: `eps` is not a number, or the dtype of `attention` is not the one to which `output` and `relevance`
            promote. Autocast accepts any floating-point dtype of `attention`.
        ValueError: the shapes do not match, or `eps` is negative or not finite.

    Example:
        >>> import torch
        >>> attention, value = torch.rand(3, 5), torch.randn(5, 4)
        >>> attention_relevance(attention @ value, value, attention, relevance=torch.rand(3, 4)).shape
        torch.Size([5, 4])
    """
    check_number("eps", eps, at_least=0.0)
    if attention.dim() < 2:
        raise ValueError(f"attention: expected shape (..., L, S), got {tuple(attention.shape)}")
    queries, keys = attention.shape[-2:]
    _check_shape("value", value, (*value.shape[:-2], keys, *value.shape[-1:]))
    _check_shape("output", output, (*output.shape[:-2], queries, value.shape[-1]))
    _check_shape("relevance", relevance, output.shape)
    dtype = torch.promote_types(output.dtype, relevance.dtype)
    if attention.dtype != dtype and not autocast_enabled(attention.device.type):
        raise TypeError(f"attention: expected dtype {dtype} like output and relevance, got {attention.dtype}")
    stabiliser = torch.where(output >= 0, eps, -eps)
    message = relevance / (output + stabiliser)
    spread = (stabiliser * message).sum(-2, keepdim=True) / (value.shape[-2] * value.shape[-1])
    return value * (attention.transpose(-1, -2) @ message) + spread


def _check_shape(name: str, t: Tensor, shape: tuple[int, ...]) -> None:
    if t.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(t.shape)}")


@dataclass(frozen=True)
class LayerwiseRelevance:
    """Relevance of every token for one logit per example.

    Attributes:
        tokens: (B, L) relevance at the embeddings. The sum over the tokens of an example equals its `logit`, up to the
            `eps` of the rules.
        layers: num_layers + 1 tensors (B, L): relevance at the embeddings (equal to `tokens`), and after each layer, in
            the order of the layers.
        logit: (B,) the logits whose values were distributed over the tokens.
    """

    tokens: Tensor
    layers: tuple[Tensor, ...]
    logit: Tensor


def layerwise_relevance(
    model: EncoderPreTrainedModel, batch: Mapping[str, Tensor], target: int | Tensor | None = None
) -> LayerwiseRelevance:
    """Returns the share of every token in a logit, propagated from the classifier back to the embeddings.

    As in the released analysis, LayerNorm and activations leave relevance unchanged. At a residual connection, all
    relevance goes to the dense branch and none to the residual. In attention, all relevance goes to the values;
    queries, keys and context receive none. Attention maps are recomputed for one layer at a time.

    Args:
        model: a sequence classifier of this package, which is run in evaluation mode. No other thread may run the model
            at the same time.
        batch: keyword arguments of the model's forward. The batch is padded and has no text_ids. Its labels are
            ignored.
        target: class whose logit is distributed: an integer for all examples, or (B,) integers; None: for each example
            the class with the highest logit.

    Returns:
        Relevance by token and layer.

    Raises:
        TypeError: `model` is not a sequence classifier of this package, or `target` or the batch has a wrong type.
        ValueError: `target` has a wrong shape or dtype or is not a class of the model, or the model rejects the batch.
        InputError: the layers of the model are those of ModernBERT.

    Example:
        >>> import torch
        >>> from qacg_models import BertForSequenceClassification, PlainBertConfig
        >>> config = PlainBertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
        >>> model, batch = BertForSequenceClassification(config), {"input_ids": torch.tensor([[2, 5, 6, 3]])}
        >>> layerwise_relevance(model, batch).tokens.shape
        torch.Size([1, 4])
    """
    with _evaluation_mode(model), torch.inference_mode(False), torch.no_grad():
        bert: Any = model.base_model
        if bert.config.modernbert is not None:
            raise InputError(
                "model: expected layers of BERT, got those of ModernBERT, whose gates have no rule of relevance. Use "
                "token_sensitivity."
            )
        layers = list(bert.encoder.layer)
        with _recorded([*layers, bert.pooler, bert.pooler.dense, model.classifier]) as seen:
            logits = _classify(model, batch)
        start = _one_hot(logits, target) * logits
        relevance = _through(model.classifier, seen[model.classifier].args[0], start)
        relevance = _through_pooler(bert.pooler, seen, relevance)
        per_layer = [relevance.sum(-1)]
        for layer in reversed(layers):
            relevance = _through_layer(layer, seen[layer].args, model.config.num_attention_heads, relevance)
            per_layer.append(relevance.sum(-1))
    return LayerwiseRelevance(per_layer[-1], tuple(reversed(per_layer)), start.sum(-1))


class _Call(NamedTuple):
    args: tuple
    out: Any


@contextmanager
def _recorded(modules: list[nn.Module]) -> Iterator[dict[nn.Module, _Call]]:
    """Yields a dictionary: for each module called inside the context, arguments and result of the last call."""
    calls: dict[nn.Module, _Call] = {}

    def record(module: nn.Module, args: tuple, out: object) -> None:
        calls[module] = _Call(args, out)

    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _through(function, x: Tensor, relevance: Tensor) -> Tensor:
    """Recomputes function(x) with autograd, and returns the `gradient_relevance` of x."""
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        return gradient_relevance(function(leaf), leaf, relevance)


def _through_pooler(pooler: Any, seen: Mapping[nn.Module, _Call], relevance: Tensor) -> Tensor:
    """Returns the relevance of the tokens, (B, L, hidden), from the relevance of the pooled output, (B, hidden)."""
    hidden_states, visible = seen[pooler].args
    summary = seen[pooler.dense].args[0]
    relevance = _through(pooler.dense, summary, relevance)
    if isinstance(pooler, AttentionPooler):
        weights = pooler.weights(hidden_states, visible).unsqueeze(1)
        return attention_relevance(summary.unsqueeze(1), hidden_states, weights, relevance.unsqueeze(1))
    spread = torch.zeros_like(hidden_states)
    spread[:, 0] = relevance
    return spread


def _through_layer(layer: Any, args: tuple, heads: int, relevance: Tensor) -> Tensor:
    """Returns the relevance of an encoder layer's input from the relevance of its output, both (B, L, hidden)."""
    attention = layer.attention
    parts = [attention.self, attention.self.value, attention.output, attention.output.dense]
    parts += [layer.intermediate.dense, layer.output, layer.output.dense]
    with _recorded(parts) as seen:
        layer(*args[:-1], True)  # the last argument selects that attention maps are returned
    relevance = _through_block_end(layer.output, seen, relevance)
    relevance = _through(layer.intermediate.dense, seen[layer.intermediate.dense].args[0], relevance)
    relevance = _through_block_end(attention.output, seen, relevance)
    value = seen[attention.self.value]
    attended, attention_map = seen[attention.self].out[:2]
    relevance = attention_relevance(
        split_heads(attended, heads), split_heads(value.out, heads), attention_map, split_heads(relevance, heads)
    )
    return _through(attention.self.value, value.args[0], merge_heads(relevance))


def _through_block_end(block: Any, seen: Mapping[nn.Module, _Call], relevance: Tensor) -> Tensor:
    """Returns the relevance of x from the relevance of LayerNorm(residual + dense(x))."""
    dense = seen[block.dense]
    residual = seen[block].args[1]
    relevance = _through(lambda branch: branch + residual, dense.out, relevance)
    return _through(block.dense, dense.args[0], relevance)
