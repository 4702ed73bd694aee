"""Reader of SemEval-2014 restaurant reviews as published: XML with aspect categories (aspect terms are ignored).

A category that a sentence does not name gets the label `none`. The polarity `conflict` is a label, as in the published
4-class accuracy; the 3- and 2-class accuracies leave out rows with this label.
"""

import xml.sax
from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example, class_index, split_context
from qacg_models.data.lines import open_file
from qacg_models.data.task import SEMEVAL, Task

# The format of pairs (semeval_csv.py) shortens the name of this category.
SHORT_NAMES = {"anecdotes/miscellaneous": "anecdotes"}
_BLOCK = 1 << 16


def read(path: Path, task: Task = SEMEVAL) -> Iterator[Example]:
    """Yields a row for every sentence and aspect of a file, which is parsed block by block.

    Raises:
        DataError: the file cannot be opened, or violates the format; the message names the line.
    """
    handler = _Sentences(path, task)
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


class _Sentences(xml.sax.ContentHandler):
    """Collects the rows of the sentences parsed so far."""

    def __init__(self, path: Path, task: Task):
        super().__init__()
        self.path, self.task = path, task
        self.rows: list[Example] = []
        self.sentence: str | None = None
        self.text: list[str] | None = None

    def take(self) -> list[Example]:
        rows, self.rows = self.rows, []
        return rows

    def startElement(self, name, attrs):
        if name == "sentence":
            if "id" not in attrs:
                raise self._error("the sentence has no id")
            self.sentence, self.line = attrs["id"], self._line()
            self.text, self.labels, self.inside_text = None, {}, False
        elif self.sentence is not None and name == "text":
            self.text, self.inside_text = [], True
        elif self.sentence is not None and name == "aspectCategory":
            self._category(attrs)

    def characters(self, content):
        if self.sentence is not None and self.inside_text:
            self.text.append(content)

    def endElement(self, name):
        if name == "text":
            self.inside_text = False
        elif name == "sentence":
            text = "".join(self.text or ())
            if not text.strip():
                raise self._error(f"sentence {self.sentence!r} has no text")
            for aspect in self.task.aspects:
                label = self.labels.get(aspect, 0)
                self.rows.append(Example(self.sentence, text, aspect, "", aspect, label, self.line))
            self.sentence = None

    def _category(self, attrs) -> None:
        category, polarity = (attrs.get(name, "") for name in ("category", "polarity"))
        aspect = SHORT_NAMES.get(category, category)
        split_context(aspect, self.task, self.path, self._line())
        label = class_index(polarity, self.task, self.path, self._line())
        if self.labels.setdefault(aspect, label) != label:
            raise self._error(f"sentence {self.sentence!r}: expected one polarity for {category!r}, got two; keep one")

    def _line(self) -> int:
        return self._locator.getLineNumber()

    def _error(self, reason: str) -> DataError:
        return DataError(self.path, self._line(), reason)
