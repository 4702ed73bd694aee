"""Aspects for texts without labels: words, proposals, and the sheet to label.

An aspect is a cluster of nouns that occur with the same words, as in "the waiter was rude" and "rude staff". Nouns are
found without a part-of-speech tagger: a German noun has a capital letter; an English noun, or a German one in texts
without capitals, ends a phrase that begins with an article, a preposition or an opinion ("the thai food .").

The vector of a noun is its positive pointwise mutual information with the other words of its sentences (Church and
Hanks 1990), with smoothed counts (Levy, Goldberg and Dagan 2015), reduced by a singular value decomposition.
"""

from __future__ import annotations

import csv
import itertools
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import SPLIT_COLUMN, Columns
from qacg_models.sentiment.predictor import Predictor
from qacg_models.sentiment.tables import read_table
from qacg_models.utils.files import atomic_write
from qacg_models.utils.text import escape_formula, normalized, split_sentences


def _read_words() -> dict[str, frozenset[str]]:
    """Returns the lists of `words.txt` by title."""
    blocks = Path(__file__).with_name("words.txt").read_text(encoding="utf-8").split("\n[")[1:]
    return {title: frozenset(block.split("\n", 1)[1].split()) for title, block in (b.split("]", 1) for b in blocks)}


WORDS = _read_words()
BEFORE_NOUNS, OPINIONS = WORDS["before nouns"], WORDS["opinions"]
FUNCTION_WORDS = BEFORE_NOUNS | WORDS["function words"]
ADJECTIVE_ENDINGS = ("ed", "ly", "ing", "ful", "less", "able", "ous", "est")

LEAST_LETTERS = 3
# A word is a noun if at least this share of its occurrences is in noun position or, in German texts with capitals, has
# a capital. Adjectives occur in noun position too, but less often ("the best of all").
LEAST_NOUN_SHARE = 0.2
LEAST_CAPITAL_SHARE = 0.6
MOST_SENTENCES = 0.5  # a word in a higher share of the sentences names no aspect
ASPECTS = 30  # maximum number of proposed aspects
LEAST_SENTENCES = 20  # minimum number of sentences from which aspects are proposed
LEAST_SHARE = 300  # a noun must occur in at least 1/300 of the sentences (rounded down)
LEAST_COUNT = 3  # minimum number of sentences of a noun
PLAIN_LENGTH = 12  # preferred number of tokens of an example sentence
ELSEWHERE = 0.3  # weight of a pair of words in a sentence; in a clause, it adds 1
DIMENSIONS = 50
MOST_DISTANCE = 0.6  # maximum mean cosine distance between the nouns of two clusters that are merged

_TOKEN = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|[.,;:!?()]")


def _tokens(sentence: str) -> list[str]:
    """Returns the words (without a final 's) and punctuation marks of a sentence in order; numbers are left out."""
    return [token.replace("’", "'").removesuffix("'s") for token in _TOKEN.findall(sentence)]


def _is_content(token: str) -> bool:
    """Returns whether a token can be an aspect or describe one: no function word, contraction or general opinion."""
    word = token.lower()
    return len(word) >= LEAST_LETTERS and "'" not in word and word not in FUNCTION_WORDS and word not in OPINIONS


