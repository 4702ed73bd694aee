"""Texts with opinions on categories, as published data sets annotate them, and the examples made of them.

SemEval, MAMS and GermEval 2017 name the categories that a text has an opinion on. The aspect of an example is the whole
category, such as `FOOD#QUALITY`. A category that the text does not name gets the label `none`.

Each opinion is an example of its own. Its target, the words that it is about, is kept in `Example.target`; it is empty
for an implicit target (`NULL`). It is not part of the context: 30 % of the test opinions of SemEval-2015 restaurants
have a target that no training text has. Two opinions on the same category and target get two ids.

The polarity `conflict` is a label. The 3- and 2-class accuracies of SemEval-2014 leave out rows with this label.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from qacg_models.data.columns import Columns
from qacg_models.data.example import DataError, Example, class_index
from qacg_models.data.records import discover
from qacg_models.data.task import SEMEVAL, Task
from qacg_models.errors import InputError
from qacg_models.utils.cells import counted

ABSENT = "none"  # the label of a category that a text does not name
MISCELLANEOUS = "anecdotes/miscellaneous"  # a category of SemEval-2014 restaurants only
# The format of pairs (semeval_csv.py) shortens the name of this category.
SHORT_NAMES = {MISCELLANEOUS: "anecdotes"}
_SPELLINGS = {"positve": "positive"}  # in the training file of GermEval 2017


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


def opinion(path: Path, line: int, category: str, polarity: str, target: str = "") -> Opinion:
    """Returns an opinion, without spaces at the ends of its fields.

    Raises:
        DataError: the category or the polarity is empty.
    """
    category, polarity, target = category.strip(), polarity.strip(), target.strip()
    if not category:
        raise DataError(path, line, "category: expected a name, got an opinion without a category; add it")
    if not polarity:
        reason = f"polarity: expected a label, got {category!r} without a polarity, as in a test file without labels"
        raise DataError(path, line, f"{reason}; pass the file with labels")
    return Opinion(line, category, _SPELLINGS.get(polarity, polarity), "" if target == "NULL" else target)


def no_opinions(path: Path, got: str) -> DataError:
    """Returns the error for a file in which no text has an opinion; `got` describes the texts."""
    advice = (
        "to train or evaluate, pass a file with labels, or write a CSV with the columns text, aspect and label (one row"
        " for each text and aspect); to predict, write a CSV with the column text"
    )
    return DataError(path, None, f"expected opinions with a category and a polarity, got {got}; {advice}")


def find_task(
    read: Callable[[Path], Iterable[AnnotatedText]],
    paths: Sequence[Path],
    *,
    aspects: tuple[str, ...] | None,
    labels: tuple[str, ...] | None,
    absent_label: str | None,
) -> Task:
    """Returns the task of training texts: SEMEVAL for SemEval-2014 restaurants, else their categories and polarities.

    Args:
        read: function that yields the texts of a file.
        paths: the files.
        aspects, labels, absent_label: names instead of those of the texts, as for `records.discover`.

    Raises:
        DataError: a file violates its format, or `aspects` is None and no category of a file is in the first file.
        InputError: a name is given for SemEval-2014 restaurants, `absent_label` is not a label, or `aspects` or
            `labels` has an unsuitable name.
    """
    columns, pairs, ids_only = Columns(), set(), True
    by_file: dict[Path, set[str]] = {}
    for path in paths:
        by_file[path] = set()
        for text in read(path):
            for one in () if text.left_out else text.opinions:
                by_file[path].add(one.category)
                pairs |= {(one.category, ABSENT), (one.category, one.polarity)}
                ids_only = ids_only and text.id is not None and not one.target
        if aspects is None and path != paths[0] and not by_file[path] & by_file[paths[0]]:
            reason = f"expected categories of {paths[0].name}, got only others ({', '.join(sorted(by_file[path])[:3])})"
            raise DataError(path, None, f"{reason}; pass one of the files, or name all categories with --aspects")
    categories = set().union(*by_file.values())
    restaurants = {*SEMEVAL.aspects, *SHORT_NAMES} - {*SHORT_NAMES.values()}
    # MAMS shares four of the categories, but has no ids.
    if MISCELLANEOUS in categories or (categories and ids_only and categories <= restaurants):
        for name, value in (("aspects", aspects), ("labels", labels), ("absent_label", absent_label)):
            if value is not None:
                reason = f"{paths[0]} has the fixed aspects and labels of SemEval-2014 restaurants"
                raise InputError(f"{name}: expected none, because {reason}; omit {name}")
        return SEMEVAL
    records = ((0, {columns.aspect: category, columns.label: label}) for category, label in pairs)
    return discover(records, paths[0], columns, aspects=aspects, labels=labels, absent_label=absent_label)


def examples_of_texts(texts: Iterable[AnnotatedText], path: Path, task: Task) -> Iterator[Example]:
    """Yields the examples of each text by aspect: one for each opinion, or one with the label `none`.

    Raises:
        DataError: an opinion has a category or polarity that the task does not have, or a text has two opinions on a
            category although the task requires one row for each aspect.
    """
    for number, (line, given, text, opinions, left_out) in enumerate(texts, 1):
        if left_out:
            continue
        by_aspect: dict[str, list[tuple[str, int]]] = {}
        for one in opinions:
            aspect = SHORT_NAMES.get(one.category, one.category)
            try:
                task.split_context(aspect)
            except ValueError as error:
                advice = "correct the category, or name the categories of all files with --aspects when you train"
                raise DataError(path, one.line, f"{error}; {advice}") from None
            label = class_index(one.polarity, task, path, one.line)
            found = by_aspect.setdefault(aspect, [])
            if task.complete and found and found != [(one.target, label)]:
                reason = f"{given!r}: expected one polarity for {one.category!r}, got two; keep one"
                raise DataError(path, one.line, f"sentence {reason}")
            if not (task.complete and found):  # SemEval-2014 repeats a category once; its pairs have one row for it
                found.append((one.target, label))
        for aspect in task.aspects:
            repeats: Counter[str] = Counter()
            for target, label in by_aspect.get(aspect) or [("", class_index(ABSENT, task, path, line))]:
                repeats[target] += 1
                name = given or f"text {number}"
                name = name if repeats[target] == 1 else f"{name} ({repeats[target]})"
                yield Example(name, text, aspect, target, aspect, label, line)


def left_out_note(texts: Iterable[AnnotatedText], path: Path) -> str:
    """Returns a line with the number of texts that are left out of a file, by reason; empty if there are none."""
    reasons = Counter(text.left_out for text in texts if text.left_out)
    shown = ", ".join(f"{counted(count, 'text')} {reason}" for reason, count in reasons.items())
    return f"left out of {path.name}: {shown}" if shown else ""
