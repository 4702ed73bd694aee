"""The data formats: readers of published data, and detection of the format of a folder or file.

The functions of SentiHood and of pairs yield rows; the others yield texts with their opinions on categories. The aspect
of a row is the whole category, such as `FOOD#QUALITY`. A category that the text does not name gets the label `none`.
Each opinion is a row; a further one on the same category and target gets another id. A target is not part of the
context: 30 % of the test opinions of SemEval-2015 restaurants have a target that no training text has.

All functions raise DataError for a file that is missing, ambiguous, unreadable, or not in its format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from qacg_models.errors import InputError
from qacg_models.sentiment import tables
from qacg_models.sentiment.columns import NOT_WIDE, Columns, discover, with_ids
from qacg_models.sentiment.example import (
    SEMEVAL,
    SENTIHOOD,
    AnnotatedText,
    DataError,
    ExampleTable,
    Opinion,
    Row,
    Source,
    Task,
    labelled_examples,
)
from qacg_models.sentiment.tables import json_values, numbered_lines, read_bytes
from qacg_models.utils.text import clipped, counted

if TYPE_CHECKING:
    from pandas import DataFrame

SPLITS = ("train", "dev", "test")
_SUFFIXES = (".csv", ".tsv", ".xlsx", ".parquet", ".json", ".jsonl")  # of tables of your own
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
SENTIHOOD_COLUMNS = ("id", "sentence1", "sentence2", "label")  # of its pairs
_HEADER = ["SOURCE", "TEXT", "RELEVANCE", "SENTIMENT"]  # of GermEval; some files have it
_IDS = {"sentence": "id", "Review": "rid", "Document": None}  # elements of texts, and the attributes of their ids
_OPINIONS = ("aspectCategory", "Opinion")
_OPINION_KEYS = ("target_entity", "aspect", "sentiment")  # of SentiHood


def _tab_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number and the tab-separated fields of each line that is not blank; quotes are ordinary characters."""
    return ((line, text.split("\t")) for line, text in numbered_lines(path) if text.strip())


def sentihood_pairs(path: Path) -> Iterator[Row]:
    """Yields the rows of SentiHood as pairs, as QACG-BERT uses it."""
    for place, (line, fields) in enumerate(_tab_lines(path)):
        if place == 0 and fields != [*SENTIHOOD_COLUMNS]:
            expected = f"header: expected {', '.join(SENTIHOOD_COLUMNS)} (tab separated)"
            raise DataError(path, line, f"{expected}, got {', '.join(fields)}; or pass --format columns")
        if len(fields) != len(SENTIHOOD_COLUMNS):
            reason = f"expected {len(SENTIHOOD_COLUMNS)} tab-separated fields as in the header, got {len(fields)}"
            raise DataError(path, line, reason)
        if place:
            yield _pair(path, line, SENTIHOOD, tuple(fields), "sentence1")


def semeval_pairs(path: Path) -> Iterator[Row]:
    """Yields the rows of SemEval-2014 restaurants as pairs: id, label, aspect and text, without a header."""
    for line, fields in _tab_lines(path):
        if len(fields) != 4:
            raise DataError(path, line, f"expected 4 tab-separated fields (id, label, aspect, text), got {len(fields)}")
        number, label, aspect, sentence = fields
        yield _pair(path, line, SEMEVAL, (number, sentence, aspect, label), "text")


def _pair(path: Path, line: int, task: Task, fields: tuple[str, ...], name: str) -> Row:
    """Returns a row of the fields id, sentence, context and label; `name` is that of the sentence in the file."""
    number, sentence, context, label = fields
    if not number or not sentence.strip():
        raise DataError(path, line, f"has an empty {name if number else 'id'}")
    try:
        target, aspect = task.split_context(context)
    except ValueError as error:
        raise DataError(path, line, str(error)) from None
    return Row(number, sentence, target, aspect, label, line)


def is_sentihood(path: Path) -> bool:
    """Whether the first line of a file contains sentence1 or sentence2, as the header of pairs of SentiHood does."""
    header = _first_line(path)
    return "sentence1" in header or "sentence2" in header


def is_germeval(path: Path) -> bool:
    """Whether the first line of a file has the fields of GermEval 2017 in lines, or the names of its fields."""
    fields = [field.rstrip("\r\n") for field in _first_line(path).split("\t")]
    return fields[:4] == _HEADER or _fits_germeval(fields[:5])


