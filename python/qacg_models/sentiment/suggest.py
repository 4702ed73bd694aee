"""Aspects for texts without labels: words, proposals, and the sheet to label.

Words become stems, and nouns are detected without a part-of-speech tagger. Function words and opinion words, English
and German, are not proposed as aspects.

German nouns are detected by a capital letter inside a sentence. English nouns, and German nouns in texts without
capitals, are detected at the end of a phrase that begins with an article or preposition ("the thai food ."). In terse
texts, which have few articles, a noun begins a phrase or follows a quantity or an opinion word ("too many ads", "great
support").

A cluster has nouns that occur with the same words, as in "the waiter was rude" and "rude staff". The vector of a noun
consists of its positive pointwise mutual information with the other words of its sentences (Church and Hanks 1990). The
counts of these other words are smoothed (Levy, Goldberg and Dagan 2015), and a singular value decomposition reduces the
dimensions of the vectors. The leader algorithm (Hartigan 1975) clusters the vectors. It leaves out nouns that are
similar to no leader, because these nouns would hide rare aspects.

| source | split | selection of pairs |
|---|---|---|
| dev | dev | at random, from texts without training rows; metrics on these rows estimate the metrics on new texts |
| nouns | train | if no model is given: texts with a noun of the aspect; each text gets a row for another aspect too |
| predictions | train | if a model is given: pairs whose predicted label is the least probable (uncertainty sampling) |
| random | train | at random, so that training includes opinions in texts without a noun of the aspect |
"""

from __future__ import annotations

