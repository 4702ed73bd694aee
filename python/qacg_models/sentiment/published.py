"""Readers of published data: SentiHood, SemEval-2014 to 2016, MAMS and GermEval 2017.

| format | function |
|---|---|
| SentiHood as pairs of sentence and context, tab separated, as QACG-BERT uses it | `sentihood_pairs` |
| SentiHood as published, a JSON array | `sentihood_json` |
| SemEval-2014 restaurants with a line for each text and aspect | `semeval_pairs` |
| XML of SemEval-2014 to 2016, MAMS and GermEval 2017 | `xml_texts` |
| GermEval 2017 in lines | `germeval_texts` |

The functions of pairs yield rows. The others yield texts with their opinions on categories. The aspect of a row is the
whole category, such as `FOOD#QUALITY`. A category that the text does not name gets the label `none`. Each opinion is a
row of its own. Its target, the words that it is about, is empty for an implicit target (`NULL`). It is not part of the
context: 30 % of the test opinions of SemEval-2015 restaurants have a target that no training text has. Two opinions on
the same category and target get two ids. The polarity `conflict` is a label, which 3- and 2-class accuracy leave out.

All functions that read raise DataError for a file that cannot be read or violates its format, with the line if known.
"""

from __future__ import annotations

import io
import re
import xml.sax
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from qacg_models.sentiment.columns import SENTIHOOD_COLUMNS
from qacg_models.sentiment.example import SEMEVAL, DataError, Task
from qacg_models.sentiment.text_files import json_values, numbered_lines, read_bytes
from qacg_models.utils.text import counted

ABSENT = "none"  # the label of a category that a text does not name
MISCELLANEOUS = "anecdotes/miscellaneous"  # a category of SemEval-2014 restaurants only
# The format of pairs shortens the name of this category.
SHORT_NAMES = {MISCELLANEOUS: "anecdotes"}
# Aspects of SentiHood that the task leaves out. As in published results, it has the four with 73 % of the opinions.
OTHER_ASPECTS = (
    *("dining", "green nature", "live", "multicultural"),
    *("nightlife", "quiet", "shopping", "touristy"),
)
_SPELLINGS = {"positve": "positive"}  # in the training file of GermEval 2017
_TARGET = re.compile(r"LOCATION[0-9]+")
_RELEVANCE = ("true", "false", "unknown")
_SENTIMENT = ("positive", "negative", "neutral", "unknown")
_HEADER = ["SOURCE", "TEXT", "RELEVANCE", "SENTIMENT"]  # of GermEval; some files have it
_IDS = {"sentence": "id", "Review": "rid", "Document": None}  # elements of texts, and the attributes of their ids
_OPINIONS = ("aspectCategory", "Opinion")


class Row(NamedTuple):
    """A labelled row of a published file: fields of `Example`, with the name of the label."""

    id: str
    sentence: str
    target: str
    aspect: str
    label: str
    line: int


def sentihood_pairs(path: Path, task: Task) -> Iterator[Row]:
    """Yields the rows of SentiHood as pairs.

    The tab-separated header is `id sentence1 sentence2 label` in any order; a row per sentence and context follows.
    Quotes are ordinary characters, and the text `None` is the label for no opinion, not a missing value.
    """
    order: list[int] = []
    for line, text in numbered_lines(path):
        fields = text.split("\t")
        if not text.strip():
            continue
        if not order:
            expected = f"header: expected {', '.join(SENTIHOOD_COLUMNS)} (tab separated)"
            if missing := [name for name in SENTIHOOD_COLUMNS if name not in fields]:
                raise DataError(path, line, f"{expected}, got a header without {', '.join(missing)}")
            if len(fields) != len(SENTIHOOD_COLUMNS):
                extra = [name for name in fields if name not in SENTIHOOD_COLUMNS] or [
                    "a second column of the same name"
                ]
                raise DataError(path, line, f"{expected}, got also {', '.join(extra)}")
            order = [fields.index(name) for name in SENTIHOOD_COLUMNS]
            continue
        if len(fields) != len(order):
            raise DataError(
                path, line, f"expected {len(order)} tab-separated fields as in the header, got {len(fields)}"
            )
        row_id, sentence, context, label = (fields[index] for index in order)
        yield _pair(path, line, task, (row_id, sentence, context, label), ("id", "sentence1"))