def is_label_studio(path: Path) -> bool:
    """Whether the first item of a JSON file is a task of Label Studio with its annotations."""
    try:
        _, first = next(json_values(path), (0, None))
    except DataError:
        return False  # reading the file raises the error
    return isinstance(first, dict) and {"data", "annotations"} <= first.keys()


def _first_line(path: Path) -> str:
    try:
        with path.open("rb") as handle:
            return handle.readline(1 << 16).decode(errors="replace").removeprefix("\ufeff")
    except OSError:
        return ""  # reading the file raises the error


def sentihood_json(path: Path) -> Iterator[Row]:
    """Yields a row for every sentence, target and aspect of SentiHood as published; the rows equal those of the pairs.

    The targets of a sentence are those that its text names and those of its opinions.
    """
    for line, item in json_values(path):
        number, text, opinions = _sentihood_fields(path, line, item)
        sentence = sentihood_tokens(text)
        labels: dict[tuple[str, str], str] = {}
        for opinion in opinions:
            target, aspect, sentiment = opinion
            aspect = aspect.replace("-", " ")
            known = aspect in (*SENTIHOOD.aspects, *OTHER_ASPECTS) and sentiment in SENTIHOOD.labels
            if not known or not _TARGET.fullmatch(target):
                expected = "expected target LOCATION<number>, aspect and sentiment of SentiHood"
                raise DataError(path, line, f"sentence {number}: {expected}, got the opinion {opinion!r}")
            if aspect in OTHER_ASPECTS:
                continue
            if labels.setdefault((target, aspect), sentiment) != sentiment:
                reason = f"expected one sentiment for {aspect!r} of {target}, got two; keep one"
                raise DataError(path, line, f"sentence {number}: {reason}")
        named = {target for target, *_ in opinions}  # opinions on OTHER_ASPECTS included
        for target in sorted({*_TARGET.findall(text), *named}):
            name = target.replace("LOCATION", "location - ")
            for aspect in SENTIHOOD.aspects:
                yield Row(number, sentence, name, aspect, labels.get((target, aspect), SENTIHOOD.labels[0]), line)


def _sentihood_fields(path: Path, line: int, item: Any) -> tuple[str, str, list[tuple[str, ...]]]:
    """Returns id, text and opinions (target, aspect and sentiment) of an item."""
    try:
        number, text = str(item["id"]), item["text"]
        opinions = [tuple(one[name] for name in _OPINION_KEYS) for one in item["opinions"]]
        is_list = isinstance(item["opinions"], list)
        if text.strip() and is_list and all(isinstance(value, str) for one in opinions for value in one):
            return number, text, opinions
    except (AttributeError, KeyError, TypeError):
        pass
    expected = f"expected an object with id, text and opinions, each with {', '.join(_OPINION_KEYS)}"
    raise DataError(path, line, f"{expected}, got {clipped(repr(item))}")


# Penn Treebank tokenisation, as far as the published pairs use it. Apostrophes become tokens of their own, except in
# n't, which an earlier step separates, and inside longer words such as o'clock.
_STEPS = [
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
]


def sentihood_tokens(text: str) -> str:
    """Returns a sentence lowercased and tokenised as in the published pairs, with single spaces between tokens."""
    text = text.strip().lower()
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())


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

    Fields are separated by tabs, pairs by spaces. The XML of the same data also has the targets.
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