import csv
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from qacg_models.errors import InputError
from qacg_models.sentiment.columns import SPLIT_COLUMN, Columns
from qacg_models.sentiment.predictor import Predictor, as_predictions
from qacg_models.sentiment.tables import read_table
from qacg_models.utils.files import atomic_write
from qacg_models.utils.text import escape_formula, normalized, split_sentences


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Words before a noun, with optional adjectives between them.
ENGLISH_BEFORE_NOUNS = _words("""
    the a an this that these those my your his her its our their each every some any no another all both which what
    of in on at for with from by into about around near over under between through without during after before behind
""")
GERMAN_BEFORE_NOUNS = _words("""
    der die das den dem des ein eine einen einem einer eines kein keine keinen keinem keiner dieser diese dieses diesen
    diesem mein meine meinen meinem meiner dein deine ihr ihre ihren ihrem ihrer sein seine seinen seinem seiner unser
    unsere unseren unserem unserer jeder jede jedes jeden jedem alle allen aller zum zur im am vom beim ins ans mit von
    für bei aus nach zu an auf in über unter vor hinter neben zwischen ohne durch gegen um seit während wegen trotz
""")
ENGLISH_OTHERS = _words("""
    is are was were be been being am get gets got seem seems seemed look looks looked looking feel feels felt very so
    too really quite pretty extremely rather more most less least as fairly incredibly super
    how not n't just always never to
    and or but if because while when where who whom whose why than then there here it i you he she we they me him us
    them myself yourself one ones do does did doing done can could will won't would shall should may might must has
    have had having also only even still again ever yet already almost maybe perhaps however although though since until
    unless against up down out off such same other others own few many much lot lots bit little several enough else
    everything everyone anything anyone anywhere something someone somewhere nothing thing things way ways kind sort
    like well etc eg ie either once due now today yesterday tomorrow time times day days week weeks month months year
    years hour hours minute minutes night nights first second last next two three four five
    go goes going went gone come comes came coming make makes made making take takes took taken give gives gave given
    say says said saying tell told know knew think thinking thought want wanted need needed try tried trying find found
    see saw seen let put keep kept use used ask asked leave left back
    can't couldn't don't doesn't didn't isn't aren't wasn't weren't won't wouldn't shouldn't haven't hasn't hadn't
    i'm i've i'd i'll you're you've you'd you'll it's we're we've we'd we'll they're they've that's there's
    could've would've should've must've might've he'd she'd it'd they'd that'd he'll she'll it'll they'll that'll
    who've ain't mustn't needn't
""")
GERMAN_OTHERS = _words("""
    ist sind war waren wird werden wurde wurden sei wäre bin bist seid gewesen sehr so ganz ziemlich recht wirklich echt
    total besonders extrem mehr weniger nicht immer nie nur und oder aber wenn weil als dass daß ob wie wo wer was wann
    warum denn doch auch noch schon mal dann da dort hier hin her er sie es ich du wir mir mich dir dich ihm ihn uns
    euch ihnen sich man habe hat haben hatte hatten kann können konnte könnte muss müssen musste soll sollte will wollen
    wollte würde würden etwas nichts alles viel viele vielen wenig wenige andere anderen sonst leider eher gar nun sowie
    bzw je etwa fast bis ab bereits daher deshalb trotzdem uhr tag tage tagen woche wochen monat jahr jahre zeit mal
    minuten stunde stunden gibt gab geht ging gehen kommt kam kommen macht machte machen gemacht lässt findet fand
    finden gehört zwei drei vier fünf
""")
# Chat abbreviations, units and times of day, which are frequent in short reviews.
ABBREVIATIONS = _words("""
    btw lol omg imo imho tbh idk asap pls plz please thx thanks thank etc yeah yes nope meh wow haha fyi noon midnight
    min mins sec secs hrs cant wont dont doesnt didnt isnt wasnt ive youre bitte danke naja mfg usw
""")
OPINIONS = _words("""
    good great nice best better excellent amazing awesome bad worse worst terrible horrible awful poor wonderful
    fantastic lovely perfect fine ok okay decent average mediocre love loved liked enjoy enjoyed hate hated recommend
    recommended disappointed disappointing favorite favourite beautiful pleasant highly definitely absolutely truly
    simply certainly probably actually especially usually
    gut gute guten guter gutes bessere besseren beste besten schlecht schlechte schlechten schlechter schlechtes toll
    tolle tollen toller schön schöne schönen hervorragend ausgezeichnet wunderbar perfekt schrecklich furchtbar
    mittelmäßig empfehlen empfehlenswert zufrieden enttäuscht enttäuschend absolut einfach sicher natürlich definitiv
    großen große groß kleine kleinen klein
""")
ARTICLES = _words("""
    the a an this that these those my your his her its our their
    der die das den dem des ein eine einen einem einer eines mein meine meinen meinem unser unsere unseren
""")
BEFORE_NOUNS = ENGLISH_BEFORE_NOUNS | GERMAN_BEFORE_NOUNS
FUNCTION_WORDS = BEFORE_NOUNS | ENGLISH_OTHERS | GERMAN_OTHERS | ABBREVIATIONS
# Words that are not nouns but occur in noun position in terse texts, and endings of other such words.
TERSE_OTHERS = _words("""
    new old latest clean dirty slow fast quick easy hard free broken cheap expensive full empty constant gone low high
    hot cold tiny big small huge ugly useless useful buggy weird annoying confusing boring insane nice cool solid simple
    worth star stars work works fix fixes install lose lost keeps delete remove stop stops open opens start starts send
    sent forget forgot wish hope hopes fail fails break breaks broke kill kills ruin wait waste guess add adds bring buy
    bought pay paid play plays change changes read loves hates likes needs wants using daily constantly randomly
    neu neue neuer neues alt alte alter langsam schnell schneller kaputt teuer billig voll leer nervt hängt läuft stürzt
    funktioniert braucht bekommt stern sterne immer ständig dauernd viel
""")
TERSE_ENDINGS = ("ed", "ly", "ing", "ful", "less", "able", "ous", "est")
NUMBERS = _words("many few fewer several numerous viele wenige mehrere einige")
QUANTITIES = NUMBERS | _words("more less much lots zero without lot plus mehr weniger viel wenig ohne")
# These words begin a clause, which is mostly about another aspect.
CONJUNCTIONS = _words("but while although though and however because which where und aber weil während obwohl jedoch")