def semeval_pairs(path: Path, task: Task) -> Iterator[Row]:
    """Yields the rows of SemEval-2014 restaurants as pairs.

    A line has four tab-separated fields: id, label, aspect and text. There is no header.
    """
    for line, text in numbered_lines(path):
        fields = text.split("\t")
        if not text.strip():
            continue
        if len(fields) != 4:
            raise DataError(path, line, f"expected 4 tab-separated fields (id, label, aspect, text), got {len(fields)}")
        row_id, label, aspect, sentence = fields
        yield _pair(path, line, task, (row_id, sentence, aspect, label), ("id", "text"))


def _pair(path: Path, line: int, task: Task, fields: tuple[str, ...], names: tuple[str, str]) -> Row:
    row_id, sentence, context, label = fields
    if not row_id or not sentence.strip():
        raise DataError(path, line, f"has an empty {names[bool(row_id)]}")
    try:
        target, aspect = task.split_context(context)
    except ValueError as error:
        raise DataError(path, line, str(error)) from None
    return Row(row_id, sentence, target, aspect, label, line)


def is_sentihood(path: Path) -> bool:
    """Whether the first line of a file contains sentence1 or sentence2, as the header of pairs of SentiHood does."""
    header = _first_line(path)
    return b"sentence1" in header or b"sentence2" in header


def is_germeval(path: Path) -> bool:
    """Whether the first line of a file has the fields of GermEval 2017 in lines, or the names of its fields."""
    fields = _first_line(path).decode(errors="replace").removeprefix("\ufeff").split("\t")
    return fields[:4] == _HEADER or _fits_germeval([field.rstrip("\r\n") for field in fields][:5])


def _first_line(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            return handle.readline(1 << 16)
    except OSError:
        return b""  # reading the file raises the error


def sentihood_json(path: Path, task: Task) -> Iterator[Row]:
    """Yields a row for every sentence, target and aspect of SentiHood as published.

    The targets of a sentence are those that its text names and those of its opinions. Sentences are tokenised and
    lowercased as in the pairs, so that both formats give the same rows.
    """
    for line, item in json_values(path):
        number, text, opinions = _sentihood_fields(path, line, item)
        sentence = sentihood_tokens(text)
        labels: dict[tuple[str, str], str] = {}
        for opinion in opinions:
            target, aspect, sentiment = (opinion[name] for name in ("target_entity", "aspect", "sentiment"))
            aspect = aspect.replace("-", " ")
            known = aspect in task.aspects or aspect in OTHER_ASPECTS
            if not known or sentiment not in task.labels or not _TARGET.fullmatch(target):
                raise DataError(
                    path,
                    line,
                    f"sentence {number}: expected target LOCATION<number>, aspect and sentiment of SentiHood, got the"
                    f" opinion {opinion!r}",
                )
            if aspect in OTHER_ASPECTS:
                continue
            if labels.setdefault((target, aspect), sentiment) != sentiment:
                reason = f"expected one sentiment for {aspect!r} of {target}, got two; keep one"
                raise DataError(path, line, f"sentence {number}: {reason}")
        named = {opinion["target_entity"] for opinion in opinions}  # opinions on OTHER_ASPECTS included
        for target in sorted({*_TARGET.findall(text), *named}):
            name = target.replace("LOCATION", "location - ")
            for aspect in task.aspects:
                yield Row(number, sentence, name, aspect, labels.get((target, aspect), task.labels[0]), line)


def _sentihood_fields(path: Path, line: int, item: object) -> tuple[str, str, list[dict]]:
    if not isinstance(item, dict) or not {"id", "text", "opinions"} <= item.keys():
        raise DataError(path, line, "expected an object with id, text and opinions, got another value")
    number, text, opinions = item["id"], item["text"], item["opinions"]
    if not isinstance(text, str) or not text.strip() or not isinstance(opinions, list):
        found = "no list" if isinstance(text, str) and text.strip() else "no text or an empty one"
        raise DataError(path, line, f"sentence {number}: expected a text and a list of opinions, got {found}")
    names = ("sentiment", "aspect", "target_entity")
    for opinion in opinions:
        if not isinstance(opinion, dict) or not all(isinstance(opinion.get(name), str) for name in names):
            raise DataError(
                path, line, f"sentence {number}: expected opinions with {', '.join(names)}, got {opinion!r}"
            )
    return str(number), text, opinions


# Penn Treebank tokenisation, as far as the published pairs use it. Apostrophes become tokens of their own, except in
# n't, which an earlier step separates, and inside longer words such as o'clock.
_STEPS = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(^\"|(?<=[ (\[{<])(?:\"|''))", " `` "),
        (r'"', " ' ' "),
        (r"(?<!`)`(?!`)", " ` "),
        (r"([:,])(?=\D|$)", r" \1 "),
        (r"\.{3}", " ... "),
        (r"--|[;@#$%&?!()\[\]{}<>]", r" \g<0> "),
        (r"(?<![.])\.(?=[\])}>\"' ]*$)", " . "),
        (r"(?<=[0-9])\.(?=[ \[])", " . "),
        (r"\b(can(?=not\b)|gim(?=me\b)|gon(?=na\b)|got(?=ta\b)|lem(?=me\b)|wan(?=na\b))", r"\1 "),
        (r"n't(?!\S)", " n't"),
        (r"(?<!\S)location([0-9]+)(?![^\s'])", r"location - \1"),
        (r"(?<!\w)'|'(?!\w)|'(?=(?:ll|re|ve|[a-su-z])(?!\w))", " ' "),
    )
)