class Words:
    """The words of sentences, as stems; each of the `lines` is a sentence as one text, to search phrases in.

    Nouns have `capitals` in German texts if over 10 % of the words inside sentences begin with one.
    """

    def __init__(self, sentences: Iterable[str]):
        self.sentences = [_tokens(sentence) for sentence in sentences]
        counts = Counter(token.lower() for sentence in self.sentences for token in sentence)
        self.german = sum(counts[word] for word in WORDS["german"]) > sum(counts[word] for word in WORDS["english"])
        inside = [token for sentence in self.sentences for token in sentence[1:] if token[0].isalpha()]
        self.capitals = self.german and sum(token[0].isupper() for token in inside) > 0.1 * len(inside)
        self.lines = [self.line(sentence) for sentence in self.sentences]

    def line(self, tokens: Iterable[str]) -> str:
        """Returns the stems of tokens, each with a space before and after it."""
        return f" {' '.join(map(self.stem, tokens))} "

    def stem(self, token: str) -> str:
        """Returns a lower-case stem of a word, by simple rules for endings; users see `spelling` instead."""
        word = token.lower()
        if self.german:
            return re.sub(r"(?<=....)(en|n|e|s)$", "", word)
        word = re.sub(r"(?<=..)ies$", "y", word)
        return re.sub(r"(?<=sh|ch|ss)es$|(?<=x)es$|(?<=..[^su])s$", "", word)

    def stems(self, tokens: Iterable[str]) -> list[str]:
        """Returns the stems of tokens without function words, opinion words and punctuation marks."""
        return [self.stem(token) for token in tokens if _is_content(token)]

    def nouns(self, vocabulary: Collection[str]) -> dict[str, str]:
        """Returns the most frequent spelling of each noun in `vocabulary`, by its stem.

        In German texts with capitals, spellings keep their case, and the first words of sentences are left out.
        """
        score: Counter[str] = Counter()
        forms: dict[str, Counter[str]] = {}
        for sentence in self.sentences:
            for place, token in enumerate(sentence):
                if _is_content(token) and (place or not self.capitals):
                    stem = self.stem(token)
                    score[stem] += token[0].isupper() if self.capitals else _noun_score(sentence, place)
                    forms.setdefault(stem, Counter())[token if self.capitals else token.lower()] += 1
        share = LEAST_CAPITAL_SHARE if self.capitals else LEAST_NOUN_SHARE
        nouns = [stem for stem in vocabulary if stem in forms and score[stem] >= share * forms[stem].total()]
        return {stem: forms[stem].most_common(1)[0][0] for stem in nouns}


def _noun_score(sentence: list[str], place: int) -> float:
    """Returns a score from 0 to 1 of how typical the neighbours of the word at `place` are for a noun.

    It is 1 for "food" in "the thai food .", 0.5 for "login" in "login broken", and 0 for "fresh" in "was fresh".
    """
    following = sentence[place + 1].lower() if place + 1 < len(sentence) else "."
    if following[0].isalpha() and following not in FUNCTION_WORDS and following not in OPINIONS:
        return 0.0
    before = [token.lower() for token in sentence[max(0, place - 2) : place]]
    if not before or not before[-1][0].isalpha():
        return 0.0 if sentence[place].lower().endswith(ADJECTIVE_ENDINGS) else 0.5
    if before[-1] in BEFORE_NOUNS or before[-1] in OPINIONS:
        return 1.0
    return float(before[-1] not in FUNCTION_WORDS and before[0] in BEFORE_NOUNS)


@dataclass(frozen=True)
class Proposal:
    """A proposed aspect: its most frequent noun or the user's name, and its nouns or the user's words.

    `found` has the words in each sentence that has one, by index of the sentence, clear examples first.
    """

    name: str
    words: tuple[str, ...]
    found: dict[int, list[str]]


