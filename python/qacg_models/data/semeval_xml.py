"""Reader of published XML: SemEval-2014 to 2016, MAMS and GermEval 2017.

A text is a `sentence` (SemEval, MAMS), a `Review` with opinions on the whole text (SemEval-2016, subtask 2) or a
`Document` (GermEval). An `aspectCategory` (SemEval-2014, MAMS) or `Opinion` (the others) names a category; aspect terms
are ignored. Sentences with `OutOfScope="TRUE"` have opinions on other things than the reviewed one, which are not
annotated; they are left out. Sentences without `Opinions` have no opinion. The ids of documents are URLs, which several
documents can share.
"""

import xml.sax
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError
from qacg_models.data.lines import open_file
from qacg_models.data.opinions import AnnotatedText, Opinion, no_opinions, opinion
from qacg_models.utils.cells import counted

_BLOCK = 1 << 16
_IDS = {"sentence": "id", "Review": "rid", "Document": None}  # elements of texts, and the attributes of their ids
_OPINIONS = ("aspectCategory", "Opinion")


def texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of a file, which is parsed block by block.

    Raises:
        DataError: the file cannot be opened, violates the format, or has no opinions; the message names the line if it
            is known.
    """
    handler = _Texts(path)
    parser = xml.sax.make_parser()
    parser.setContentHandler(handler)
    handler.setDocumentLocator(parser)
    with open_file(path) as handle:
        try:
            while block := handle.read(_BLOCK):
                parser.feed(block)
                yield from handler.take()
            parser.close()
        except xml.sax.SAXParseException as error:
            raise DataError(path, error.getLineNumber(), f"is not XML ({error.getMessage()})") from None
    yield from handler.take()
    if not any(handler.elements[name] for name in _OPINIONS):
        raise no_opinions(path, _described(handler.elements))


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

    def take(self) -> list[AnnotatedText]:
        done, self.done = self.done, []
        return done

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
            self.open[-1].opinions.append(opinion(self.path, self._line(), *fields))

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
