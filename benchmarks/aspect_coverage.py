"""Counts how many labelled categories the proposals of `qacg suggest` cover.

`qacg suggest` sees no labels. Each of its proposals is a list of nouns, and selects the sentences that have at least
one of these nouns. A proposal covers the category that is the most frequent one in its sentences; in a tie it covers
none. For comparison, every proposal is replaced by a random list of as many sentences. The printed number is the mean
of 20 such draws.

SentiHood is used twice: with the four categories of the published task, and with all twelve labelled categories. The
sentences about hotels are invented; `qacg suggest` was developed without them.

    python -m benchmarks.aspect_coverage --data FOLDER     # with sentihood/ and semeval2014/
"""

import argparse
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from qacg_models.data import semeval_xml
from qacg_models.data.opinions import examples_of_texts
from qacg_models.data.task import SEMEVAL
from qacg_models.suggestion import ASPECTS
from qacg_models.suggestion.proposals import Proposal, propose

DRAWS = 20
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


def by_chance(sizes: Sequence[int], categories: Sequence[set[str]]) -> float:
    """Returns the number of categories that lists of random sentences cover.

    It is the mean of DRAWS draws with a fixed seed.

    Args:
        sizes: number of sentences of each list.
        categories: the categories of each sentence.
    """
    chance = random.Random(0)
    numbers = range(len(categories))
    return sum(len(covered([chance.sample(numbers, size) for size in sizes], categories)) for _ in range(DRAWS)) / DRAWS


def read_sentihood(folder: Path) -> Labelled:
    """Reads the sentences of all splits, each with its labelled categories."""
    found = []
    for split in ("train", "dev", "test"):
        records = json.loads((folder / f"sentihood-{split}.json").read_text(encoding="utf-8"))
        found += [(one["text"], {opinion["aspect"] for opinion in one["opinions"]}) for one in records]
    return found


def read_semeval(folder: Path) -> Labelled:
    """Reads the sentences of both splits, each with its categories."""
    sentences: dict[tuple[str, str], set[str]] = {}
    for name in ("Restaurants_Train.xml", "Restaurants_Test_Gold.xml"):
        for row in examples_of_texts(semeval_xml.texts(folder / name), folder / name, SEMEVAL):
            has = sentences.setdefault((row.id, row.sentence), set())
            if row.label != 0:
                has.add(row.aspect)
    return [(sentence, categories) for (_, sentence), categories in sentences.items()]


def describe(title: str, proposals: Sequence[Proposal], categories: Sequence[set[str]]) -> str:
    """Returns a line of text with the numbers of categories that proposals and random sentences cover.

    Args:
        title: name of the data set.
        proposals: the proposals of `qacg suggest`.
        categories: the categories of each sentence.
    """
    known = set().union(*categories)
    found = covered([one.picked for one in proposals], categories)
    chance = by_chance([len(one.picked) for one in proposals], categories)
    missed = ", ".join(sorted(known - found)) or "none"
    return (
        f"{title}: {len(proposals)} proposals of {len(categories):,} sentences cover {len(found)} of {len(known)} "
        f"categories ({len(found) / len(known):.0%}; by chance {chance:.1f}); missed: {missed}"
    )


# Invented sentences about hotels. The rarest category is in about one of 34 sentences. Some adjectives belong to one
# category, others to all. About every third sentence has nouns of no category ("my sister", "the brochure").
HOTEL_SENTENCES = 3000
# By category: its relative frequency, its nouns, and the adjectives that occur with these nouns only.
CATEGORIES = {
    "room": (20, "the room|the bedroom|our suite|the wardrobe|the balcony", "spacious|cramped|tiny|modern|dated"),
    "breakfast": (14, "the breakfast|the buffet|the coffee|the omelette|the dinner", "fresh|cold|tasty|bland"),
    "staff": (14, "the staff|the receptionist|the waiter|the porter|reception", "friendly|rude|helpful|attentive|slow"),
    "location": (10, "the location|the station|the old town|the walk to the beach", "central|far|close|remote"),
    "price": (9, "the price|the bill|the rate|the deposit", "high|fair|reasonable|steep|cheap"),
    "cleanliness": (7, "the carpet|the bathroom|the shower|the linen|the towel", "spotless|dirty|stained|clean|mouldy"),
    "noise": (5, "the noise|the traffic|the street|the bar below", "loud|quiet|audible all night|all around"),
    "internet": (4, "the wifi|the internet|the connection|the password", "fast|down|unusable|patchy|stable"),
    "pool": (3, "the pool|the sauna|the gym|the sunbed", "heated|closed|crowded|empty|warm"),
    "parking": (2, "the parking|the garage|the car park", "full|narrow|free|guarded|easy to find"),
}  # fmt: skip
ALL = ("great", "terrible", "good", "awful", "fine", "excellent", "not what we hoped for", "better than expected")
NOBODY = ("my sister", "the brochure", "our trip", "the weather", "a friend", "the weekend", "the dog", "our flight")
FILLERS = ("came with us", "was another story", "had told us so", "made up for it", "took for ever")


def hotel_sentences() -> list[tuple[str, set[str]]]:
    """Generates HOTEL_SENTENCES sentences of one to three clauses, each with its categories."""
    draw, found = random.Random(0), []
    names, shares = list(CATEGORIES), [share for share, _, _ in CATEGORIES.values()]
    for _ in range(HOTEL_SENTENCES):
        about = list(dict.fromkeys(draw.choices(names, shares, k=draw.choice((1, 1, 2)))))
        clauses = []
        for name in about:
            _, things, verdicts = CATEGORIES[name]
            said = draw.choice(draw.choice((verdicts.split("|"), verdicts.split("|"), ALL)))
            clauses.append(f"{draw.choice(things.split('|'))} was {draw.choice(('', '', 'very ', 'a bit '))}{said}")
        if draw.random() < 1 / 3:
            clauses.insert(draw.randrange(len(clauses) + 1), f"{draw.choice(NOBODY)} {draw.choice(FILLERS)}")
        found.append((draw.choice((", but ", " and ", ", ")).join(clauses) + ".", set(about)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="folder with sentihood/ and semeval2014/"
    )
    parser.add_argument("--aspects", type=int, metavar="N", help=f"number of proposals (default: at most {ASPECTS})")
    arguments = parser.parse_args()
    sentihood = read_sentihood(arguments.data / "sentihood")
    semeval = read_semeval(arguments.data / "semeval2014")
    of_task = [(text, categories & TASK_CATEGORIES) for text, categories in sentihood]
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
