"""Gradient sensitivity of a logit to the embedding of each token."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from qacg_models.models.pretrained import EncoderPreTrainedModel

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
        >>> from qacg_models import QACGBertConfig, QACGBertForSequenceClassification
        >>> sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = QACGBertForSequenceClassification(QACGBertConfig(contexts=2, intermediate_size=32, **sizes))
        >>> batch = {"input_ids": torch.tensor([[2, 5, 6, 3]]), "context_ids": torch.tensor([1])}
        >>> token_sensitivity(model, batch).shape
        torch.Size([1, 4])
    """
    with evaluation_mode(model), _leaf_embeddings(model) as leaves:
        logits = classify(model, batch)
        weights = one_hot(logits, target)
        (gradient,) = torch.autograd.grad(logits, leaves[0], grad_outputs=weights)
    return gradient.square().sum(-1)


def embedding_gradient(model: EncoderPreTrainedModel, batch: Mapping[str, Tensor], weights: Tensor) -> Tensor:
    """Returns the gradient of sum(weights * logits) with respect to the output of the embeddings, after LayerNorm.

    The result equals `backward_gradient(sensitivity_grads)` of the code released with QACG-BERT.

    Args:
        model: a sequence classifier of this package, which is run in evaluation mode; parameter gradients do not
            change. No other thread may run the model at the same time.
        batch: keyword arguments of the model's forward. The batch is padded and has no text_ids. Its labels are
            ignored.
        weights: (B, num_labels) weights of the logits.

    Returns:
        (B, L, hidden_size) gradient.

    Raises:
        TypeError: `model` is not a sequence classifier of this package, or the batch has a wrong type.
        ValueError: `weights` is not a tensor of the shape of the logits, or the model rejects the batch.

    Example:
        >>> import torch
        >>> from qacg_models import QACGBertConfig, QACGBertForSequenceClassification
        >>> sizes = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        >>> model = QACGBertForSequenceClassification(QACGBertConfig(contexts=2, intermediate_size=32, **sizes))
        >>> batch = {"input_ids": torch.tensor([[2, 5, 6, 3]]), "context_ids": torch.tensor([1])}
        >>> embedding_gradient(model, batch, torch.ones(1, 2)).shape
        torch.Size([1, 4, 16])
    """
    with evaluation_mode(model), _leaf_embeddings(model) as leaves:
        logits = classify(model, batch)
        if not isinstance(weights, Tensor) or weights.shape != logits.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"weights: expected a tensor of shape {tuple(logits.shape)}, got {got}")
        (gradient,) = torch.autograd.grad(logits, leaves[0], grad_outputs=weights.to(logits))
    return gradient


def classify(model: EncoderPreTrainedModel, batch: Mapping[str, Tensor]) -> Tensor:
    """Returns the (B, C) logits of a sequence classifier; labels of the batch are ignored."""
    return model(**{name: value for name, value in batch.items() if name != "labels"}, return_dict=True).logits


@contextmanager
def evaluation_mode(model: EncoderPreTrainedModel) -> Iterator[None]:
    """Sets evaluation mode and `config.unpad = False` inside the context, and restores the earlier values at the end.

    Raises:
        TypeError: `model` is not a sequence classifier of this package.
    """
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


def one_hot(logits: Tensor, target: int | Tensor | None) -> Tensor:
    """Returns (B, C), in the dtype of `logits`, with 1 at the target class of each row, and 0 elsewhere.

    Args:
        logits: (B, C).
        target: an integer for all rows, (B,) integers, or None for the class with the highest logit of each row.

    Raises:
        TypeError: `target` is neither a number nor a sequence of numbers.
        ValueError: `target` has a wrong shape or dtype, or is out of range.
    """
    rows, classes = logits.shape
    if target is None:
        target = logits.argmax(-1)
    try:
        target = torch.as_tensor(target, device=logits.device)
    except (TypeError, ValueError, RuntimeError):  # not a number, lists of different lengths, or a number too large
        raise TypeError(f"target: expected an integer or {rows} integers, got {target!r}") from None
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


@contextmanager
def _leaf_embeddings(model: EncoderPreTrainedModel) -> Iterator[list[Tensor]]:
    """Makes the output of the embeddings a leaf of the autograd graph in each forward.

    The gradient of this output is then available even if all parameters are frozen, and no gradient is computed for the
    embedding tables.

    Yields:
        A list, to which each forward appends the output (B, L, hidden_size) of the embeddings.
    """
    leaves = []

    def cut(module: nn.Module, args: tuple, out: Tensor) -> Tensor:
        leaves.append(out.detach().requires_grad_())
        return leaves[-1]

    handle = model.base_model.embeddings.register_forward_hook(cut)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield leaves
    finally:
        handle.remove()