def propose(sentences: Sequence[str]) -> list[Proposal]:
    """Returns at most ASPECTS proposed aspects, by decreasing number of sentences."""
    if len(sentences) < LEAST_SENTENCES:
        raise InputError(
            f"input: expected at least {LEAST_SENTENCES} sentences to propose aspects, got {len(sentences)}. Add"
            " texts, or define aspects with --aspects NAME=WORD,WORD."
        )
    words = Words(sentences)
    least, most = max(LEAST_COUNT, len(sentences) // LEAST_SHARE), MOST_SENTENCES * len(sentences)
    frequency = Counter(stem for sentence in words.sentences for stem in set(words.stems(sentence)))
    vocabulary = sorted((stem for stem, n in frequency.items() if least <= n <= most), key=lambda s: (-frequency[s], s))
    spelling = words.nouns(vocabulary)
    if not spelling:
        raise InputError(
            f"input: expected an English or German noun that occurs in at least {least} sentences, got none. Define"
            " aspects with --aspects NAME=WORD,WORD."
        )
    clusters: dict[int, list[str]] = {}
    for noun, cluster in zip(spelling.values(), _clusters(words, vocabulary, [*spelling])):
        clusters.setdefault(cluster, []).append(noun)
    found = [_proposal(words, cluster[0], cluster) for cluster in clusters.values()]
    return sorted(found, key=lambda one: (-len(one.found), one.name))[:ASPECTS]


def choose(sentences: Sequence[str], proposals: Sequence[Proposal], names: Sequence[str]) -> list[Proposal]:
    """Returns a proposal for each of `names`: the one of that name in `proposals`, or a new one.

    A name is that of a proposal, a word of the sentences, or NAME=WORD,WORD. A WORD can be a phrase ("car park"). With
    an empty list of words (NAME=), no sentence is found.
    """
    proposed = {one.name: one for one in proposals}
    words = Words(sentences)
    chosen: dict[str, Proposal] = {}
    for given in names:
        name, equals, listed = (part.strip() for part in given.partition("="))
        if name in chosen or not name:
            raise InputError(f"aspects: expected NAME or NAME=WORD,WORD, each NAME once, got {given!r}")
        if not equals and name in proposed:
            chosen[name] = proposed[name]
            continue
        own = [word.strip() for word in listed.split(",") if word.strip()] if equals else [name]
        chosen[name] = _proposal(words, name, own)
        found = set(itertools.chain(*chosen[name].found.values()))
        if missing := [word for word in own if word not in found]:
            raise InputError(
                f"aspects: expected a proposed aspect or a word of the sentences, got {missing[0]!r}; pass other words"
                f" as {name}=WORD,WORD, or {name}= to give this aspect random rows only"
            )
    return list(chosen.values())


def _proposal(words: Words, name: str, own: Sequence[str]) -> Proposal:
    """Returns the aspect with the words or phrases `own`, in any form with the same stems."""
    phrases = {word: words.line(tokens) for word in own if (tokens := _tokens(word))}
    found = {}
    for number, line in enumerate(words.lines):
        if here := [word for word, phrase in phrases.items() if phrase in line]:
            found[number] = here
    order = sorted(found, key=lambda number: abs(len(words.sentences[number]) - PLAIN_LENGTH))
    return Proposal(name, tuple(own), {number: found[number] for number in order})


def _clusters(words: Words, vocabulary: Sequence[str], nouns: Sequence[str]) -> Sequence[int]:
    """Returns the number of the cluster of each noun."""
    from sklearn.cluster import AgglomerativeClustering

    if len(nouns) == 1:
        return [0]
    vectors = _vectors(words, vocabulary)[[vocabulary.index(noun) for noun in nouns]]
    clustering = AgglomerativeClustering(
        n_clusters=None, distance_threshold=MOST_DISTANCE, metric="precomputed", linkage="average"
    )
    return clustering.fit_predict(1 - vectors @ vectors.T)


def _vectors(words: Words, vocabulary: Sequence[str]) -> np.ndarray:
    """Returns (vocabulary, at most DIMENSIONS) unit vectors; zeros for a word that occurs with no other one."""
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.preprocessing import normalize

    counter = CountVectorizer(analyzer=words.stems, vocabulary=vocabulary, binary=True, dtype=float)
    whole = counter.transform(words.sentences)
    parts = counter.transform(clause for sentence in words.sentences for clause in _clauses(sentence))
    pairs = parts.T @ parts + ELSEWHERE * (whole.T @ whole)
    pairs.setdiag(0)
    pairs.eliminate_zeros()
    if not pairs.nnz:
        return np.zeros((len(vocabulary), 1))
    pairs = pairs.tocoo()
    totals = np.asarray(pairs.sum(1)).ravel()
    contexts = totals**0.75 / (totals**0.75).sum()
    information = np.log(pairs.data / (totals[pairs.row] * contexts[pairs.col]))
    pairs.data = np.maximum(information, 0) * pairs.data / (pairs.data + 2)  # discount of rare pairs
    reduction = TruncatedSVD(min(DIMENSIONS, len(vocabulary) - 1), algorithm="arpack", random_state=0)
    reduced = reduction.fit_transform(pairs.tocsr())
    return normalize(reduced / np.sqrt(np.maximum(reduction.singular_values_, 1e-12)))


def _clauses(sentence: list[str]) -> Iterator[list[str]]:
    for is_word, clause in itertools.groupby(
        sentence, lambda t: t[0].isalpha() and t.lower() not in WORDS["conjunctions"]
    ):
        if is_word:
            yield list(clause)


HINT = "hint"
MOST_DEV_TEXTS = 0.25  # maximum share of texts for dev rows; training rows use other texts
Pair = tuple[str, str]


class SheetRow(NamedTuple):
    """A row of the sheet.

    The hint has words of the aspect that the text has, or a predicted label with its probability.
    """

    text: str
    aspect: str
    hint: str = ""
    split: str = "train"
    label: str = ""

    @property
    def pair(self) -> Pair:
        """The normalised text and the aspect; rows with the same pair count as equal."""
        return normalized(self.text), self.aspect


def distinct(texts: Iterable[str], by_sentence: bool) -> list[str]:
    """Returns the distinct texts, or their distinct sentences, with single spaces, in order of first occurrence.

    Texts that differ only in case or spaces count as equal; the first one is kept.
    """
    kept: dict[str, str] = {}
    for text in texts:
        for part in split_sentences(text) if by_sentence else [" ".join(text.split())]:
            kept.setdefault(normalized(part), part)
    return list(kept.values())


def new_rows(
    texts: Sequence[str], source: Predictor | Sequence[Proposal], labelled: Sequence[SheetRow], count: int, seed: int
) -> list[SheetRow]:
    """Returns at most `count` rows to label, dev rows first; training rows have no text of a dev row.

    A quarter of the rows is dev, drawn at random, unless `labelled`, the rows of an earlier sheet, has dev rows. With a
    model as `source`, the others are its least certain predictions. With aspects, a quarter is drawn at random, so that
    training includes opinions without a noun, and the others have a noun of the aspect. None repeats `labelled`.
    """
    from_model = isinstance(source, Predictor)
    names = list(source.trained.task.aspects) if from_model else [one.name for one in source]
    count_dev = 0 if any(row.split == "dev" for row in labelled) else count // 4
    count_random = 0 if from_model else count // 4
    before = {normalized(row.text) for row in labelled}
    dev = dev_rows([text for text in texts if normalized(text) not in before], names, count_dev, seed)
    reserved = {normalized(row.text) for row in [*labelled, *dev] if row.split != "train"}
    exclude = {row.pair for row in labelled} | {(text, name) for text in reserved for name in names}
    choose_rows = most_uncertain if from_model else noun_rows
    chosen = choose_rows(texts, source, count - count_dev - count_random, exclude)
    drawn = random_rows(texts, names, count_random, seed, exclude | {row.pair for row in chosen})
    # Evenly interleaved, so that the beginning of the sheet has rows of both kinds.
    places = [((place + 0.5) / len(rows), row) for rows in (chosen, drawn) for place, row in enumerate(rows)]
    return [*dev, *(row for _, row in sorted(places, key=lambda one: one[0]))]


def dev_rows(texts: Sequence[str], aspects: Sequence[str], count: int, seed: int) -> list[SheetRow]:
    """Returns at most `count` dev rows in random order; every pair of a text and an aspect has the same probability.

    Aspects are assigned in a random cycle: one to each text, or several if there are fewer texts than rows.
    """
    chosen = random.Random(f"dev {seed}")
    drawn = chosen.sample(texts, min(count, len(texts), max(1, int(MOST_DEV_TEXTS * len(texts)))))
    each, more = divmod(min(count, len(drawn) * len(aspects)), max(1, len(drawn)))
    turns = itertools.cycle(chosen.sample(aspects, len(aspects)))
    return [
        SheetRow(text, next(turns), split="dev")
        for place, text in enumerate(drawn)
        for _ in range(each + (place < more))
    ]


def random_rows(
    texts: Sequence[str], aspects: Sequence[str], count: int, seed: int, exclude: Collection[Pair]
) -> list[SheetRow]:
    """Returns at most `count` training rows of random pairs of a text and an aspect, without those in `exclude`."""
    pairs = range(len(texts) * len(aspects))
    numbers = random.Random(f"train {seed}").sample(pairs, min(len(pairs), count + len(exclude)))
    drawn = (SheetRow(texts[number // len(aspects)], aspects[number % len(aspects)]) for number in numbers)
    return [row for row in drawn if row.pair not in exclude][:count]


def noun_rows(
    sentences: Sequence[str], proposals: Sequence[Proposal], count: int, exclude: Collection[Pair] = ()
) -> list[SheetRow]:
    """Returns at most `count` training rows from the clearest sentences of each proposal, without pairs in `exclude`.

    A sentence gets a row for each aspect of which it has a word, and one for another aspect, on which it probably has
    no opinion: a model that is trained without such rows predicts an opinion for every aspect.
    """
    rounds = itertools.zip_longest(*(proposal.found for proposal in proposals))
    numbers = dict.fromkeys(number for found in rounds for number in found if number is not None)
    rows: list[SheetRow] = []
    for turn, number in enumerate(numbers):
        own = {one.name: ", ".join(one.found[number]) for one in proposals if number in one.found}
        found = [SheetRow(sentences[number], name, words) for name, words in own.items()]
        if others := [one.name for one in proposals if one.name not in own]:
            found.append(SheetRow(sentences[number], others[turn % len(others)]))
        rows += [row for row in found if row.pair not in exclude]
        if len(rows) >= count:
            break
    return rows[:count]


def most_uncertain(
    sentences: Sequence[str], predictor: Predictor, count: int, exclude: Collection[Pair] = ()
) -> list[SheetRow]:
    """Returns the rows of sentences and aspects whose predicted label is the least probable, least probable first.

    This is uncertainty sampling (Lewis and Gale, 1994), without the pairs in `exclude`.
    """
    task = predictor.trained.task
    if task.has_targets:
        raise InputError(
            "with: expected a model whose contexts are aspects only, got a model with targets. Omit --with."
        )
    pairs = [(text, name) for text in sentences for name in task.aspects if (normalized(text), name) not in exclude]
    found = predictor.predict(pd.DataFrame(pairs, columns=["text", "aspect"]))
    found["share"] = found[[f"p({label})" for label in task.labels]].max(axis=1)
    found = found.sort_values("share", kind="stable")[:count]
    return [
        SheetRow(text, aspect, f"{label}? {share:.2f}")
        for text, aspect, label, share in found[["text", "aspect", "label", "share"]].itertuples(index=False)
    ]


def read_sheet(path: Path, columns: Columns) -> list[SheetRow]:
    """Returns the labelled rows and all dev rows of a partly labelled CSV with these columns, in its order."""
    rows = []
    for record in read_table(path, replace(columns, label=None), "csv").to_dict("records"):
        if columns.label not in record:
            raise InputError(f"labelled: expected a column {columns.label!r} in {path}, got {', '.join(record)}")
        split, label = record.get(SPLIT_COLUMN, "").strip().lower() or "train", record[columns.label].strip()
        if label or split == "dev":
            rows.append(SheetRow(record[columns.text], record[columns.aspect], record.get(HINT, ""), split, label))
    return rows


def write_sheet(path: Path, rows: Sequence[SheetRow], columns: Columns) -> None:
    """Writes a CSV with text, aspect, label, hint and split, in which formulas are escaped; replaces the file."""
    header = (columns.text, columns.aspect or "", columns.label or "", HINT, SPLIT_COLUMN)
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        for cells in (header, *((row.text, row.aspect, row.label, row.hint, row.split) for row in rows)):
            writer.writerow(map(escape_formula, cells))
