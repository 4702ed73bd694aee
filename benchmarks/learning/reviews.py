"""Invented product reviews whose held-out part combines words as the training part never does.

A review is two to four clauses, each about an aspect of its own: a thing, and a verdict on it. Verdicts are the same
for all aspects, so that only the clause says which aspect a word such as "flawless" praises; each thing has verdicts
that stand beside it in the held-out part alone. A model has to learn what words mean, and to which thing they belong.
"""

from __future__ import annotations

import csv
import hashlib
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass

LABELS = ("none", "positive", "negative")
# One in so many pairs of a thing and a verdict is kept for the held-out part.
HELD_OUT = 4


@dataclass(frozen=True)
class Language:
    """Words of a language.

    Attributes:
        things: by aspect, singular, with their article.
        verdicts: by label; both have what follows the thing, a verb included.
        joints: between clauses.
        openings, closings: around a review, without an opinion.
    """

    things: dict[str, tuple[str, ...]]
    verdicts: dict[str, tuple[str, ...]]
    joints: tuple[str, ...]
    openings: tuple[str, ...]
    closings: tuple[str, ...]


ENGLISH = Language(
    {
        "battery": ("the battery", "the charge", "the power pack", "the runtime", "the charging speed"),
        "delivery": ("the delivery", "the courier", "the shipping", "the parcel", "the packaging"),
        "price": ("the price", "the cost", "what i paid", "the deal", "the bill"),
        "screen": ("the screen", "the display", "the panel", "the picture", "the brightness"),
    },
    {
        "positive": (
            "is excellent", "is flawless", "was a pleasant surprise", "could not be better", "is not bad at all",
            "beats all i had before", "makes me happy", "deserves praise",
        ),
        "negative": (
            "is terrible", "is a disappointment", "was an unpleasant surprise", "could not be worse",
            "is not good at all", "is the worst i have had", "makes me angry", "deserves no praise",
        ),
    },
    (" and ", " , but ", " . ", " , while ", " ; "),
    ("", "", "bought this last month . ", "second one in this house . ", "a gift for my sister . "),
    ("", "", " . that is all", " . i have had it for a week", " . make of that what you will"),
)  # fmt: skip

GERMAN = Language(
    {
        "Akku": ("der Akku", "die Laufzeit", "das Netzteil", "die Ladezeit"),
        "Bildschirm": ("der Bildschirm", "die Anzeige", "das Bild", "die Helligkeit"),
        "Preis": ("der Preis", "die Rechnung", "das Angebot", "die Gebühr"),
        "Lieferung": ("die Lieferung", "der Bote", "das Paket", "die Verpackung"),
    },
    {
        "positive": (
            "ist ausgezeichnet", "ist tadellos", "hat mich überzeugt", "könnte nicht besser sein",
            "ist gar nicht schlecht", "macht mir Freude", "war eine schöne Überraschung", "ist großartig",
        ),
        "negative": (
            "ist furchtbar", "ist mangelhaft", "hat mich enttäuscht", "könnte nicht schlechter sein",
            "ist gar nicht gut", "macht mir Ärger", "war eine böse Überraschung", "ist alles andere als großartig",
        ),
    },
    (" und ", ", aber ", ". ", ", während ", "; "),
    ("", "", "Letzten Monat gekauft. ", "Schon das zweite im Haus. "),
    ("", "", ". Mehr ist nicht zu sagen", ". Ich habe es seit einer Woche"),
)  # fmt: skip

LANGUAGES = {"english": ENGLISH, "german": GERMAN}


def reviews(
    count: int, seed: int, *, held_out: bool, language: Language = ENGLISH
) -> Iterator[tuple[str, dict[str, str]]]:
    """Texts, each with the label of every aspect.

    Args:
        count: how many; no text comes twice.
        seed: of the choice; two different ones may share texts of the training part.
        held_out: whether every pair of a thing and a verdict is one that the training part never has, or none is.
    """
    draw, seen = random.Random(f"{seed} {held_out}"), set()
    while len(seen) < count:
        labels = dict.fromkeys(language.things, "none")
        parts = []
        for aspect in draw.sample(sorted(language.things), draw.choice((2, 2, 3, 4))):
            labels[aspect] = draw.choice(LABELS[1:])
            pairs = [
                f"{thing} {verdict}"
                for thing in language.things[aspect]
                for verdict in language.verdicts[labels[aspect]]
                if _is_held_out(thing, verdict) is held_out
            ]
            parts.append(draw.choice(pairs))
        text = draw.choice(language.openings) + parts[0]
        for part in parts[1:]:
            text += draw.choice(language.joints) + part
        text += draw.choice(language.closings)
        if text not in seen:
            seen.add(text)
            yield text, labels


def as_csv(texts: Iterator[tuple[str, dict[str, str]]]) -> str:
    """A file as `qacg train` reads it: columns text, aspect and label, a row for every text and aspect."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("text", "aspect", "label"))
    for text, labels in texts:
        writer.writerows((text, aspect, label) for aspect, label in labels.items())
    return lines.getvalue()


def _is_held_out(thing: str, verdict: str) -> bool:
    return hashlib.sha256(f"{thing}\n{verdict}".encode()).digest()[0] % HELD_OUT == 0
