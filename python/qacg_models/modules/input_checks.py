"""Checks of a model's inputs: shapes always, values where reading them costs nothing.

On a GPU an id out of range is caught by the embedding's own device-side check.
"""

import torch
from torch import Tensor

from qacg_kernels.utils.torch_internals import values_readable

_INTEGERS = (torch.int64, torch.int32)


def check_ids(
    name: str, ids: object, shape: tuple[int, ...] | None, limit: int, field: str, packed: bool = False
) -> None:
    """Raises unless `ids` is an integer tensor of `shape` with values below `limit`.

    Args:
        name: the argument, for the message.
        shape: None: two dimensions (B, L), or one (T) if packed.
        field: the configuration field that sets the limit, for the message.
    """
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: got {type(ids).__name__}, wanted a torch.Tensor")
    if ids.dtype not in _INTEGERS:
        raise TypeError(f"{name}: got dtype {ids.dtype}, wanted torch.int64 or torch.int32")
    if shape is None and ids.dim() != (1 if packed else 2):
        wanted = "one dimension (T) beside cu_seqlens" if packed else "two dimensions (B, L)"
        raise ValueError(f"{name}: got shape {tuple(ids.shape)}, wanted {wanted}")
    if shape is not None and tuple(ids.shape) != shape:
        raise ValueError(f"{name}: got shape {tuple(ids.shape)}, wanted {shape}")
    if values_readable(ids) and ids.numel():
        low, high = (int(x) for x in ids.aminmax())
        if low < 0 or high >= limit:
            raise ValueError(f"{name}: got values from {low} to {high}, wanted 0 to {limit - 1} ({field} is {limit})")


def check_encoder_inputs(
    config, input_ids: object, inputs_embeds: object, token_type_ids: object, position_ids: object
) -> tuple[int, int]:
    """Raises unless the tokens of a batch fit the configuration and one another; returns (B, L).

    Args:
        config: an `EncoderConfig`.
        input_ids, inputs_embeds: exactly one of them, (B, L) or (B, L, hidden_size), L at least 1.
        token_type_ids: None or (B, L).
        position_ids: None, (B, L) or (1, L).
    """
    name, tokens = _check_tokens(config, input_ids, inputs_embeds, packed=False)
    batch, length = tokens.shape[:2]
    if length < 1:
        raise ValueError(f"{name}: got shape {tuple(tokens.shape)}, wanted at least one token per sequence")
    if position_ids is not None:
        one_for_all = isinstance(position_ids, Tensor) and position_ids.shape[:1] == (1,)
        rows, limit = (1 if one_for_all else batch, length), config.max_position_embeddings
        check_ids("position_ids", position_ids, rows, limit, "max_position_embeddings")
    elif length > config.max_position_embeddings:
        raise ValueError(
            f"{name}: got sequences of {length} tokens, wanted at most "
            f"max_position_embeddings = {config.max_position_embeddings}"
        )
    if token_type_ids is not None:
        check_ids("token_type_ids", token_type_ids, (batch, length), config.type_vocab_size, "type_vocab_size")
    return batch, length


def check_packed_inputs(
    config, input_ids: object, inputs_embeds: object, token_type_ids: object, position_ids: object
) -> Tensor:
    """Raises unless packed tokens fit the configuration and one another; returns input_ids or inputs_embeds.

    Args:
        config: an `EncoderConfig`.
        input_ids, inputs_embeds: exactly one of them, (T) or (T, hidden_size).
        token_type_ids, position_ids: None or (T).
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
            f"input_ids, inputs_embeds: got {'neither' if input_ids is None else 'both'}, wanted exactly one"
        )
    if inputs_embeds is None:
        check_ids("input_ids", input_ids, None, config.vocab_size, "vocab_size", packed)
        return "input_ids", input_ids
    check_embeds(inputs_embeds, config.hidden_size, "hidden_size", packed)
    return "inputs_embeds", inputs_embeds


def check_embeds(embeds: object, width: int, field: str, packed: bool = False) -> None:
    """Raises unless `embeds` is a floating tensor (B, L, width), or (T, width) if packed; `field` sets the width."""
    if not isinstance(embeds, Tensor):
        raise TypeError(f"inputs_embeds: got {type(embeds).__name__}, wanted a torch.Tensor")
    if not embeds.is_floating_point():
        raise TypeError(f"inputs_embeds: got dtype {embeds.dtype}, wanted a floating one")
    if embeds.dim() != (2 if packed else 3) or embeds.shape[-1] != width:
        wanted = "T" if packed else "B, L"
        raise ValueError(f"inputs_embeds: got shape {tuple(embeds.shape)}, wanted ({wanted}, {field} = {width})")


def checked_head_mask(head_mask: object, layers: int, heads: int) -> Tensor:
    """`head_mask`, (H) or (layers, H), as (layers, H).

    Raises:
        TypeError, ValueError: not a tensor, or another shape.
    """
    if not isinstance(head_mask, Tensor):
        raise TypeError(f"head_mask: got {type(head_mask).__name__}, wanted a torch.Tensor or None")
    if tuple(head_mask.shape) not in ((heads,), (layers, heads)):
        raise ValueError(f"head_mask: got shape {tuple(head_mask.shape)}, wanted ({heads},) or ({layers}, {heads})")
    return head_mask.expand(layers, heads)


def checked_context_ids(config, context_ids: Tensor | None, batch: int) -> Tensor:
    """`context_ids`, (B) or (B, 1), as (B), once each is known to be that of a context."""
    if context_ids is None:
        raise ValueError(
            f"context_ids: got None, wanted one id per sequence, 0 to {config.num_contexts - 1}; "
            "config.context_id(name) gives the id of a context"
        )
    rows = (batch, 1) if isinstance(context_ids, Tensor) and context_ids.dim() == 2 else (batch,)
    check_ids("context_ids", context_ids, rows, config.num_contexts, "num_contexts")
    return context_ids.reshape(-1)


def check_segments(config, token_type_ids: Tensor | None) -> None:
    """Raises ValueError for a second segment in inputs of a model whose context enters by its id alone.

    It would answer, from embeddings of a segment that training has never seen.
    """
    if token_type_ids is None or not getattr(config, "context_standalone", False):
        return
    if values_readable(token_type_ids) and bool(token_type_ids.any()):
        raise ValueError(
            "token_type_ids: got a second segment, but this model's context enters by id alone (context_standalone); "
            "wanted the sentence as the only one, tokenizer(sentence), and "
            "context_ids=torch.tensor([model.config.context_id(name)])"
        )


def key_mask(attention_mask: object, shape: tuple[int, int]) -> Tensor | None:
    """The (B, L) mask of 0 and 1 as booleans, True where a token is read; None when that is known to be all.

    Raises:
        TypeError, ValueError: not a tensor, another shape, or values other than 0 and 1.
    """
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask: got {type(attention_mask).__name__}, wanted a torch.Tensor or None")
    if tuple(attention_mask.shape) != shape:
        raise ValueError(f"attention_mask: got shape {tuple(attention_mask.shape)}, wanted (B, L) = {shape}")
    visible = attention_mask != 0
    if values_readable(attention_mask):
        if bool((visible & (attention_mask != 1)).any()):
            raise ValueError("attention_mask: got values other than 0 and 1, wanted 1 for tokens and 0 for padding")
        if bool(visible.all()):
            return None
    return visible