def label_studio_texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of a JSON export of Label Studio.

    An opinion is a region with labels (the categories) and choices (the polarities). A choice without a region is about
    the whole text; the name of its control is the category. Tasks that are skipped or not annotated are left out.
    """
    count, labelled = 0, False
    for line, task in json_values(path):
        regions: dict[str, dict[str, Any]] = {}
        try:
            number, texts = task["id"], {name: one for name, one in task["data"].items() if isinstance(one, str)}
            made = [one["result"] for one in task["annotations"] if not one.get("was_cancelled")]
            for one in made[0] if made else ():
                if (kind := one["type"].removeprefix("hypertext")) in ("labels", "choices"):
                    value, names = one["value"], one["value"][one["type"]]
                    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                        raise TypeError
                    region = regions.setdefault(one["id"], {} if "start" in value else {"labels": [one["from_name"]]})
                    region |= {kind: names, "text": value.get("text", "")}
        except (AttributeError, KeyError, TypeError):
            reason = "expected a task of Label Studio's JSON, with data and annotations, got another value"
            raise DataError(path, line, reason) from None
        if "text" not in texts and len(texts) != 1:
            reason = f"expected one text, or the key 'text', got {', '.join(texts) or 'no text'}"
            raise DataError(path, line, f"task {number}: {reason}; rename the key of the text to 'text'")
        if len(made) > 1:
            reason = f"task {number}: expected one annotation, got {len(made)}; keep one of them"
            raise DataError(path, line, reason)
        text = texts.get("text", next(iter(texts.values())))
        for region in regions.values():
            if not (region.get("labels") and region.get("choices")):
                reason = f"expected an aspect and a label for the region {region['text']!r}, got one of them"
                raise DataError(path, line, f"task {number}: {reason}; complete or delete it in Label Studio")
        opinions = [
            _opinion(path, line, category, polarity, region["text"])
            for region in regions.values()
            for category in region["labels"]
            for polarity in region["choices"]
        ]
        count, labelled = count + 1, labelled or bool(opinions)
        left_out = "" if made and text.strip() else "without text" if made else "without annotation"
        yield AnnotatedText(line, None, text, opinions, left_out)
    if not labelled:
        raise _no_opinions(path, f"{counted(count, 'task')} of Label Studio with no choices")


def xml_texts(path: Path) -> Iterator[AnnotatedText]:
    """Yields the texts of an XML file.

    A text is a `sentence` (SemEval, MAMS), a `Review` with opinions on the whole text (SemEval-2016, subtask 2) or a
    `Document` (GermEval), whose id is a URL that several can share. An `aspectCategory` (SemEval-2014, MAMS) or
    `Opinion` (the others) names a category; aspect terms are ignored. Sentences with `OutOfScope="TRUE"` have opinions
    on other things than the reviewed one, which are not annotated; they are left out.
    """
    root, lines = _parsed(path)
    for one in _texts_of(path, root, lines):
        if one.text.strip() or one.left_out:
            yield one
        elif one.id is None:
            yield one._replace(left_out="without text")
        else:
            raise DataError(path, one.line, f"id {one.id!r} has no text; add it")
    elements = Counter(one.tag for one in root.iter())
    if any(elements[name] for name in _OPINIONS):
        return
    count, terms = elements["sentence"] + elements["Document"], elements["aspectTerm"]
    if not count:
        others = ", ".join([*elements][:5])
        raise _no_opinions(path, "no sentence or Document" + (f", but the elements {others}" if others else ""))
    named = f"{counted(terms, 'aspectTerm', 'aspectTerms')}, which have no category"
    unlabelled = "no aspectCategory or Opinion, as in a test file"
    raise _no_opinions(path, f"{counted(count, 'text')} with {named if terms else unlabelled}")


def _parsed(path: Path) -> tuple[Element, dict[Element, int]]:
    """Returns the root of an XML file, and the line of each element."""
    lines, builder, parser = {}, TreeBuilder(), expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        lines[builder.start(name, attributes)] = parser.CurrentLineNumber

    parser.StartElementHandler, parser.EndElementHandler = start, builder.end
    parser.CharacterDataHandler = builder.data
    try:
        parser.Parse(read_bytes(path), True)
    except expat.ExpatError as error:
        raise DataError(path, error.lineno, f"is not XML ({expat.ErrorString(error.code)})") from None
    except (LookupError, ValueError) as error:  # an encoding that is unknown or has several bytes for a character
        raise DataError(
            path, None, f"expected XML in UTF-8, got another encoding ({error}); save it as UTF-8"
        ) from None
    return builder.close(), lines


def _texts_of(
    path: Path, node: Element, lines: Mapping[Element, int], opinions: list[Opinion] | None = None
) -> list[AnnotatedText]:
    """Returns the texts of an element: one with opinions of its own, or those of its sentences.

    `lines` has the line of each element; `opinions` gets those on the text that contains `node`; None: no text does.
    """
    if node.tag in _OPINIONS:
        if opinions is None:
            reason = f"expected {node.tag} inside a sentence, Review or Document, got it outside; write a CSV instead"
            raise DataError(path, lines[node], reason)
        fields = (node.get(field, "") for field in ("category", "polarity", "target"))
        opinions.append(_opinion(path, lines[node], *fields))
    own: list[Opinion] | None = [] if node.tag in _IDS else opinions
    inner = [text for child in node for text in _texts_of(path, child, lines, own)]
    if node.tag not in _IDS or (inner and not own and node.find("Opinions") is None):
        return inner
    name = node.get(_IDS[node.tag] or "") or None
    if any(text.opinions for text in inner):
        reason = f"{node.tag} {name!r}: expected opinions on the whole text or on its sentences, got both"
        raise DataError(path, lines[node], f"{reason}; keep one of them")
    text = "".join(part for child in node.findall("text") for part in child.itertext())
    left_out = "marked OutOfScope" if node.get("OutOfScope", "").upper() == "TRUE" else ""
    return [AnnotatedText(lines[node], name, text or " ".join(one.text for one in inner), own, left_out)]


def opinion_pairs(texts: Mapping[Path, Sequence[AnnotatedText]], aspects_given: bool) -> set[tuple[str, str]] | None:
    """Returns the pairs of category and label of training texts by file; None for SemEval-2014 restaurants.

    Unless the user named the categories (`aspects_given`), the files must share some.
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
            if not (task.complete and found):  # two sentences of SemEval-2014 repeat a category; its pairs do not
                found.append((one.target, one.polarity))
        for aspect in task.aspects:
            repeats: Counter[str] = Counter()
            for target, label in by_aspect.get(aspect) or [("", ABSENT)]:
                repeats[target] += 1
                name = given or f"text {number}"
                name = name if repeats[target] == 1 else f"{name} ({repeats[target]})"
                yield Row(name, text, target, aspect, label, line)