LEAST_LETTERS = 3
# A word is a noun if at least this share of its occurrences is in noun position or, in German texts with capitals, has
# a capital. Adjectives occur in noun position too, but less often ("the best of all").
LEAST_NOUN_SHARE = 0.2
LEAST_CAPITAL_SHARE = 0.6
TERSE_ARTICLES = 0.04  # texts with a lower share of articles among the words count as terse; prose has 0.08 or more
MOST_UNIT_SHARE = 0.5  # a word with a higher share of its occurrences after a number counts as a unit ("10 mins")
MOST_SENTENCES = 0.5  # a word in a higher share of the sentences names no aspect

_UNIT = re.compile(r"\d\s*([^\W\d_]+)")
_TOKEN = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*|[.,;:!?()]")


def tokens(sentence: str) -> list[str]:
    """Returns the words (without a final 's) and punctuation marks of a sentence in order; numbers are left out."""
    return [token.replace("’", "'").removesuffix("'s") for token in _TOKEN.findall(sentence)]


def is_word(token: str) -> bool:
    """Returns whether a token is a word, and not a punctuation mark."""
    return token[0].isalpha()


@dataclass(frozen=True)
class Words:
    """The words of a collection of sentences.

    Attributes:
        sentences: tokens of each sentence.
        after_numbers: number of occurrences directly after a digit, by word in lower case.
    """

    sentences: Sequence[list[str]]
    after_numbers: Counter[str]

    @classmethod
    def of(cls, sentences: Iterable[str]) -> Words:
        """Tokenizes sentences, and counts the words that follow a digit."""
        sentences = list(sentences)
        units = Counter(unit.lower() for sentence in sentences for unit in _UNIT.findall(sentence))
        return cls([tokens(sentence) for sentence in sentences], units)

    @cached_property
    def german(self) -> bool:
        """Whether the sentences have more German than English function words; words in both lists do not count."""
        counts = Counter(token.lower() for sentence in self.sentences for token in sentence)
        english, german = ENGLISH_BEFORE_NOUNS | ENGLISH_OTHERS, GERMAN_BEFORE_NOUNS | GERMAN_OTHERS
        return sum(counts[word] for word in german - english) > sum(counts[word] for word in english - german)

    @cached_property
    def terse(self) -> bool:
        """Whether the share of articles among the words is below TERSE_ARTICLES."""
        words = [token.lower() for sentence in self.sentences for token in sentence if is_word(token)]
        return sum(word in ARTICLES for word in words) < TERSE_ARTICLES * len(words)

    def stem(self, token: str) -> str:
        """Returns a lower-case stem of a word, by simple rules for endings; users see `spelling` instead."""
        word = token.lower()
        if self.german:
            for ending in ("en", "n", "e", "s"):
                if word.endswith(ending) and len(word) - len(ending) >= 4:
                    return word.removesuffix(ending)
            return word
        if word.endswith("ies") and len(word) > 4:
            return word[:-3] + "y"
        if word.endswith(("shes", "ches", "sses", "xes")) and len(word) > 4:
            return word[:-2]
        if word.endswith("s") and len(word) > 3 and not word.endswith(("ss", "us")):
            return word[:-1]
        return word

    @cached_property
    def stems(self) -> list[frozenset[str]]:
        """For each sentence, the stems of its words except short words, function words and opinion words."""
        return [frozenset(self.stem(t) for t in sentence if self._carries(t)) for sentence in self.sentences]

    @cached_property
    def document_frequency(self) -> Counter[str]:
        """The number of sentences that have a stem, by stem."""
        return Counter(stem for stems in self.stems for stem in stems)

    @cached_property
    def spelling(self) -> dict[str, str]:
        """The most frequent spelling of each stem, in lower case.

        In German texts with capitals, spellings keep their case, and the first words of sentences are left out.
        """
        forms: dict[str, Counter[str]] = {}
        for sentence in self.sentences:
            for token in sentence[1:] if self._capitals else sentence:
                if self._carries(token):
                    form = token if self._capitals else token.lower()
                    forms.setdefault(self.stem(token), Counter())[form] += 1
        return {stem: counts.most_common(1)[0][0] for stem, counts in forms.items()}

    def nouns(self, least: int) -> list[str]:
        """Returns the stems of nouns, except units such as "mins", by decreasing number of sentences.

        Args:
            least: minimum number of sentences that have the noun. Nouns in more than the share MOST_SENTENCES of all
                sentences are left out too.
        """
        seen: Counter[str] = Counter()
        as_noun: Counter[str] = Counter()
        stands_as_noun = _stands_as_terse_noun if self.terse else _stands_as_noun
        units: Counter[str] = Counter()
        for word, count in self.after_numbers.items():
            units[self.stem(word)] += count
        for sentence in self.sentences:
            for place, token in enumerate(sentence):
                if not self._carries(token) or (self._capitals and place == 0):
                    continue
                seen[self.stem(token)] += 1
                as_noun[self.stem(token)] += token[0].isupper() if self._capitals else stands_as_noun(sentence, place)
        share = LEAST_CAPITAL_SHARE if self._capitals else LEAST_NOUN_SHARE
        frequency, most = self.document_frequency, MOST_SENTENCES * len(self.sentences)
        frequent = [stem for stem in seen if least <= frequency[stem] <= most]
        frequent = [stem for stem in frequent if units[stem] <= MOST_UNIT_SHARE * seen[stem]]
        found = [stem for stem in frequent if as_noun[stem] >= share * seen[stem]]
        return sorted(found, key=lambda stem: (-frequency[stem], stem))

    @cached_property
    def _capitals(self) -> bool:
        """Whether nouns have capitals: the texts are German, and over 10 % of words inside sentences begin with one."""
        inside = [token for sentence in self.sentences for token in sentence[1:] if is_word(token)]
        return self.german and sum(token[0].isupper() for token in inside) > 0.1 * len(inside)

    def _carries(self, token: str) -> bool:
        word = token.lower()
        if not is_word(word) or len(word) < LEAST_LETTERS:
            return False
        return word not in FUNCTION_WORDS and word not in OPINIONS


