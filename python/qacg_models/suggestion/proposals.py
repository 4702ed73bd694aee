"""Aspects proposed for texts without labels: clusters of frequent nouns, with phrases and sentences that have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from qacg_models.errors import InputError
from qacg_models.suggestion import ASPECTS
from qacg_models.suggestion.clusters import cluster_nouns
from qacg_models.suggestion.words import Words, tokens

LEAST_SENTENCES = 20  # to propose anything for
LEAST_SHARE = 300  # a noun is in one of so many sentences at least, and in three
LEAST_COUNT = 3
PHRASES = 3
PLAIN_LENGTH = 12  # tokens of a sentence that makes a good example


@dataclass(frozen=True)
class Proposal:
    """One aspect.

    Attributes:
        name: its most frequent noun, or the name that the user gave it.
        words: its nouns, as they are mostly spelled, or the user's words.
        phrases: frequent pairs of a word and one of its nouns.
        picked: numbers of the sentences that have one of its nouns, the plainest examples first.
        found: of each of those, which of its nouns it has.
    """

    name: str
    words: tuple[str, ...]
    phrases: tuple[str, ...]
    picked: tuple[int, ...]
    found: tuple[tuple[str, ...], ...]


def propose(sentences: Sequence[str], count: int | None = None) -> list[Proposal]:
    """Aspects of sentences, those that most sentences have first.

    Args:
        count: how many; fewer only if there are fewer nouns. None: at most ASPECTS, and fewer where nouns are alike.

    Raises:
        InputError: too few sentences, or no noun comes back in them.
    """
    if len(sentences) < LEAST_SENTENCES:
        raise InputError(
            f"input: expected at least {LEAST_SENTENCES} to propose aspects, got {len(sentences)} sentences"
        )
    words = Words.of(sentences)
    least = max(LEAST_COUNT, len(sentences) // LEAST_SHARE)
    nouns = words.nouns(least)
    if not nouns:
        raise InputError(f"input: no noun stands in at least {least} sentences; wanted English or German texts")
    clusters = cluster_nouns(words, nouns, least, count or ASPECTS, fill=count is not None)
    found = [_proposal(words, cluster) for cluster in clusters]
    return sorted(found, key=lambda one: (-len(one.picked), one.name))


def choose(sentences: Sequence[str], proposals: Sequence[Proposal], names: Sequence[str]) -> list[Proposal]:
    """The proposals that are named, and one for each aspect of the user.

    Args:
        names: each a proposal's name, a word of the sentences, or NAME=WORD,WORD. A word may be several ("car park").
            An empty list of words asks about the aspect in random rows alone.

    Raises:
        InputError: no sentence has a word, or a name is empty or comes twice.
    """
    proposed = {one.name: one for one in proposals}
    words: Words | None = None
    chosen: dict[str, Proposal] = {}
    for given in names:
        name, equals, listed = (part.strip() for part in given.partition("="))
        if name in chosen or not name:
            raise InputError(f"keep: expected NAME or NAME=WORD,WORD, each NAME once, got {given!r}")
        if not equals and name in proposed:
            chosen[name] = proposed[name]
            continue
        own = [word.strip() for word in listed.split(",") if word.strip()] if equals else [name]
        words = words or Words.of(sentences)
        chosen[name] = _own_aspect(words, name, own)
        found = {word for here in chosen[name].found for word in here}
        if missing := [word for word in own if word not in found]:
            raise InputError(
                f"keep: expected a proposed aspect or a word of the sentences, got {missing[0]!r}; give other words as"
                f" {name}=WORD,WORD, or none as {name}= to ask about it in random rows alone"
            )
    return list(chosen.values())


def _own_aspect(words: Words, name: str, own: Sequence[str]) -> Proposal:
    phrases = {word: f" {' '.join(words.stem(token) for token in tokens(word))} " for word in own}
    found: dict[int, list[str]] = {}
    for number, sentence in enumerate(words.sentences):
        stems = f" {' '.join(words.stem(token) for token in sentence)} "
        if here := [word for word, phrase in phrases.items() if phrase.strip() and phrase in stems]:
            found[number] = here
    picked = sorted(found, key=lambda number: (abs(len(words.sentences[number]) - PLAIN_LENGTH), number))
    return Proposal(name, tuple(own), (), tuple(picked), tuple(tuple(found[number]) for number in picked))


def _proposal(words: Words, cluster: list[str]) -> Proposal:
    members, spelling = set(cluster), words.spelling
    order = {stem: place for place, stem in enumerate(cluster)}
    found = {
        number: sorted(stems & members, key=order.__getitem__)
        for number, stems in enumerate(words.stems)
        if stems & members
    }
    picked = sorted(found, key=lambda number: (-_plainness(words, number, found[number], cluster), number))
    return Proposal(
        name=spelling[cluster[0]],
        words=tuple(spelling[stem] for stem in cluster),
        phrases=_phrases(words, members, picked),
        picked=tuple(picked),
        found=tuple(tuple(spelling[stem] for stem in found[number]) for number in picked),
    )


def _plainness(words: Words, number: int, found: list[str], cluster: list[str]) -> float:
    """High for a short sentence with typical nouns of the cluster; one of three words says too little."""
    typical = sum(1 / (1 + cluster.index(stem)) for stem in found)
    length = len(words.sentences[number])
    return typical / (1 + abs(length - PLAIN_LENGTH) / PLAIN_LENGTH)


def _phrases(words: Words, members: set[str], picked: Sequence[int]) -> tuple[str, ...]:
    counts: Counter[str] = Counter()
    for number in picked:
        sentence = words.sentences[number]
        carried = words.stems[number]
        for one, other in pairwise(sentence):
            stems = words.stem(one), words.stem(other)
            if stems[1] in members and stems[0] in carried and stems[0] != stems[1]:
                counts[f"{one} {other}" if words.german else f"{one} {other}".lower()] += 1
    frequent = [(-count, phrase) for phrase, count in counts.items() if count >= LEAST_COUNT]
    return tuple(phrase for _, phrase in sorted(frequent)[:PHRASES])
