"""Checks of the inputs of a model.

Shapes are always checked. Values are checked on the CPU and outside torch.compile only. On a GPU, ids out of range fail
in the device-side assertion of torch's embedding.
"""

import torch
from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable

_INTEGERS = (torch.int64, torch.int32)


def check_ids(
    name: str, ids: object, shape: tuple[int, ...] | None, limit: int, field: str, packed: bool = False
) -> None:
    """Raises TypeError or ValueError unless `ids` is a valid tensor of ids.

    A valid tensor has dtype int64 or int32, the shape `shape`, and values in [0, limit).

    Args:
        name: name of the argument, for the message.
        ids: the value to check.
        shape: expected shape; None: any shape (B, L), or any shape (T) if packed.
        limit: values are 0 to limit - 1.
        field: name of the limit, for the message, such as the configuration field that sets it.
        packed: whether the batch is packed.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: expected a torch.Tensor, got {type(ids).__name__}")
    if ids.dtype not in _INTEGERS:
        raise TypeError(f"{name}: expected dtype torch.int64 or torch.int32, got dtype {ids.dtype}")
    if shape is None and ids.dim() != (1 if packed else 2):
        expected = "one dimension (T) with cu_seqlens" if packed else "two dimensions (B, L)"
        raise ValueError(f"{name}: expected {expected}, got shape {tuple(ids.shape)}")
    if shape is not None and tuple(ids.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got shape {tuple(ids.shape)}")
    if values_readable(ids) and ids.numel():
        low, high = (int(x) for x in ids.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(f"{name}: expected 0 to {limit - 1} ({field} is {limit}), got values from {low} to {high}")


def check_encoder_inputs(
    config, input_ids: object, inputs_embeds: object, token_type_ids: object, position_ids: object
) -> tuple[int, int]:
    """Checks the tokens of a padded batch and returns (B, L).

    Args:
        config: an `EncoderConfig`.
        input_ids: (B, L) with L at least 1, or None with inputs_embeds.
        inputs_embeds: (B, L, hidden_size), or None with input_ids.
        token_type_ids: None or (B, L).
        position_ids: None, (B, L) or (1, L).

    Raises:
        TypeError, ValueError: an argument is invalid, or L exceeds max_position_embeddings and position_ids is None;
            the message names the argument.
    """
    name, tokens = _check_tokens(config, input_ids, inputs_embeds, packed=False)
    batch, length = tokens.shape[:2]
    if length < 1:
        raise ValueError(f"{name}: expected at least one token per sequence, got shape {tuple(tokens.shape)}")
    if position_ids is not None:
        one_for_all = isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,)
        rows, limit = (1 if one_for_all else batch, length), config.max_position_embeddings
        check_ids("position_ids", position_ids, rows, limit, "max_position_embeddings")
    elif length > config.max_position_embeddings:
        raise ValueError(
            f"{name}: expected at most max_position_embeddings = {config.max_position_embeddings} tokens, "
            f"got sequences of {length}. Shorten the sequences."
        )
    if token_type_ids is not None:
        check_ids("token_type_ids", token_type_ids, (batch, length), config.type_vocab_size, "type_vocab_size")
    return batch, length


def check_packed_inputs(
    config, input_ids: object, inputs_embeds: object, token_type_ids: object, position_ids: object
) -> Tensor:
    """Checks the tokens of a packed batch and returns input_ids or inputs_embeds.

    Args:
        config: an `EncoderConfig`.
        input_ids: (T), or None with inputs_embeds.
        inputs_embeds: (T, hidden_size), or None with input_ids.
        token_type_ids: None or (T).
        position_ids: None or (T).

    Raises:
        TypeError, ValueError: an argument is invalid; the message names it.
    """
    _, tokens = _check_tokens(config, input_ids, inputs_embeds, packed=True)
    limits = {"position_ids": "max_position_embeddings", "token_type_ids": "type_vocab_size"}
    for name, ids in (("position_ids", position_ids), ("token_type_ids", token_type_ids)):
        if ids is not None:
            check_ids(name, ids, tuple(tokens.shape[:1]), getattr(config, limits[name]), limits[name])
    return tokens


def _check_tokens(config, input_ids: object, inputs_embeds: object, packed: bool) -> tuple[str, Tensor]:
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError(
            f"input_ids, inputs_embeds: expected exactly one, got {'neither' if input_ids is None else 'both'}"
        )
    if inputs_embeds is None:
        check_ids("input_ids", input_ids, None, config.vocab_size, "vocab_size", packed)
        return "input_ids", input_ids
    check_embeds(inputs_embeds, config.hidden_size, "hidden_size", packed)
    return "inputs_embeds", inputs_embeds


def check_embeds(embeds: object, width: int, field: str, packed: bool = False) -> None:
    """Raises TypeError or ValueError unless `embeds` is a valid tensor of embeddings.

    A valid tensor has a floating-point dtype, and the shape (B, L, width), or (T, width) if packed.

    Args:
        embeds: the value to check.
        width: expected size of the last dimension.
        field: the configuration field that sets the width, for the message.
        packed: whether the batch is packed.
    """
    if not isinstance(embeds, Tensor):
        raise TypeError(f"inputs_embeds: expected a torch.Tensor, got {type(embeds).__name__}")
    if not embeds.is_floating_point():
        raise TypeError(f"inputs_embeds: expected a floating-point dtype, got dtype {embeds.dtype}")
    if embeds.dim() != (2 if packed else 3) or embeds.shape[-1] != width:
        expected = f"({'T' if packed else 'B, L'}, {field} = {width})"
        raise ValueError(f"inputs_embeds: expected shape {expected}, got shape {tuple(embeds.shape)}")


def checked_head_mask(head_mask: object, layers: int, heads: int) -> Tensor:
    """Returns `head_mask`, (H) or (layers, H), as (layers, H).

    Raises:
        TypeError: `head_mask` is not a tensor.
        ValueError: `head_mask` has another shape.
    """
    if not isinstance(head_mask, Tensor):
        raise TypeError(f"head_mask: expected a torch.Tensor or None, got {type(head_mask).__name__}")
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(
            f"head_mask: expected shape ({heads},) or ({layers}, {heads}), got shape {tuple(head_mask.shape)}"
        )
    return head_mask.expand(layers, heads)


def checked_context_ids(config, context_ids: Tensor | None, batch: int) -> Tensor:
    """Returns `context_ids`, (B) or (B, 1), as (B).

    Raises:
        TypeError: `context_ids` is not an int64 or int32 tensor.
        ValueError: `context_ids` is None, or has another shape or an id out of range.
    """
    if context_ids is None:
        raise ValueError(
            f"context_ids: expected one id per sequence, 0 to {config.num_contexts - 1}, got None. "
            "config.context_id(name) returns the id of a context."
        )
    rows = (batch, 1) if isinstance(context_ids, Tensor) and context_ids.dim() == 2 else (batch,)
    check_ids("context_ids", context_ids, rows, config.num_contexts, "num_contexts")
    return context_ids.reshape(-1)


def checked_text_ids(text_ids: object, texts: int) -> Tensor:
    """Returns `text_ids`, (N) indices from 0 to texts - 1, as int64.

    Raises:
        TypeError: `text_ids` is not an int64 or int32 tensor.
        ValueError: `text_ids` is not one-dimensional, or an index is out of range.
    """
    questions = (text_ids.numel(),) if isinstance(text_ids, Tensor) else None
    check_ids("text_ids", text_ids, questions, texts, "the number of texts")
    return text_ids.long()


def check_segments(config, token_type_ids: Tensor | None) -> None:
    """Raises ValueError if `config.context_standalone` is True and a token type is not 0.

    A model with context_standalone is trained without second segments, so the embeddings of other token types are
    untrained. Values are checked on the CPU and outside torch.compile only.
    """
    if token_type_ids is None or not getattr(config, "context_standalone", False):
        return
    if values_readable(token_type_ids) and bool(token_type_ids.any()):
        raise ValueError(
            "token_type_ids: expected 0 for all tokens, since config.context_standalone is True, got a second segment. "
            "Call tokenizer(sentence), without the context. Pass the context as "
            "context_ids=torch.tensor([model.config.context_id(name)])."
        )


def key_mask(attention_mask: object, shape: tuple[int, int]) -> Tensor | None:
    """Returns the attention mask (B, L) as booleans, True for tokens; None without padding.

    On a GPU or under torch.compile the values are not read, so the result is booleans even if there is no padding.

    Raises:
        TypeError: the mask is not a tensor.
        ValueError: the mask has another shape, or values other than 0 and 1.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask: expected a torch.Tensor or None, got {type(attention_mask).__name__}")
    if tuple(attention_mask.shape) != shape:
        raise ValueError(f"attention_mask: expected shape (B, L) = {shape}, got shape {tuple(attention_mask.shape)}")
    visible = attention_mask != 0
    if values_readable(attention_mask):
        if bool((visible & (attention_mask != 1)).any()):
            raise ValueError("attention_mask: expected 1 for tokens and 0 for padding, got values other than 0 and 1")
        if bool(visible.all()):
            return None
    return visible
