"""A context layer and the projections after it, separate or folded (qacg_kernels/MATH.md).

The context layer computes c = W [E ; X] + b + E from the context embedding E and the hidden states X; W = [We | Wx].
The context query is Uq c + uq. It is the sum of a token part and a question part:

- The token part is Uq Wx X. If Uq Wx is folded into one matrix, it takes one product per token. Otherwise it takes two,
  and shares the product Wx X with the context key.
- The question part is Uq (We E + b + E) + uq. It is the same for all tokens of a question. (A question is a text with
  one context.)

The context key has the same two parts.

Query, key, value and the token parts do not depend on E. In the first layer with a context, `project_apart` and
`ContextFold` therefore compute them once per text, whatever the number of questions about the text (`Projections`).

`fold_context` folds the weights once, for inference. `project_apart` folds them within a call, if the call has many
tokens. The numbers of products with hidden x hidden matrices, for the context projection "hidden", are:

| weights | per token | per question |
|---|---:|---:|
| separate, `mix_context` | 6 | 1 |
| separate, `project_apart` | 6 | 3 |
| folded, `project_apart` | 5 | 3 |
| folded, `fold_context` | 5 | 2 |
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from qacg_kernels.attention_layers import CONTEXT_ROLES, plain_parameters
from qacg_models.modules.packing import Packing, SharedTexts, first_tokens, per_token

_OWN_ROLES = ("query", "key", "value")


class Projections(NamedTuple):
    """The five projections of a self-attention with a context, as token and question parts.

    The projections are query, key, value, context query and context key. A question is a text with one context. A
    context query or context key is the sum of a token part and a question part. Query, key and value have no question
    part.

    Attributes:
        tokens: the token parts of the five projections, for the tokens of the texts: (B, L, H, D) or packed (T, H, D)
            each.
        questions: the question parts of context query and context key, which are the same for all tokens of a
            question: (N, H, D) each. None: `tokens` has the sums of both parts.
    """

    tokens: tuple[Tensor, ...]
    questions: tuple[Tensor, ...] | None

    def heads(self, layout: Packing | Tensor | None, texts: SharedTexts | None) -> tuple[Tensor, ...]:
        """Returns the five projections of the questions, (N, L, H, D) or packed (T, H, D) each.

        Args:
            layout: the packing of the questions; any other value for a padded batch.
            texts: the text of each question; None: every question has a text of its own.
        """
        *own, context_query, context_key = self.tokens if texts is None else map(texts.gathered, self.tokens)
        if self.questions is None:
            return *own, context_query, context_key
        # Not in place: in an exported graph, an addition in place would be a slow scatter.
        context = zip((context_query, context_key), self.questions)
        return *own, *(x + per_token(part, x, layout) for x, part in context)

    def first_tokens(self, layout: Packing, texts: SharedTexts | None) -> tuple[Tensor, ...]:
        """Returns the five projections for the first token of each question, (N, 1, H, D) each.

        Args:
            layout: the packing of the questions.
            texts: the text of each question; None: every question has a text of its own.
        """
        first = tuple(first_tokens(x, layout, texts).unsqueeze(1) for x in self.tokens)
        return Projections(first, self.questions).heads(None, None)

    def padded_keys(self, layout: Packing, texts: SharedTexts | None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns key, value and context key, padded to (N, max_seqlen, H, D) each.

        The values at padding are finite.

        Args:
            layout: the packing of the questions.
            texts: the text of each question; None: every question has a text of its own.
        """
        _, key, value, _, context_key = self.tokens
        packing = layout if texts is None else texts.packing
        padded = [packing.pad(x) for x in (key, value, context_key)]
        if texts is not None:
            padded = [x.index_select(0, texts.text_ids) for x in padded]
        key, value, context_key = padded
        if self.questions is None:
            return key, value, context_key
        return key, value, context_key + per_token(self.questions[1], context_key, None)