def _stands_as_noun(sentence: list[str], place: int) -> float:
    """Returns a score from 0 to 1 of how typical the neighbours of the word at `place` are for a noun.

    The score is 1 for "food" in "the food was" and "the thai food .", and 0.5 in "had great food ,". It is 0 for
    "fresh" in "was fresh" and "fresh food", and for the first word of a sentence.
    """
    following = sentence[place + 1].lower() if place + 1 < len(sentence) else "."
    if is_word(following) and following not in FUNCTION_WORDS:
        return 0.0
    before = [token.lower() for token in sentence[max(0, place - 2) : place]]
    if not before:
        return 0.0
    if before[-1] in BEFORE_NOUNS or before[-1] in NUMBERS:
        return 1.0
    if not is_word(before[-1]) or before[-1] in FUNCTION_WORDS or len(before) < 2:
        return 0.0
    return 1.0 if before[0] in BEFORE_NOUNS else 0.5 * (before[-1] in OPINIONS)


def _stands_as_terse_noun(sentence: list[str], place: int) -> float:
    """Returns a score from 0 to 1 of how likely the word at `place` is a noun, for terse texts.

    The score is 0 for words in TERSE_OTHERS and words with an ending in TERSE_ENDINGS. It is 1 for the nouns in "too
    many ads", "great support" and "login, again", and lower in positions that adjectives and verbs have too.
    """
    word = sentence[place].lower()
    if word in TERSE_OTHERS or word.endswith(TERSE_ENDINGS):
        return 0.0
    before = sentence[place - 1].lower() if place else "."
    following = sentence[place + 1].lower() if place + 1 < len(sentence) else "."
    ends = not is_word(following) or following in FUNCTION_WORDS
    if before in BEFORE_NOUNS or before in QUANTITIES or before in OPINIONS or before in TERSE_OTHERS:
        return 1.0 if ends else 0.5
    if not is_word(before) or before in FUNCTION_WORDS:
        return 1.0 if ends else 0.5
    return 0.3 if ends else 0.0


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