def sentihood_tokens(text: str) -> str:
    """Returns a sentence lowercased and tokenised as in the published pairs, with single spaces between tokens."""
    text = text.strip().lower()
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


class Opinion(NamedTuple):
    """A category with its polarity and target; the target is empty if it is implicit, or if the file has none."""

    line: int
    category: str
    polarity: str
    target: str = ""


class AnnotatedText(NamedTuple):
    """A text with its opinions.

    Attributes:
        line: line on which it begins.
        id: its id; None if the file has none, or has ids that several texts share.
        text: the text.
        opinions: the opinions; empty if the text has none.
        left_out: why the text is no example, such as "marked OutOfScope"; empty if it is one.
    """

    line: int
    id: str | None
    text: str
    opinions: list[Opinion]
    left_out: str = ""


def _opinion(path: Path, line: int, category: str, polarity: str, target: str = "") -> Opinion:
    """Returns an opinion, without spaces at the ends of its fields."""
    category, polarity, target = category.strip(), polarity.strip(), target.strip()
    if not category:
        raise DataError(path, line, "category: expected a name, got an opinion without a category; add it")
    if not polarity:
        reason = f"polarity: expected a label, got {category!r} without a polarity, as in a test file without labels"
        raise DataError(path, line, f"{reason}; pass the file with labels")
    return Opinion(line, category, _SPELLINGS.get(polarity, polarity), "" if target == "NULL" else target)


def _no_opinions(path: Path, got: str) -> DataError:
    """Returns the error for a file in which no text has an opinion; `got` describes the texts."""
    advice = (
        "to train or evaluate, pass a file with labels, or write a CSV with the columns text, aspect and label (one row"
        " for each text and aspect); to predict, write a CSV with the column text"
    )
    return DataError(path, None, f"expected opinions with a category and a polarity, got {got}; {advice}")