@dataclass(frozen=True)
class Format:
    """A data format: its file names and its reader, one of `rows`, `texts` and `table`."""

    name: str  # value of `--format`
    names: Callable[[str], tuple[str, ...]]  # returns the possible file names of a split
    task: Task | None = None  # labels and aspects that the format fixes; None: those of the training files
    rows: Callable[[Path], Iterator[Row]] | None = None  # yields the rows of a published file of `task`
    texts: Callable[[Path], Iterator[AnnotatedText]] | None = None  # yields the texts of a published file
    table: Callable[[Path, Columns], DataFrame] | None = None  # returns a table of your own, as `tables.read_table`
    suffixes: tuple[str, ...] = ()  # of single files whose name is not in the `names` of any format
    recognises: Callable[[Path], bool] = lambda path: True  # whether a file whose name or suffix fits has this format
    note: str = ""  # a line to print when the format is read, such as the opinions that are left out

    def file(self, folder: Path, split: str) -> Path | None:
        """Returns the file of a split; None if the folder has none."""
        found = [folder / name for name in self.names(split) if (folder / name).is_file()]
        if self.table is not None:  # a published format can use the same name (train.tsv)
            found = [path for path in found if self.recognises(path)]
        if len(found) > 1:
            reason = f"expected one file for {split}, got {found[0].name} and {found[1].name}; keep one of them"
            raise DataError(folder, None, reason)
        return found[0] if found else None

    def read(self, path: Path, columns: Columns) -> Any:
        """Returns the content of a file: its table, or a list of its rows or texts."""
        if self.table is not None:
            return self.table(path, columns)
        return list(self.rows(path) if self.texts is None else self.texts(path))

    def published_task(self, contents: Mapping[Path, Any], given: Mapping[str, Any]) -> Task:
        """Returns the task of published files; `given`: the user's `aspects`, `labels` and `absent_label`, or None."""
        if self.task is not None:
            return self.task
        from pandas import DataFrame

        path = next(iter(contents))
        pairs = opinion_pairs(contents, given["aspects"] is not None)
        if pairs is not None:
            return discover(DataFrame(list(pairs), columns=["aspect", "label"]), Source(path), Columns(), **given)
        for name, value in given.items():
            if value is not None:
                reason = f"{path} has the fixed aspects and labels of SemEval-2014 restaurants"
                raise InputError(f"{name}: expected none, because {reason}; omit {name}")
        return SEMEVAL

    def examples(self, content: Any, source: Source, task: Task, columns: Columns, prefix: str = "") -> ExampleTable:
        """Returns the checked examples of the content of a file; `prefix` begins each id.

        For a table, `content` are its rows (`columns.rows_of_table`); otherwise it is what `read` returned.
        """
        import pandas as pd

        if self.table is not None:
            return labelled_examples(with_ids(content, prefix), source, task, f"; {NOT_WIDE}" if columns.wide else "")
        rows = content if self.texts is None else list(rows_of_texts(content, source.path, task))
        found = pd.DataFrame(rows, columns=Row._fields)
        return labelled_examples(found.assign(id=prefix + found["id"]), source, task)

    def notes(self, contents: Mapping[Path, Any]) -> list[str]:
        """Returns lines to print about files that were read: `note`, and the texts that are left out of each file."""
        lines = [self.note] if self.note else []
        for path, texts in contents.items() if self.texts is not None else ():
            reasons = Counter(text.left_out for text in texts if text.left_out)
            shown = ", ".join(f"{counted(count, 'text')} {reason}" for reason, count in reasons.items())
            lines += [f"left out of {path.name}: {shown}"] if shown else []
        return lines