class ContextFold(nn.Module):
    """The folded weights of a context layer and of the projections after it.

    The weights are non-persistent buffers.

    Args:
        attention: a self-attention with `layer(role)`, `num_heads` and `context_projection`.
        context_layer: the linear layer that mixes the context for `attention`, W (hidden, 2 hidden) and b (hidden).

    Raises:
        TypeError: a projection or the context layer must be called (see `plain_parameters`).

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> encoder = QACGBertModel(config).eval().encoder
        >>> fold = ContextFold(encoder.layer[0].attention.self, encoder.context_layer[0])
        >>> fold(torch.zeros(1, 5, 32), torch.zeros(1, 32)).tokens[0].shape
        torch.Size([1, 5, 2, 16])
    """

    def __init__(self, attention: nn.Module, context_layer: nn.Linear):
        super().__init__()
        own, context = ([_foldable(role, attention.layer(role)) for role in r] for r in (_OWN_ROLES, CONTEXT_ROLES))
        mixing, mixing_bias = _foldable("context layer", context_layer)
        self.num_heads = attention.num_heads
        repeats = attention.num_heads if attention.context_projection == "head" else 1
        with torch.no_grad():
            # In float64, so that the only rounding is that of the folded weights.
            context_weight, token_weight = mixing.double().chunk(2, 1)
            outer = torch.cat([torch.block_diag(*[weight.double()] * repeats) for weight, _ in context])
            outer_bias = torch.cat([bias.double().repeat(repeats) for _, bias in context])
            identity = torch.eye(*context_weight.shape, dtype=torch.float64, device=context_weight.device)
            folded = {
                "weight": torch.cat([*(weight.double() for weight, _ in own), outer @ token_weight]),
                "bias": torch.cat([*(bias.double() for _, bias in own), torch.zeros_like(outer_bias)]),
                "context_weight": outer @ (context_weight + identity),
                "context_bias": outer @ mixing_bias.double() + outer_bias,
            }
        for name, value in folded.items():
            self.register_buffer(name, value.to(mixing.dtype), persistent=False)

    def forward(self, hidden_states: Tensor, context_embedding: Tensor) -> Projections:
        """Returns the five projections, with separate token and question parts.

        Args:
            hidden_states: of the texts, (B, L, hidden) or packed (T, hidden).
            context_embedding: of the questions, (N, hidden).
        """
        tokens = F.linear(hidden_states, self.weight, self.bias)
        questions = F.linear(context_embedding, self.context_weight, self.context_bias)
        sizes = (tokens, len(_OWN_ROLES) + len(CONTEXT_ROLES)), (questions, len(CONTEXT_ROLES))
        return Projections(*(x.unflatten(-1, (roles, self.num_heads, -1)).unbind(-3) for x, roles in sizes))


def mix_context(
    context_layer: nn.Linear, context_embedding: Tensor, hidden_states: Tensor, layout: Packing | Tensor | None
) -> Tensor:
    """Returns the context of each token, W [E ; X] + b + E. E is multiplied once per sequence.

    A context layer that must be called (see `plain_parameters`) is called with [E ; X] of every token.

    Args:
        context_layer: W (hidden, 2 hidden) and b (hidden).
        context_embedding: E, (B, hidden).
        hidden_states: X, (B, L, hidden), or (T, hidden) with a packing.
        layout: the packing; any other value for a padded batch.

    Returns:
        A tensor in the shape of hidden_states.

    Example:
        >>> mix_context(nn.Linear(16, 8), torch.zeros(2, 8), torch.zeros(2, 5, 8), None).shape
        torch.Size([2, 5, 8])
    """
    if (parameters := plain_parameters(context_layer)) is None:
        embedding = per_token(context_embedding, hidden_states, layout).expand_as(hidden_states)
        return context_layer(torch.cat((embedding, hidden_states), -1)) + embedding
    token_weight, per_question = _split(*parameters, context_embedding)
    tokens = F.linear(hidden_states, token_weight)
    return tokens + per_token(per_question, tokens, layout)


def can_project_apart(attention: nn.Module, context_layer: nn.Module) -> bool:
    """Returns whether `project_apart` can replace `mix_context` and the projections.

    The result is False in three cases:

    - The context layer, or the layer of the context query or context key, must be called (see `plain_parameters`).
    - The context projection is "head".
    - The call is compiled or exported, since such graphs are traced for any number of tokens.

    Args:
        attention: a self-attention with `layer(role)` and `context_projection`.
        context_layer: the linear layer that mixes the context for `attention`.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> encoder = QACGBertModel(config).encoder
        >>> can_project_apart(encoder.layer[0].attention.self, encoder.context_layer[0])
        True
    """
    return (
        not torch.compiler.is_compiling()
        and attention.context_projection == "hidden"
        and _plain(context_layer, *map(attention.layer, CONTEXT_ROLES))
    )


def can_fold(attention: nn.Module, context_layer: nn.Module) -> bool:
    """Returns whether no layer that `ContextFold` replaces must be called (see `plain_parameters`).

    Args:
        attention: a self-attention with `layer(role)`.
        context_layer: the linear layer that mixes the context for `attention`.
    """
    return _plain(context_layer, *map(attention.layer, (*_OWN_ROLES, *CONTEXT_ROLES)))


def _plain(*layers: nn.Module) -> bool:
    return all(plain_parameters(layer) is not None for layer in layers)