def germeval_texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of GermEval 2017: source, text, relevance, sentiment, and `category:polarity` pairs.

    Fields are separated by tabs, pairs by spaces; a text without opinions has no pairs. Quotes are ordinary characters.
    A source is a URL, which several texts can share. The XML of the same data also has the targets.
    """
    count, labelled = 0, False
    for line, row in numbered_lines(path):
        fields = row.rstrip("\t").split("\t")
        if not row.strip() or fields[:4] == _HEADER:
            continue
        if not _fits_germeval(fields):
            expected = "source, text, relevance (true or false), sentiment and category:polarity pairs"
            raise DataError(path, line, f"expected 4 or 5 tab-separated fields ({expected}), got {row[:60]!r}")
        pairs = [pair.rpartition(":") for pair in "".join(fields[4:]).split()]
        opinions = [_opinion(path, line, category, polarity) for category, _, polarity in pairs]
        count, labelled = count + 1, labelled or bool(opinions)
        yield AnnotatedText(line, None, fields[1], opinions, "" if fields[1].strip() else "without text")
    if not labelled:
        raise _no_opinions(path, f"{counted(count, 'text')} with no opinions, as in a test file")


def _fits_germeval(fields: list[str]) -> bool:
    return len(fields) in (4, 5) and fields[2].lower() in _RELEVANCE and fields[3].lower() in _SENTIMENT


def xml_texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of an XML file.

    A text is a `sentence` (SemEval, MAMS), a `Review` with opinions on the whole text (SemEval-2016, subtask 2) or a
    `Document` (GermEval). An `aspectCategory` (SemEval-2014, MAMS) or `Opinion` (the others) names a category; aspect
    terms are ignored. Sentences with `OutOfScope="TRUE"` have opinions on other things than the reviewed one, which are
    not annotated; they are left out. Sentences without `Opinions` have no opinion. The ids of documents are URLs, which
    several documents can share.
    """
    handler = _Texts(path)
    try:
        xml.sax.parse(io.BytesIO(read_bytes(path)), handler)
    except xml.sax.SAXParseException as error:
        raise DataError(path, error.getLineNumber(), f"is not XML ({error.getMessage()})") from None
    yield from handler.done
    if not any(handler.elements[name] for name in _OPINIONS):
        raise _no_opinions(path, _described(handler.elements))


def _described(elements: Counter[str]) -> str:
    """Returns what a file without opinions contains."""
    count = sum(elements[name] for name in ("sentence", "Document"))
    if not count:
        others = f", but the elements {', '.join([*elements][:5])}" if elements else ""
        return f"no sentence or Document{others}"
    terms = counted(elements["aspectTerm"], "aspectTerm", "aspectTerms")
    unlabelled = "no aspectCategory or Opinion, as in a test file"
    named = f"{terms}, which have no category" if elements["aspectTerm"] else unlabelled
    return f"{counted(count, 'text')} with {named}"


class _Element:
    """An open element of a text. For a review: its sentences, and whether it has an `Opinions` element of its own."""

    def __init__(self, name: str, line: int, attrs):
        self.name, self.line, self.id = name, line, attrs.get(_IDS[name]) or None
        self.left_out = "marked OutOfScope" if attrs.get("OutOfScope", "").upper() == "TRUE" else ""
        self.parts: list[str] = []
        self.opinions: list[Opinion] = []
        self.texts: list[AnnotatedText] = []
        self.annotated = False


class _Texts(xml.sax.ContentHandler):
    """Collects the texts parsed so far, and counts the elements by name."""

    def __init__(self, path: Path):
        super().__init__()
        self.path = path
        self.elements: Counter[str] = Counter()
        self.done: list[AnnotatedText] = []
        self.open: list[_Element] = []
        self.inside_text = False

    def startElement(self, name, attrs):
        self.elements[name] += 1
        if name in _IDS:
            self.open.append(_Element(name, self._line(), attrs))
        elif not self.open:
            if name in _OPINIONS:
                reason = f"expected {name} inside a sentence, Review or Document, got it outside; write a CSV instead"
                raise DataError(self.path, self._line(), reason)
        elif name == "text":
            self.inside_text = True
        elif name == "Opinions":
            self.open[-1].annotated = True
        elif name in _OPINIONS:
            fields = (attrs.get(field, "") for field in ("category", "polarity", "target"))
            self.open[-1].opinions.append(_opinion(self.path, self._line(), *fields))

    def characters(self, content):
        if self.inside_text:
            self.open[-1].parts.append(content)

    def endElement(self, name):
        if name == "text":
            self.inside_text = False
        elif name in _IDS:
            self._add(self._texts(self.open.pop()))

    def _texts(self, element: _Element) -> list[AnnotatedText]:
        """Returns the text of a closed element, or the texts of its sentences if it has no opinions of its own."""
        sentences = element.texts
        if sentences and not (element.annotated or element.opinions):
            return sentences
        if any(sentence.opinions for sentence in sentences):
            reason = f"{element.name} {element.id!r}: expected opinions on the whole text or on its sentences, got both"
            raise DataError(self.path, self._line(), f"{reason}; keep one of them")
        text = "".join(element.parts) or " ".join(sentence.text for sentence in sentences)
        return [AnnotatedText(element.line, element.id, text, element.opinions, element.left_out)]

    def _add(self, found: list[AnnotatedText]) -> None:
        """Adds texts to the review that contains them, or to those that are done."""
        if self.open:
            self.open[-1].texts += found
            return
        for one in found:
            if not one.text.strip() and not one.left_out:
                if one.id is not None:
                    raise DataError(self.path, self._line(), f"id {one.id!r} has no text; add it")
                one = one._replace(left_out="without text")
            self.done.append(one)

    def _line(self) -> int:
        return self._locator.getLineNumber()