HINT = "hint"
MOST_DEV_TEXTS = 0.25  # maximum share of texts for dev rows; training rows use other texts
SENTENCES = 1024  # number of sentences per prediction call
Pair = tuple[str, str]


@dataclass(frozen=True)
class SheetRow:
    """A row of the sheet.

    Attributes:
        text: the text or sentence.
        aspect: name of the aspect.
        hint: reason for the selection: words of the aspect that the text has, or a predicted label with its
            probability; empty if there is no such reason.
        split: "train" or "dev", or another text that a file has in the column `split`.
        label: the label; empty until labelled.
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
    """Returns the distinct texts with single spaces, in order of first occurrence.

    Texts that differ only in case or spaces count as equal; the first one is kept.

    Args:
        texts: the texts.
        by_sentence: whether to return the distinct sentences of the texts instead.
    """
    kept: dict[str, str] = {}
    for text in texts:
        for part in split_sentences(text) if by_sentence else [" ".join(text.split())]:
            kept.setdefault(normalized(part), part)
    return list(kept.values())


def dev_rows(texts: Sequence[str], aspects: Sequence[str], count: int, seed: int) -> list[SheetRow]:
    """Returns at most `count` evaluation rows, drawn so that every (text, aspect) pair has the same probability.

    At most the share MOST_DEV_TEXTS of the texts is drawn, but at least one text if `count` is not 0. Aspects are
    assigned in a random cycle: one to each text, or several if there are fewer texts than rows. Texts are in random
    order, so the first rows are a random sample too.
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
    """Returns at most `count` training rows of random (text, aspect) pairs.

    Args:
        texts: distinct texts.
        aspects: names of aspects.
        count: maximum number of rows.
        seed: seed of the selection.
        exclude: pairs of normalised text and aspect to leave out.
    """
    pairs = range(len(texts) * len(aspects))
    numbers = random.Random(f"train {seed}").sample(pairs, min(len(pairs), count + len(exclude)))
    drawn = (SheetRow(texts[number // len(aspects)], aspects[number % len(aspects)]) for number in numbers)
    return [row for row in drawn if row.pair not in exclude][:count]


def noun_rows(
    sentences: Sequence[str], proposals: Sequence[Proposal], count: int, exclude: Collection[Pair] = ()
) -> list[SheetRow]:
    """Returns at most `count` training rows from the clearest sentences of each proposal.

    A sentence gets a row for each aspect of which it has a word, and a row for one other aspect, on which it probably
    has no opinion. A model that is trained without rows of the second kind predicts an opinion for every aspect.

    Args:
        sentences: the sentences of the proposals.
        proposals: the aspects, from `propose` or `choose`.
        count: maximum number of rows.
        exclude: pairs of normalised sentence and aspect to leave out.
    """
    has: dict[int, list[tuple[str, str]]] = {}
    for proposal in proposals:
        for number, words in zip(proposal.picked, proposal.found):
            has.setdefault(number, []).append((proposal.name, ", ".join(words)))
    names = [proposal.name for proposal in proposals]
    rows: list[SheetRow] = []
    for turn, number in enumerate(_interleaved(proposals)):
        own = dict(has[number])
        found = [SheetRow(sentences[number], name, words) for name, words in own.items()]
        others = [name for name in names if name not in own]
        if others:
            found.append(SheetRow(sentences[number], others[turn % len(others)]))
        rows += [row for row in found if row.pair not in exclude]
        if len(rows) >= count:
            break
    return rows[:count]


def most_uncertain(
    predictor: Predictor,
    sentences: Sequence[str],
    count: int,
    exclude: Collection[Pair] = (),
    batch_size: int = 64,
    seen: Callable[[int], None] = lambda number: None,
) -> list[SheetRow]:
    """Returns rows for the sentences and aspects whose predicted label is the least probable, least probable first.

    This is uncertainty sampling (Lewis and Gale, 1994).

    Args:
        predictor: the model; rows are chosen among all its aspects.
        sentences: the candidates.
        count: maximum number of rows.
        exclude: pairs of normalised sentence and aspect to leave out.
        batch_size: maximum number of pairs in a batch of predictions.
        seen: called after every SENTENCES sentences, and at the end, with the number of sentences predicted so far.

    Raises:
        InputError: the model has targets, for which a sheet has no column.
    """
    if predictor.trained.task.has_targets:
        raise InputError(
            "with: expected a model whose contexts are aspects only, got a model with targets. Omit --with."
        )
    found: list[tuple[float, int, SheetRow]] = []
    for start in range(0, len(sentences), SENTENCES):
        part = sentences[start : start + SENTENCES]
        pairs = [(text, aspect) for text in part for aspect in predictor.trained.task.aspects]
        rows = [(text, aspect) for text, aspect in pairs if (normalized(text), aspect) not in exclude]
        frame = pd.DataFrame(rows, columns=["text", "aspect"])
        for answer in as_predictions(predictor.predict(frame, batch_size=batch_size)):
            sure = answer.probabilities[answer.label]
            found.append((sure, len(found), SheetRow(answer.text, answer.aspect, f"{answer.label}? {sure:.2f}")))
        found = sorted(found, key=lambda one: one[:2])[:count] if len(found) > 4 * count else found
        seen(start + len(part))
    return [row for _, _, row in sorted(found, key=lambda one: one[:2])[:count]]


def mixed(first: Sequence[SheetRow], second: Sequence[SheetRow]) -> list[SheetRow]:
    """Returns the rows of both lists, evenly interleaved, so that the beginning of a sheet has rows of both lists."""
    places = [((place + 0.5) / len(rows), row) for rows in (first, second) for place, row in enumerate(rows)]
    return [row for _, row in sorted(places, key=lambda one: one[0])]


def _interleaved(proposals: Sequence[Proposal]) -> Iterator[int]:
    """Yields the index of each picked sentence once, cycling through the proposals."""
    waiting = [iter(proposal.picked) for proposal in proposals]
    taken: set[int] = set()
    while waiting:
        for numbers in list(waiting):
            number = next((number for number in numbers if number not in taken), None)
            if number is None:
                waiting.remove(numbers)
            else:
                taken.add(number)
                yield number


def check_columns(columns: Columns) -> None:
    """Raises InputError if one of `columns` is called `hint` or `split`, because every sheet has these two columns."""
    for name in columns.fields().values():
        if name in (HINT, SPLIT_COLUMN):
            raise InputError(f"columns: expected a name other than {HINT} and {SPLIT_COLUMN}, got {name!r}")


def read_sheet(path: Path, columns: Columns) -> list[SheetRow]:
    """Returns the labelled rows and all dev rows of a partly labelled CSV, in the order of the file.

    Args:
        path: the CSV.
        columns: names of its columns, with those of aspect and label.

    Raises:
        DataError: the file cannot be read as CSV, or lacks the column of texts or aspects.
        InputError: the file lacks the column of labels.
    """
    assert columns.aspect is not None and columns.label is not None
    texts = replace(columns, label=None)
    rows = []
    for record in read_table(path, texts, "csv").to_dict("records"):
        if columns.label not in record:
            raise InputError(f"labelled: expected a column {columns.label!r} in {path}, got {', '.join(record)}")
        split, label = record.get(SPLIT_COLUMN, "").strip().lower() or "train", record[columns.label].strip()
        if label or split == "dev":
            rows.append(SheetRow(record[columns.text], record[columns.aspect], record.get(HINT, ""), split, label))
    return rows


def write_sheet(path: Path, rows: Sequence[SheetRow], columns: Columns) -> None:
    """Writes a CSV with text, aspect, label, hint and split, in which formulas are escaped; replaces the file."""
    with atomic_write(path) as handle:
        writer = csv.writer(handle, lineterminator="\n")
        header = (columns.text, columns.aspect or "", columns.label or "", HINT, SPLIT_COLUMN)
        writer.writerow(map(escape_formula, header))
        for row in rows:
            writer.writerow(map(escape_formula, (row.text, row.aspect, row.label, row.hint, row.split)))
