"""Aspects proposed for unlabelled texts: clusters of frequent nouns, with example sentences.

A cluster has nouns that occur with the same words, as in "the waiter was rude" and "rude staff". The vector of a noun
consists of its positive pointwise mutual information with the other words of its sentences (Church and Hanks 1990). The
counts of these other words are smoothed (Levy, Goldberg and Dagan 2015), and a singular value decomposition reduces the
dimensions of the vectors. The leader algorithm (Hartigan 1975) clusters the vectors. It leaves out nouns that are
similar to no leader, because these nouns would hide rare aspects.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from qacg_models.errors import InputError
from qacg_models.suggestion.words import CONJUNCTIONS, Words, is_word, tokens

ASPECTS = 30  # maximum number of proposed aspects
LEAST_SENTENCES = 20  # minimum number of sentences from which aspects are proposed
LEAST_SHARE = 300  # a noun must occur in at least 1/300 of the sentences (rounded down)
LEAST_COUNT = 3  # minimum number of sentences of a noun
PLAIN_LENGTH = 12  # preferred number of tokens of an example sentence
WINDOW = 4  # two words of a clause are a near pair up to this distance, in words
ELSEWHERE = 0.3  # weight of a pair of words anywhere in a sentence; every near pair adds 1
DIMENSIONS = 30
LEAST_SIMILARITY = 0.6  # minimum cosine similarity of a noun to the leader of its cluster, later to the centre


@dataclass(frozen=True)
class Proposal:
    """A proposed aspect.

    Attributes:
        name: the leader of the cluster (`cluster_nouns`), or the user's name.
        words: nouns of the cluster in their most frequent spelling, or the user's words.
        picked: indices of the sentences with at least one of `words`, the clearest examples first.
        found: for each sentence of `picked`, those of `words` that it has.
    """

    name: str
    words: tuple[str, ...]
    picked: tuple[int, ...]
    found: tuple[tuple[str, ...], ...]


def propose(sentences: Sequence[str]) -> list[Proposal]:
    """Returns at most ASPECTS proposed aspects, by decreasing number of sentences.

    Args:
        sentences: unlabelled sentences.

    Raises:
        InputError: there are too few sentences, or the sentences have no frequent noun.
    """
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
    found = [_proposal(words, cluster) for cluster in _clusters(words, nouns, least)]
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
    return Proposal(name, tuple(own), tuple(picked), tuple(tuple(found[number]) for number in picked))


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
        picked=tuple(picked),
        found=tuple(tuple(spelling[stem] for stem in found[number]) for number in picked),
    )


def _plainness(words: Words, number: int, found: list[str], cluster: list[str]) -> float:
    """Returns a score that is high for a sentence of about PLAIN_LENGTH tokens with typical nouns of the cluster."""
    typical = sum(1 / (1 + cluster.index(stem)) for stem in found)
    length = len(words.sentences[number])
    return typical / (1 + abs(length - PLAIN_LENGTH) / PLAIN_LENGTH)


def _clusters(words: Words, nouns: Sequence[str], least: int) -> list[list[str]]:
    """Returns at most ASPECTS clusters, each a list of the stems of its nouns.

    In order of frequency, a noun that is dissimilar to all leaders becomes a leader, until there are ASPECTS leaders.
    Every other noun joins the most similar cluster, or is left out if it is similar to no cluster. A cluster begins
    with its leader. The others are sorted by number of sentences times similarity to the cluster, highest first.

    Args:
        words: the words of the sentences.
        nouns: stems, by decreasing number of sentences.
        least: words in fewer sentences are ignored; each of `nouns` must be in at least this number of sentences.
    """
    frequency, vectors = words.document_frequency, _vectors(words, nouns, least)
    leaders: list[int] = []
    for noun in range(len(nouns)):
        if len(leaders) < ASPECTS and np.all(vectors[leaders] @ vectors[noun] < LEAST_SIMILARITY):
            leaders.append(noun)
    similarity = vectors @ vectors[leaders].T
    # Nouns are assigned again, to the centres: a centre represents a cluster better than its leader does.
    weights = np.where(_belongs(similarity, leaders), [[frequency[noun]] for noun in nouns], 0)
    centres = weights.T @ vectors
    similarity = vectors @ (centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)).T
    clusters = []
    for place, belongs in enumerate(_belongs(similarity, leaders).T):
        others = sorted(
            set(np.flatnonzero(belongs)) - {leaders[place]}, key=lambda i: -frequency[nouns[i]] * similarity[i, place]
        )
        clusters.append([nouns[i] for i in (leaders[place], *others)])
    return clusters


def _belongs(similarity: np.ndarray, leaders: Sequence[int]) -> np.ndarray:
    """Returns (nouns, clusters) booleans: membership in at most one cluster; a leader belongs to its own cluster."""
    chosen = np.arange(similarity.shape[1]) == similarity.argmax(1)[:, None]
    chosen &= similarity >= LEAST_SIMILARITY
    chosen[leaders] = np.eye(len(leaders), dtype=bool)
    return chosen


def _vectors(words: Words, nouns: Sequence[str], least: int) -> np.ndarray:
    """Returns (nouns, at most DIMENSIONS) unit vectors; zeros for a noun that is associated with no frequent word."""
    from scipy import sparse
    from sklearn.decomposition import TruncatedSVD
    from sklearn.preprocessing import normalize

    frequency = words.document_frequency
    vocabulary = {stem: i for i, stem in enumerate(sorted(stem for stem in frequency if frequency[stem] >= least))}
    pairs: Counter[tuple[int, int]] = Counter()
    for sentence, stems in zip(words.sentences, words.stems):
        for near in _near(words, sentence, vocabulary):
            pairs[near] += 1
        known = [vocabulary[stem] for stem in stems if stem in vocabulary]
        for one in known:
            for other in known:
                if one != other:
                    pairs[one, other] += ELSEWHERE
    if not pairs:
        return np.zeros((len(nouns), 1))
    rows, columns = np.array(sorted(pairs)).T
    counts = np.array([pairs[pair] for pair in zip(rows, columns)])
    totals = np.bincount(rows, counts, len(vocabulary))
    contexts = totals**0.75 / (totals**0.75).sum()
    information = np.log(counts / (totals[rows] * contexts[columns]))
    information = np.maximum(information, 0) * counts / (counts + 2)  # discount of rare pairs
    table = sparse.csr_matrix((information, (rows, columns)), (len(vocabulary),) * 2)
    size = min(DIMENSIONS, len(vocabulary) - 1)
    reduction = TruncatedSVD(size, random_state=0)
    reduced = reduction.fit_transform(table) / np.sqrt(np.maximum(reduction.singular_values_, 1e-12))
    return normalize(reduced)[[vocabulary[noun] for noun in nouns]]


def _near(words: Words, sentence: list[str], vocabulary: dict[str, int]) -> Iterator[tuple[int, int]]:
    for clause in _clauses(sentence):
        places = [(place, vocabulary[stem]) for place, t in enumerate(clause) if (stem := words.stem(t)) in vocabulary]
        for place, one in places:
            for other_place, other in places:
                if one != other and abs(place - other_place) <= WINDOW:
                    yield one, other


def _clauses(sentence: list[str]) -> Iterator[list[str]]:
    clause: list[str] = []
    for token in [*sentence, "."]:
        if is_word(token) and token.lower() not in CONJUNCTIONS:
            clause.append(token)
        elif clause:
            yield clause
            clause = []
