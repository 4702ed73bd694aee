"""Reader of SentiHood as published: a JSON array of sentences with opinions on `LOCATION1` and `LOCATION2`.

The data has twelve aspects. The task uses four of them, which have 73 % of the opinions; the published
results use the same four. Sentences are tokenised and lowercased as in the published pairs (sentihood_tsv.py), so that
both formats give the same rows.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from qacg_models.data.example import DataError, Example, class_index
from qacg_models.data.lines import json_array
from qacg_models.data.task import SENTIHOOD, Task

# Aspects of the data that the task leaves out.
OTHER_ASPECTS = (
    *("dining", "green nature", "live", "multicultural"),
    *("nightlife", "quiet", "shopping", "touristy"),
)
_TARGET = re.compile(r"LOCATION[0-9]+")


def read(path: Path, task: Task = SENTIHOOD) -> Iterator[Example]:
    """Yields a row for every sentence, target and aspect.

    The targets of a sentence are those that its text names and those of its opinions.

    Raises:
        DataError: the file cannot be opened, violates the format, or has two opinions that contradict each other.
    """
    for line, item in json_array(path):
        number, text, opinions = _fields(path, line, item)
        sentence = prepared(text)
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
                label = class_index(labels.get((target, aspect), task.labels[0]), task, path, line)
                yield Example(number, sentence, task.context(name, aspect), name, aspect, label, line)


def _fields(path: Path, line: int, item: object) -> tuple[str, str, list[dict]]:
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


def prepared(text: str) -> str:
    """Returns a sentence lowercased and tokenised as in the published pairs, with single spaces between tokens."""
    text = text.strip().lower()
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    return " ".join(text.split())
