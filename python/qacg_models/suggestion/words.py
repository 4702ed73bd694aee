"""Words of sentences as stems, and detection of nouns without a part-of-speech tagger.

Function words and opinion words, English and German, are not proposed as aspects.

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