def opinion_pairs(texts: Mapping[Path, Sequence[AnnotatedText]], aspects_given: bool) -> set[tuple[str, str]] | None:
    """Returns the pairs of category and label of training texts; None for SemEval-2014 restaurants.

    Args:
        texts: the texts by file.
        aspects_given: whether the user named the categories; otherwise the files must share some.
    """
    pairs, ids_only = set(), True
    by_file: dict[Path, set[str]] = {}
    for path, found in texts.items():
        by_file[path] = set()
        first = next(iter(by_file))
        for text in found:
            for one in () if text.left_out else text.opinions:
                by_file[path].add(one.category)
                pairs |= {(one.category, ABSENT), (one.category, one.polarity)}
                ids_only = ids_only and text.id is not None and not one.target
        if not aspects_given and path != first and not by_file[path] & by_file[first]:
            reason = f"expected categories of {first.name}, got only others ({', '.join(sorted(by_file[path])[:3])})"
            raise DataError(path, None, f"{reason}; pass one of the files, or name all categories with --aspects")
    categories = set().union(*by_file.values())
    restaurants = {*SEMEVAL.aspects, *SHORT_NAMES} - {*SHORT_NAMES.values()}
    # MAMS shares four of the categories, but has no ids.
    is_restaurants = MISCELLANEOUS in categories or (categories and ids_only and categories <= restaurants)
    return None if is_restaurants else pairs


def rows_of_texts(texts: Iterable[AnnotatedText], path: Path, task: Task) -> Iterator[Row]:
    """Yields the rows of each text by aspect: one for each opinion, or one with the label `none`."""
    for number, (line, given, text, opinions, left_out) in enumerate(texts, 1):
        if left_out:
            continue
        by_aspect: dict[str, list[tuple[str, str]]] = {}
        for one in opinions:
            aspect = SHORT_NAMES.get(one.category, one.category)
            try:
                task.split_context(aspect)
            except ValueError as error:
                advice = "correct the category, or name the categories of all files with --aspects when you train"
                raise DataError(path, one.line, f"{error}; {advice}") from None
            if one.polarity not in task.labels:
                reason = f"label: expected one of {', '.join(task.labels)}, got {one.polarity!r}"
                raise DataError(path, one.line, reason)
            found = by_aspect.setdefault(aspect, [])
            if task.complete and found and found != [(one.target, one.polarity)]:
                reason = f"{given!r}: expected one polarity for {one.category!r}, got two; keep one"
                raise DataError(path, one.line, f"sentence {reason}")
            if not (task.complete and found):  # SemEval-2014 repeats a category once; its pairs have one row for it
                found.append((one.target, one.polarity))
        for aspect in task.aspects:
            repeats: Counter[str] = Counter()
            for target, label in by_aspect.get(aspect) or [("", ABSENT)]:
                repeats[target] += 1
                name = given or f"text {number}"
                name = name if repeats[target] == 1 else f"{name} ({repeats[target]})"
                yield Row(name, text, target, aspect, label, line)


def left_out_note(texts: Iterable[AnnotatedText], path: Path) -> str:
    """Returns a line with the number of texts that are left out of a file, by reason; empty if there are none."""
    reasons = Counter(text.left_out for text in texts if text.left_out)
    shown = ", ".join(f"{counted(count, 'text')} {reason}" for reason, count in reasons.items())
    return f"left out of {path.name}: {shown}" if shown else ""
