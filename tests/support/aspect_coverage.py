"""Which labelled categories the proposals of `qacg suggest` cover, on the files of SentiHood and SemEval-2014.

`qacg suggest` reads no labels. Each of its proposals is a list of nouns, and selects the sentences that have at least
one of these nouns. A proposal covers the category that is the most frequent one in its sentences; in a tie it covers
none.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree

TASK_CATEGORIES = {"general", "price", "safety", "transit-location"}
Labelled = list[tuple[str, set[str]]]


def covered(picked: Iterable[Iterable[int]], categories: Sequence[set[str]]) -> set[str]:
    """Returns the categories that lists of sentences cover.

    A list covers its most frequent category; in a tie it covers none.

    Args:
        picked: lists of sentence indices.
        categories: the categories of each sentence.
    """
    found = set()
    for numbers in picked:
        counts = Counter(category for number in numbers for category in categories[number]).most_common(2)
        if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]):
            found.add(counts[0][0])
    return found


def read_sentihood(folder: Path) -> Labelled:
    """Reads the sentences of all splits, each with its labelled categories."""
    found = []
    for split in ("train", "dev", "test"):
        records = json.loads((folder / f"sentihood-{split}.json").read_text(encoding="utf-8"))
        found += [(one["text"], {opinion["aspect"] for opinion in one["opinions"]}) for one in records]
    return found


def read_semeval(folder: Path) -> Labelled:
    """Reads the sentences of both splits, each with its categories."""
    return [
        (sentence.findtext("text"), {category.get("category") for category in sentence.iter("aspectCategory")})
        for name in ("Restaurants_Train.xml", "Restaurants_Test_Gold.xml")
        for sentence in ElementTree.parse(folder / name).iter("sentence")
    ]