_XML_NAMES = {"train": "Restaurants_Train.xml", "dev": "val.xml", "test": "Restaurants_Test_Gold.xml"}


def _own_table(path: Path, columns: Columns) -> DataFrame:
    # Excel saves "Unicode text", a table with tabs, as .txt.
    return tables.read_table(path, columns, "csv" if path.suffix.lower() == ".txt" else None)


def _is_own_table(path: Path) -> bool:
    published = {".tsv": (is_sentihood, is_germeval), ".json": (is_label_studio,)}.get(path.suffix.lower(), ())
    return not any(recognises(path) for recognises in published)


OWN_TABLES = Format(
    "columns",
    lambda split: tuple(split + suffix for suffix in _SUFFIXES),
    table=_own_table,
    suffixes=_SUFFIXES,
    recognises=_is_own_table,
)
# A folder can have one data set in two formats of one task, which give the same rows. The format listed first is read.
FORMATS = (
    Format(
        "sentihood-tsv",
        lambda split: (f"{split}.tsv", f"{split}_NLI_M.tsv"),
        SENTIHOOD,
        sentihood_pairs,
        suffixes=(".tsv",),
        recognises=is_sentihood,
    ),
    Format(
        "sentihood-json",
        lambda split: (f"sentihood-{split}.json",),
        SENTIHOOD,
        sentihood_json,
        note=f"opinions on other aspects are left out: {', '.join(OTHER_ASPECTS)}",
    ),
    Format("semeval-csv", lambda split: (f"{split}_NLI_M.csv",), SEMEVAL, semeval_pairs),
    Format(
        "semeval-xml", lambda split: (f"{split}.xml", _XML_NAMES[split]), texts=xml_texts, suffixes=(".xml", ".gold")
    ),
    Format(
        "germeval-tsv",
        lambda split: (f"{split}.tsv",),
        texts=germeval_texts,
        suffixes=(".tsv",),
        recognises=is_germeval,
    ),
    Format(
        "label-studio",
        lambda split: (f"{split}.json",),
        texts=label_studio_texts,
        suffixes=(".json",),
        recognises=is_label_studio,
    ),
    OWN_TABLES,
)
NAMES = tuple(one.name for one in FORMATS)
_UNREADABLE = (".xls", ".ods", ".numbers")


def find_format(path: Path, name: str = "auto") -> Format:
    """Returns the format of a folder or file: the one of NAMES, or the detected one if `name` is "auto"."""
    if not path.exists():
        raise DataError(path, None, "no such folder or file")
    if path.is_file():
        tables.check_uncompressed(path)
    if name != "auto":
        return next(one for one in FORMATS if one.name == name)
    if path.is_file():
        return _format_of_file(path)
    files = {one: [one.file(path, split) for split in SPLITS] for one in FORMATS}
    found = [one for one, those in files.items() if any(file is not None and one.recognises(file) for file in those)]
    if not found:
        names = {name for one in FORMATS for split in SPLITS for name in one.names(split)}
        for file in sorted(path.iterdir()):
            if file.stem in names:  # train.csv.gz, for example
                tables.check_uncompressed(file)
        known = "; ".join(f"{' or '.join(one.names('train'))} ({one.name})" for one in FORMATS)
        reason = "expected data in a known format, got a folder without files in such a format"
        raise DataError(path, None, f"{reason}; rename the training file to one of: {known}")
    if len({one.task or one.name for one in found}) > 1:
        names = " and ".join(one.name for one in found)
        raise DataError(path, None, f"has data in the formats {names}; select one with --format")
    return found[0]


def _format_of_file(path: Path) -> Format:
    suffix = path.suffix.lower()
    if suffix in _UNREADABLE:
        expected = "expected .xlsx, .csv or another supported format"
        raise DataError(path, None, f"{expected}, got {path.suffix}. Save it as .xlsx or .csv.")
    named = [one for one in FORMATS if any(path.name in one.names(split) for split in SPLITS)]
    suffixed = [one for one in FORMATS if suffix in one.suffixes]
    one = next((one for one in named + suffixed if one.recognises(path)), None)
    if one is None:
        reason = f"expected a name or suffix of a known format, got {path.name}"
        raise DataError(path, None, f"{reason}; select one with --format {{{','.join(NAMES)}}}")
    return one
