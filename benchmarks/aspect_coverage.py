"""How many of a data set's own categories `qacg suggest` finds without seeing them.

A category is covered if, among the sentences that one of the proposals picks (those that have one of its nouns), it is
the most frequent one. Beside it stands what proposals of the same sizes cover whose sentences are drawn by chance, a
mean of 20 draws. SentiHood twice: the four categories of the published task, and all twelve that people labelled. And
invented sentences about hotels, whose words nothing here was chosen by.

    python -m benchmarks.aspect_coverage --data FOLDER     # with sentihood/ and semeval2014/
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from qacg_models.data import semeval_xml
from qacg_models.data.task import SEMEVAL
from qacg_models.suggestion import ASPECTS
from qacg_models.suggestion.proposals import Proposal, propose

from benchmarks.learning.hotels import hotel_sentences

DRAWS = 20
OF_THE_TASK = {"general", "price", "safety", "transit-location"}
Labelled = list[tuple[str, set[str]]]


def covered(picked: Iterable[Iterable[int]], categories: Sequence[set[str]]) -> set[str]:
    """The categories that are the most frequent one of some pick of sentence numbers; equal ones count for neither."""
    found = set()
    for numbers in picked:
        counts = Counter(category for number in numbers for category in categories[number]).most_common(2)
        if counts and (len(counts) == 1 or counts[0][1] > counts[1][1]):
            found.add(counts[0][0])
    return found


def by_chance(sizes: Sequence[int], categories: Sequence[set[str]], draws: int = DRAWS) -> float:
    """The mean number of categories that random picks of these sizes cover."""
    chance = random.Random(0)
    numbers = range(len(categories))
    return sum(len(covered([chance.sample(numbers, size) for size in sizes], categories)) for _ in range(draws)) / draws


def read_sentihood(folder: Path) -> Labelled:
    """Sentences with all categories that people labelled, of all splits."""
    found = []
    for split in ("train", "dev", "test"):
        records = json.loads((folder / f"sentihood-{split}.json").read_text(encoding="utf-8"))
        found += [(one["text"], {opinion["aspect"] for opinion in one["opinions"]}) for one in records]
    return found


def read_semeval(folder: Path) -> Labelled:
    """Sentences with their categories, of both splits."""
    sentences: dict[tuple[str, str], set[str]] = {}
    for name in ("Restaurants_Train.xml", "Restaurants_Test_Gold.xml"):
        for row in semeval_xml.read(folder / name, SEMEVAL):
            has = sentences.setdefault((row.id, row.sentence), set())
            if row.label != 0:
                has.add(row.aspect)
    return [(sentence, categories) for (_, sentence), categories in sentences.items()]


def describe(title: str, proposals: Sequence[Proposal], categories: Sequence[set[str]]) -> str:
    """One line."""
    known = set().union(*categories)
    found = covered([one.picked for one in proposals], categories)
    chance = by_chance([len(one.picked) for one in proposals], categories)
    missed = ", ".join(sorted(known - found)) or "none"
    return (
        f"{title}: {len(proposals)} proposals of {len(categories):,} sentences cover {len(found)} of {len(known)} "
        f"categories ({len(found) / len(known):.0%}; by chance {chance:.1f}); missed: {missed}"
    )


def main() -> None:
    """Prints a line for each data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--aspects", type=int, metavar="N", help=f"proposals (default: at most {ASPECTS})")
    arguments = parser.parse_args()
    sentihood = read_sentihood(arguments.data / "sentihood")
    semeval = read_semeval(arguments.data / "semeval2014")
    of_task = [(text, categories & OF_THE_TASK) for text, categories in sentihood]
    cases = {
        "SentiHood, the task": of_task,
        "SentiHood, all labels": sentihood,
        "SemEval-2014": semeval,
        "invented hotels": hotel_sentences(),
    }
    for title, labelled in cases.items():
        sentences, categories = zip(*labelled)
        print(describe(title, propose(sentences, arguments.aspects), categories))


if __name__ == "__main__":
    main()
