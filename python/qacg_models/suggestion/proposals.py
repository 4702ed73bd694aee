"""Aspects proposed for unlabelled texts: clusters of frequent nouns, with phrases and example sentences."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from qacg_models.errors import InputError
from qacg_models.suggestion import ASPECTS
from qacg_models.suggestion.clusters import cluster_nouns
from qacg_models.suggestion.words import Words, tokens
from qacg_models.utils.field_checks import check_count

LEAST_SENTENCES = 20  # minimum number of sentences from which aspects are proposed
LEAST_SHARE = 300  # a noun must occur in at least 1/300 of the sentences (rounded down)
LEAST_COUNT = 3  # minimum number of sentences of a noun, and of occurrences of a phrase
PHRASES = 3  # maximum number of phrases of a proposal
PLAIN_LENGTH = 12  # preferred number of tokens of an example sentence


@dataclass(frozen=True)
class Proposal:
    """A proposed aspect.

    Attributes:
        name: the leader of the cluster (`cluster_nouns`), or the user's name.
        words: nouns of the cluster in their most frequent spelling, or the user's words.
        phrases: frequent two-word phrases, whose second word is a noun of the cluster; empty for the user's words.
        picked: indices of the sentences with at least one of `words`, the clearest examples first.
        found: for each sentence of `picked`, those of `words` that it has.
    """

    name: str
    words: tuple[str, ...]
    phrases: tuple[str, ...]
    picked: tuple[int, ...]
    found: tuple[tuple[str, ...], ...]


def propose(sentences: Sequence[str], count: int | None = None) -> list[Proposal]:
    """Returns proposed aspects, by decreasing number of sentences.

    Args:
        sentences: unlabelled sentences.
        count: number of aspects (fewer if there are too few nouns); None: the number of clusters, at most ASPECTS.

    Raises:
        TypeError: `count` is not an integer.
        InputError: `count` is below 1, there are too few sentences, or the sentences have no frequent noun.
    """
    if count is not None:
        check_count("count", count)
    if len(sentences) < LEAST_SENTENCES:
        raise InputError(
            f"input: expected at least {LEAST_SENTENCES} sentences to propose aspects, got {len(sentences)}. Add"
            " texts, or define aspects with --aspects NAME=WORD,WORD."
        )
    words = Words.of(sentences)
    least = max(LEAST_COUNT, len(sentences) // LEAST_SHARE)
    nouns = words.nouns(least)
    if not nouns:
        raise InputError(
            f"input: expected an English or German noun that occurs in at least {least} sentences, got none. Define"
            " aspects with --aspects NAME=WORD,WORD."
        )
    clusters = cluster_nouns(words, nouns, least, ASPECTS if count is None else count, fill=count is not None)
    found = [_proposal(words, cluster) for cluster in clusters]
    return sorted(found, key=lambda one: (-len(one.picked), one.name))


def choose(sentences: Sequence[str], proposals: Sequence[Proposal], names: Sequence[str]) -> list[Proposal]:
    """Returns a proposal for each of `names`, in their order: the one of that name in `proposals`, or a new one.

    Args:
        sentences: the sentences of the proposals.
        proposals: proposals to select from.
        names: for each aspect the name of a proposal, a word of the sentences, or NAME=WORD,WORD. A WORD can be a
            phrase ("car park"). With an empty list of words (NAME=), `picked` is empty.

    Raises:
        InputError: a given word occurs in no sentence, or a name is empty or repeated.
    """
    proposed = {one.name: one for one in proposals}
    words: Words | None = None
    chosen: dict[str, Proposal] = {}
    for given in names:
        name, equals, listed = (part.strip() for part in given.partition("="))
        if name in chosen or not name:
            raise InputError(f"aspects: expected NAME or NAME=WORD,WORD, each NAME once, got {given!r}")
        if not equals and name in proposed:
            chosen[name] = proposed[name]
            continue
        own = [word.strip() for word in listed.split(",") if word.strip()] if equals else [name]
        words = words or Words.of(sentences)
        chosen[name] = _own_aspect(words, name, own)
        found = {word for here in chosen[name].found for word in here}
        if missing := [word for word in own if word not in found]:
            raise InputError(
                f"aspects: expected a proposed aspect or a word of the sentences, got {missing[0]!r}; pass other words"
                f" as {name}=WORD,WORD, or {name}= to give this aspect random rows only"
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
    """Returns a score that is high for a sentence of about PLAIN_LENGTH tokens with typical nouns of the cluster."""
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
