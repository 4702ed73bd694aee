"""Clusters of nouns that occur with the same words, as in "the waiter was rude" and "rude staff".

The vector of a noun consists of its positive pointwise mutual information with the other words of its sentences (Church
and Hanks 1990). The counts of these other words are smoothed (Levy, Goldberg and Dagan 2015), and a singular value
decomposition reduces the dimensions of the vectors. The leader algorithm (Hartigan 1975) clusters the vectors. It
leaves out nouns that are similar to no leader, because these nouns would hide rare aspects.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from qacg_models.suggestion.function_words import CONJUNCTIONS
from qacg_models.suggestion.words import Words, is_word

WINDOW = 4  # two words of a clause are a near pair up to this distance, in words
ELSEWHERE = 0.3  # weight of a pair of words anywhere in a sentence; every near pair adds 1
DIMENSIONS = 30
LEAST_SIMILARITY = 0.6  # minimum cosine similarity of a noun to the leader of its cluster, later to the centre


def cluster_nouns(words: Words, nouns: Sequence[str], least: int, count: int, fill: bool = False) -> list[list[str]]:
    """Returns at most `count` clusters, each a list of the stems of its nouns.

    In order of frequency, a noun that is dissimilar to all leaders becomes a leader, until there are `count` leaders.
    Every other noun joins the most similar cluster, or is left out if it is similar to no cluster. A cluster begins
    with its leader. The others are sorted by number of sentences times similarity to the cluster, highest first.

    Args:
        words: the words of the sentences.
        nouns: stems, by decreasing number of sentences.
        least: words in fewer sentences are ignored; each of `nouns` must be in at least this number of sentences.
        count: maximum number of clusters.
        fill: if there are fewer leaders than `count`, the nouns that are least similar to all leaders become leaders.
    """
    frequency, vectors = words.document_frequency, _vectors(words, nouns, least)
    leaders: list[int] = []
    for noun in range(len(nouns)):
        if len(leaders) < count and np.all(vectors[leaders] @ vectors[noun] < LEAST_SIMILARITY):
            leaders.append(noun)
    similarity = vectors @ vectors[leaders].T
    while fill and len(leaders) < min(count, len(nouns)):
        nearest = similarity.max(1)
        nearest[leaders] = np.inf
        leaders.append(int(nearest.argmin()))
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
