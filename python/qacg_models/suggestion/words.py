"""Words of sentences as stems, and detection of nouns without a part-of-speech tagger.

German nouns are detected by a capital letter inside a sentence. English nouns, and German nouns in texts without
capitals, are detected at the end of a phrase that begins with an article or preposition ("the thai food ."). In terse
texts, which have few articles, a noun begins a phrase or follows a quantity or an opinion word ("too many ads", "great
support").
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from qacg_models.suggestion.function_words import (
    ARTICLES,
    BEFORE_NOUNS,
    ENGLISH_BEFORE_NOUNS,
    ENGLISH_OTHERS,
    FUNCTION_WORDS,
    GERMAN_BEFORE_NOUNS,
    GERMAN_OTHERS,
    NUMBERS,
    OPINIONS,
    QUANTITIES,
    TERSE_ENDINGS,
    TERSE_OTHERS,
)

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
