"""The best answer spans of windows, from the logits of first and last tokens."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Span(NamedTuple):
    """Tokens `first` to `last` (inclusive); `score` is the start logit of `first` plus the end logit of `last`."""

    first: int
    last: int
    score: float


def best_spans(
    start_logits: Tensor, end_logits: Tensor, allowed: Tensor, max_tokens: int, count: int
) -> list[list[Span]]:
    """Returns the best spans of each window, best first.

    Args:
        start_logits, end_logits: (B, L), any floating-point dtype; scores are computed in float32.
        allowed: (B, L) booleans: tokens that can begin or end an answer.
        max_tokens: maximum number of tokens in a span.
        count: maximum number of spans for a window.

    Returns:
        For each of B windows, at most `count` spans; an empty list for a window without an allowed span.

    Raises:
        ValueError: the tensors do not all have the same shape (B, L), or `max_tokens` or `count` is below 1.
    """
    if start_logits.dim() != 2 or not start_logits.shape == end_logits.shape == allowed.shape:
        shapes = ", ".join(str(tuple(t.shape)) for t in (start_logits, end_logits, allowed))
        raise ValueError(f"start_logits, end_logits, allowed: expected equal shapes (B, L), got {shapes}")
    for name, value in (("max_tokens", max_tokens), ("count", count)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    batch, length = start_logits.shape
    if not start_logits.numel():
        return [[] for _ in range(batch)]
    width = min(max_tokens, length)
    starts = start_logits.float().masked_fill(~allowed, float("-inf"))
    ends = F.pad(end_logits.float().masked_fill(~allowed, float("-inf")), (0, width - 1), value=float("-inf"))
    # (B, L, width): entry (i, j) is the span of j + 1 tokens from i.
    scores = starts.unsqueeze(-1) + ends.unfold(1, width, 1)
    values, places = scores.flatten(1).topk(min(count, length * width))
    found = []
    for row_values, row_places in zip(values.tolist(), places.tolist()):
        pairs = [(value, *divmod(place, width)) for value, place in zip(row_values, row_places)]
        found.append([Span(i, i + j, value) for value, i, j in pairs if value > float("-inf")])
    return found


def label_span(offsets: list[tuple[int, int] | None], start: int, end: int) -> tuple[int, int] | None:
    """Returns the indices of the first and the last token of the characters `start` to `end` (exclusive).

    The result is None if the window does not contain all of these characters.

    Args:
        offsets: for each token its character range in the text; None for tokens that are not part of the text.
        start, end: character positions.

    Raises:
        ValueError: the span is empty.
    """
    if start >= end:
        raise ValueError(f"start, end: expected a span of at least one character, got {start} to {end}")
    touched = [i for i, place in enumerate(offsets) if place is not None and place[0] < end and place[1] > start]
    if not touched:
        return None
    places = [place for place in offsets[touched[0] : touched[-1] + 1] if place is not None]
    whole = places[0][0] <= start and places[-1][1] >= end
    return (touched[0], touched[-1]) if whole else None


def allowed_tokens(offsets: list[list[tuple[int, int] | None]], length: int, device: torch.device) -> Tensor:
    """Returns (B, length) booleans: True for tokens with at least one character of the text.

    Args:
        offsets: for each of B windows, the character ranges of its tokens; None for tokens that are not part of the
            text.
        length: number of tokens of the padded windows.
        device: device of the result.
    """
    rows = [[place is not None and place[0] < place[1] for place in row] for row in offsets]
    return torch.tensor([row + [False] * (length - len(row)) for row in rows], dtype=torch.bool, device=device)
