"""Captions of plots: one or two sentences that state the result, computed from the plotted numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qacg_models.reporting.attention_maps import MARKERS, ExampleMaps
from qacg_models.reporting.coloured_text import signed

# A caption names the strongest positive word only if its value is at least _AGAINST times the largest absolute value of
# all words. It then also names words with at least _BESIDE times that word's value. Negative words are named likewise.
_BESIDE, _AGAINST = 0.25, 0.1


def loss_caption(points: Sequence[Sequence[float]]) -> str:
    """Returns the caption of the training loss over steps.

    Args:
        points: (step, loss) pairs.
    """
    losses = [loss for _, loss in points]
    if len(losses) < 2:
        return "The training was too short for a loss curve."
    change = f"from {losses[0]:.2f} to {losses[-1]:.2f}"
    if losses[-1] >= losses[0]:
        return f"The training loss did not fall: it went {change}. Try a lower learning rate first."
    # Single points are noisy, so the means of the last eighth of the points and of the eighth before it are compared.
    tail = max(1, len(losses) // 8)
    before, last = float(np.mean(losses[-2 * tail : -tail])), float(np.mean(losses[-tail:]))
    falling = before - last > 0.02 * (losses[0] - losses[-1])
    end = "was still falling at the end, so longer training may help" if falling else "was flat at the end"
    return f"The training loss fell {change}, and {end}."


def lambda_caption(values: np.ndarray, first: int = 0) -> str:
    """Returns the caption of a table of mean lambda by layer and head.

    Args:
        values: mean lambda, (layers, heads).
        first: index in the model, from 0, of the first layer of `values`.
    """
    adds, takes = int((values > 0).sum()), int((values < 0).sum())
    layer, head = np.unravel_index(int(np.abs(values).argmax()), values.shape)
    does = "adds attention" if values[layer, head] > 0 else "takes attention away"
    if not adds + takes:
        return "The aspect changes attention in no head."
    return (
        f"The aspect adds attention in {adds} of {values.size} heads and takes it away in {takes}; its effect is"
        f" strongest in layer {first + layer + 1}, head {head + 1}, where it {does}."
    )


def spread_caption(lambdas: Mapping[str, np.ndarray], first: int = 0) -> str:
    """Returns the caption of histograms of lambda over the tokens.

    Args:
        lambdas: lambda, (layers, heads, tokens), by aspect, for at least one aspect; numbers of tokens can differ.
        first: index in the model, from 0, of the first layer of `lambdas`.
    """
    if len(lambdas) == 1:
        (values,) = lambdas.values()
        share = f"{(values < 0).mean():.0%}"
        return f"The aspect takes attention away in {share} of all combinations of token, layer and head."
    names, means = list(lambdas), np.stack([values.mean(-1) for values in lambdas.values()])
    apart = means.max(0) - means.min(0)
    layer, head = np.unravel_index(int(apart.argmax()), apart.shape)
    here = means[:, layer, head]
    low, high = int(here.argmin()), int(here.argmax())
    return (
        f"The aspects differ most in layer {first + layer + 1}, head {head + 1}: their mean weight ranges from"
        f" {signed(here[low])} for {names[low]} to {signed(here[high])} for {names[high]}."
    )


def layer_caption(maps: ExampleMaps, layer: int) -> str:
    """Returns the caption of the maps of one layer, computed from their means over heads and queries.

    Args:
        maps: maps of one example.
        layer: index of the layer, from 0.
    """
    looked = words(maps.tokens, maps.combined[layer].mean((0, 1)))
    moved = words(maps.tokens, maps.quasi[layer].mean((0, 1)))
    if not looked:
        return f"Layer {layer + 1}: the text has no words."
    to, away = _strongest(moved, 1, 1), _strongest(moved, -1, 1)
    drawn = [f"{side} {_listed(found)}" for side, found in (("towards", to), ("away from", away)) if found]
    word, most = max(looked, key=lambda item: item[1])
    goes = f"most attention goes to {_listed([word])}" if most > 0 else "more attention is taken away than given"
    change = f"the aspect draws it {' and '.join(drawn)}" if drawn else "the aspect changes nothing"
    return f"In layer {layer + 1} {goes}; {change}."


def sensitivity_caption(tokens: Sequence[str], scores: np.ndarray) -> str:
    """Returns a caption that names the words to which the prediction is most sensitive.

    Args:
        tokens: L tokens.
        scores: (L,) squared norms of the gradients.
    """
    found = _strongest(words(tokens, scores), 1, 2)
    if not found:
        return "No word affects this prediction."
    return f"A change of {_listed(found, 'or')} would affect this prediction most."


def relevance_caption(tokens: Sequence[str], scores: np.ndarray, verdict: str) -> str:
    """Returns a caption that names the words which support and oppose the predicted label most.

    Args:
        tokens: L tokens.
        scores: (L,) signed shares of the logit of the predicted label.
        verdict: name of the predicted label.
    """
    whole = words(tokens, scores)
    found, against = _strongest(whole, 1, 2), _strongest(whole, -1, 1)
    verb = "support" if len(found) > 1 else "supports"
    supports = f"{_listed(found)} {verb} {verdict} most" if found else f"No word clearly supports {verdict}"
    opposes = f"{_listed(against)} opposes it most" if against else "no word clearly opposes it"
    return f"{supports}; {opposes}."


def words(tokens: Sequence[str], values: np.ndarray) -> list[tuple[str, float]]:
    """Returns whole words with the sums of their pieces' values, without markers such as [CLS].

    Args:
        tokens: L tokens; continuations of a word begin with ##.
        values: (L,) values of the tokens.
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
    """Returns up to `count` distinct words whose values have the sign `sign`, strongest first.

    The result is empty if the strongest of them has less than _AGAINST times the largest absolute value of all words.
    Words with less than _BESIDE times the strongest value are left out.

    Args:
        found: words with their values.
        sign: 1 or -1.
        count: maximum number of words.
    """
    ranked = sorted(((sign * value, word) for word, value in found if sign * value > 0), reverse=True)
    largest = max((abs(value) for _, value in found), default=0.0)
    if not ranked or ranked[0][0] < _AGAINST * largest:
        return []
    return list(dict.fromkeys(word for value, word in ranked if value >= _BESIDE * ranked[0][0]))[:count]


def _listed(found: Sequence[str], joint: str = "and") -> str:
    return f" {joint} ".join(f"“{word}”" for word in found)
