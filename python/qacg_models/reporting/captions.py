"""What a picture tells an analyst: one sentence of plain words for each, made of the picture's own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qacg_models.reporting.attention_maps import ExampleMaps
from qacg_models.reporting.coloured_text import signed

MARKERS = ("[CLS]", "[SEP]", "[PAD]", "[MASK]")
# Shares of the strongest: what is weaker is not named beside it, or on the other side.
_BESIDE, _AGAINST = 0.25, 0.1


def loss_caption(points: Sequence[Sequence[float]]) -> str:
    """The training loss over steps, as (step, loss) pairs."""
    losses = [loss for _, loss in points]
    if len(losses) < 2:
        return "Training was too short for a curve."
    said = f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    if losses[-1] >= losses[0]:
        return f"The model did not learn its training rows: its loss went {said}. Try a lower learning rate first."
    # Single points are noisy: two means of some of the last ones, against the whole way down.
    tail = max(1, len(losses) // 8)
    before, last = float(np.mean(losses[-2 * tail : -tail])), float(np.mean(losses[-tail:]))
    falling = before - last > 0.02 * (losses[0] - losses[-1])
    end = "was still falling at the end, so longer training may help" if falling else "had levelled off at the end"
    return f"The model learned its training rows: its loss fell {said}, and {end}."


def lambda_caption(values: np.ndarray) -> str:
    """The mean gate of every head, (layers, heads)."""
    adds, takes = int((values > 0).sum()), int((values < 0).sum())
    layer, head = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    does = "adds" if values[layer, head] > 0 else "takes away"
    if not adds + takes:
        return "The aspect changes attention in no head."
    return (
        f"The aspect adds attention in {adds} of {values.size} heads and takes it away in {takes}; it does most in"
        f" layer {layer + 1}, head {head + 1}, where it {does}."
    )


def spread_caption(lambdas: Mapping[str, np.ndarray]) -> str:
    """Gates of every token by aspect, (layers, heads, tokens); numbers of tokens may differ."""
    if len(lambdas) == 1:
        (values,) = lambdas.values()
        share = f"{(values < 0).mean():.0%}"
        return f"Counted over layers, heads and tokens, the aspect takes attention away in {share} of the cases."
    names, means = list(lambdas), np.stack([values.mean(-1) for values in lambdas.values()])
    apart = means.max(0) - means.min(0)
    layer, head = np.unravel_index(int(apart.argmax()), apart.shape)
    here = means[:, layer, head]
    low, high = int(here.argmin()), int(here.argmax())
    return (
        f"The model treats these aspects most differently in layer {layer + 1}, head {head + 1}: there the"
        f" aspect's weight runs from {signed(here[low])} for {names[low]} to {signed(here[high])} for {names[high]}."
    )


def layer_caption(maps: ExampleMaps, layer: int) -> str:
    """The three maps of one layer, counted from 0, of all its heads together."""
    looked = words(maps.tokens, maps.combined[layer].mean((0, 1)))
    moved = words(maps.tokens, maps.quasi[layer].mean((0, 1)))
    if not looked:
        return f"Layer {layer + 1}: there is no word to look at."
    to, away = _strongest(moved, 1, 1), _strongest(moved, -1, 1)
    drawn = [f"{side} {_listed(found)}" for side, found in (("towards", to), ("away from", away)) if found]
    word, most = max(looked, key=lambda item: item[1])
    goes = f"most attention goes to {_listed([word])}" if most > 0 else "more attention is taken away than given"
    change = f"the aspect draws it {' and '.join(drawn)}" if drawn else "the aspect changes nothing"
    return f"In layer {layer + 1} {goes}; {change}."


def sensitivity_caption(tokens: Sequence[str], scores: np.ndarray) -> str:
    """Squared gradients by token, (L)."""
    found = _strongest(words(tokens, scores), 1, 2)
    if not found:
        return "No word matters for this verdict."
    return f"A change of {_listed(found, 'or')} would move this verdict most."


def relevance_caption(tokens: Sequence[str], scores: np.ndarray, verdict: str) -> str:
    """Shares of the verdict's logit by token, (L), of either sign."""
    whole = words(tokens, scores)
    found, against = _strongest(whole, 1, 2), _strongest(whole, -1, 1)
    speaks = f"{_listed(found)} speak{'' if len(found) > 1 else 's'} most for {verdict}" if found else ""
    denies = f"{_listed(against)} most against it" if against else "no word clearly against it"
    return f"{speaks or f'No word clearly speaks for {verdict}'}, {denies}."


def words(tokens: Sequence[str], values: np.ndarray) -> list[tuple[str, float]]:
    """Whole words with the sums of their pieces' values; markers such as [CLS] are left out.

    Args:
        tokens: L pieces; those that go on a word begin with ##.
        values: (L).
    """
    found: list[tuple[str, float]] = []
    for token, value in zip(tokens, values):
        if token in MARKERS:
            continue
        if token.startswith("##") and found:
            word, total = found[-1]
            found[-1] = word + token.removeprefix("##"), total + float(value)
        else:
            found.append((token, float(value)))
    return found


def _strongest(found: Sequence[tuple[str, float]], sign: int, count: int) -> list[str]:
    """Up to `count` different words whose value has the sign, the strongest first; none where all are slight."""
    ranked = sorted(((sign * value, word) for word, value in found if sign * value > 0), reverse=True)
    largest = max((abs(value) for _, value in found), default=0.0)
    if not ranked or ranked[0][0] < _AGAINST * largest:
        return []
    return list(dict.fromkeys(word for value, word in ranked if value >= _BESIDE * ranked[0][0]))[:count]


def _listed(found: Sequence[str], joint: str = "and") -> str:
    return f" {joint} ".join(f"“{word}”" for word in found)