def project_apart(
    attention: nn.Module, context_layer: nn.Linear, context_embedding: Tensor, hidden_states: Tensor
) -> Projections:
    """Returns the five projections, with separate token and question parts; differentiable.

    The weights of the context layer and of the context projections are folded if there are more tokens than
    2 * hidden. Folding saves one product with a hidden x hidden matrix per token. It adds two products of such
    matrices, which are as much work as 2 * hidden of the saved products.

    Args:
        attention: a self-attention with `layer(role)` and `num_heads`, for which `can_project_apart` is True.
        context_layer: W (hidden, 2 hidden) and b (hidden).
        context_embedding: E of the questions, (N, hidden).
        hidden_states: X of the texts, (B, L, hidden) or packed (T, hidden).

    Returns:
        The projections; their field `questions` is not None.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        >>> encoder = QACGBertModel(config).encoder
        >>> layers = encoder.layer[0].attention.self, encoder.context_layer[0]
        >>> project_apart(*layers, torch.zeros(3, 32), torch.zeros(1, 5, 32)).questions[0].shape
        torch.Size([3, 2, 16])
    """
    token_weight, per_question = _split(context_layer.weight, context_layer.bias, context_embedding)
    tokens = [attention.layer(role)(hidden_states) for role in _OWN_ROLES]
    layers = [attention.layer(role) for role in CONTEXT_ROLES]
    if hidden_states.shape[:-1].numel() > 2 * hidden_states.shape[-1]:
        tokens += [F.linear(hidden_states, layer.weight @ token_weight) for layer in layers]
    else:
        mixed = F.linear(hidden_states, token_weight)
        tokens += [F.linear(mixed, layer.weight) for layer in layers]
    questions = (F.linear(per_question, layer.weight, layer.bias) for layer in layers)
    return Projections(
        *(tuple(x.unflatten(-1, (attention.num_heads, -1)) for x in part) for part in (tokens, questions))
    )


def _split(weight: Tensor, bias: Tensor, context_embedding: Tensor) -> tuple[Tensor, Tensor]:
    """Returns Wx of the context layer, and We E + b + E, (N, hidden): one row per question."""
    context_weight, token_weight = weight.chunk(2, 1)
    return token_weight, F.linear(context_embedding, context_weight, bias) + context_embedding


def _foldable(name: str, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """Returns weight and bias of a plain linear layer; raises TypeError for another layer."""
    if (parameters := plain_parameters(layer)) is None:
        kind = type(layer)
        found = f"{kind.__module__}.{kind.__qualname__}"
        found = "one with hooks, its own forward or special weights" if kind is nn.Linear else found
        raise TypeError(f"{name}: expected a plain nn.Linear to fold, got {found}. Remove hooks, and merge adapters.")
    return parameters


def has_context_layers(model: nn.Module) -> bool:
    """Returns whether a model has context layers, which `fold_context` folds."""
    return bool(_context_encoders(model))


def fold_context(model: nn.Module) -> int:
    """Folds the context layers of a QACG-BERT or CG-BERT into projections, for inference.

    Results stay the same up to rounding. The folded weights are used in calls that record no gradients and return no
    attention maps, but not while a folded layer has a hook, an adapter or quantized weights. `train()` and
    `load_state_dict` of the model, its encoder or an encoder layer drop them. After any other change of the weights,
    also by `load_state_dict` of a part of an encoder layer, call this function again. Parameters, state dict and saved
    files stay as they are.

    Args:
        model: any module that contains the encoder of a QACG-BERT or CG-BERT, in evaluation mode.

    Returns:
        The number of folded layers.

    Raises:
        ValueError: the model is in training mode, or has no context layers.
        TypeError: a projection or a context layer must be called (see `plain_parameters`), for example because of a
            hook, an adapter or quantized weights.

    Example:
        >>> from qacg_models import QACGBertConfig, QACGBertModel
        >>> config = QACGBertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
        >>> fold_context(QACGBertModel(config).eval())
        2
    """
    if model.training:
        raise ValueError("model: expected evaluation mode, got training mode. Call model.eval() first.")
    encoders = _context_encoders(model)
    if not encoders:
        name = type(model).__name__
        raise ValueError(f"model: expected a QACG-BERT or CG-BERT, got a {name} without context layers.")
    pairs = [
        (layer, context_layer)
        for encoder in encoders
        for layer, context_layer in zip(encoder.layer, encoder.context_layer)
        if not isinstance(context_layer, nn.Identity)  # layers without a context
    ]
    folds = [(layer, ContextFold(layer.attention.self, context_layer)) for layer, context_layer in pairs]
    for layer, fold in folds:
        layer.fold = fold.eval()
    return len(folds)


def _context_encoders(model: nn.Module) -> list[Any]:
    # Not by isinstance: context_encoder.py, which defines the class, imports this module.
    return [module for module in model.modules() if isinstance(getattr(module, "context_layer", None), nn.ModuleList)]
