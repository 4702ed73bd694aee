"""Invented sentences about hotels with their categories: a domain that `qacg suggest` was not made with.

Ten categories, the rarest in one of sixty sentences; verdicts that only one category has and verdicts that all have;
nouns that belong to none ("my sister", "the brochure") in every third sentence.
"""

from __future__ import annotations

import random

SENTENCES = 3000
# By category: how often it is written about, its things, and what is said of them alone.
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


def hotel_sentences(count: int = SENTENCES, seed: int = 0) -> list[tuple[str, set[str]]]:
    """Sentences of one to three clauses, each with the categories that it says something of."""
    draw, found = random.Random(seed), []
    names, shares = list(CATEGORIES), [share for share, _, _ in CATEGORIES.values()]
    for _ in range(count):
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
