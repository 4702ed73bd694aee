"""Nouns of like use: what people say of them, in the same clause, is alike ("the waiter was rude", "rude staff").

Each word is described by the words around it (positive pointwise mutual information, Church and Hanks 1990, with the
smoothed contexts of Levy, Goldberg and Dagan 2015, reduced by a singular value decomposition). Clusters are made by the
leader algorithm (Hartigan 1975): a partition of all nouns would put what is like nothing else somewhere, and the rarer
aspects of a collection drown in such clusters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from qacg_models.suggestion.function_words import CONJUNCTIONS
from qacg_models.suggestion.words import Words, is_word

WINDOW = 4  # words of one clause that are this near describe one another,
ELSEWHERE = 0.3  # and those of the rest of the sentence count so much
DIMENSIONS = 30
LEAST_SIMILARITY = 0.6  # cosine of a noun and its cluster


def cluster_nouns(words: Words, nouns: Sequence[str], least: int, count: int, fill: bool = False) -> list[list[str]]:
    """At most `count` lists of stems, each with its leader first and then by number of sentences and likeness.

    From the most frequent noun on, one that is unlike all leaders so far leads a cluster of its own, until there are
    `count`. Every other noun joins the cluster that it is most like, and is left out where it is like none of them.

    Args:
        words: the sentences.
        nouns: stems, by falling number of sentences.
        least: number of sentences that a describing word has at least.
        fill: if fewer nouns than `count` lead a cluster, the nouns that are least like any leader lead one as well.
    """
    frequency, vectors = words.document_frequency, _vectors(words, nouns, least)
    leaders: list[int] = []
    for noun in range(len(nouns)):
        if len(leaders) < count and np.all(vectors[leaders] @ vectors[noun] < LEAST_SIMILARITY):
            leaders.append(noun)
    likeness = vectors @ vectors[leaders].T
    while fill and len(leaders) < min(count, len(nouns)):
        nearest = likeness.max(1)
        nearest[leaders] = np.inf
        leaders.append(int(nearest.argmin()))
        likeness = vectors @ vectors[leaders].T
    # A leader alone stands for its cluster less well than the leader with what is like it.
    weights = np.where(_belongs(likeness, leaders), [[frequency[noun]] for noun in nouns], 0)
    centres = weights.T @ vectors
    likeness = vectors @ (centres / np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)).T
    clusters = []
    for place, belongs in enumerate(_belongs(likeness, leaders).T):
        others = sorted(
            set(np.flatnonzero(belongs)) - {leaders[place]}, key=lambda i: -frequency[nouns[i]] * likeness[i, place]
        )
        clusters.append([nouns[i] for i in (leaders[place], *others)])
    return clusters


def _belongs(likeness: np.ndarray, leaders: Sequence[int]) -> np.ndarray:
    """(nouns, clusters): whether a noun belongs to a cluster, which is one at most, and for a leader its own."""
    chosen = np.arange(likeness.shape[1]) == likeness.argmax(1)[:, None]
    chosen &= likeness >= LEAST_SIMILARITY
    chosen[leaders] = np.eye(len(leaders), dtype=bool)
    return chosen


def _vectors(words: Words, nouns: Sequence[str], least: int) -> np.ndarray:
    """(nouns, dimensions), each of length 1, or 0 for a noun that nothing describes."""
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
    information = np.maximum(information, 0) * counts / (counts + 2)  # chance meetings of rare words count little
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
