"""Texts of the learning curves: a given number of invented product reviews or of published sentences.

A review has two to four clauses, each about a different aspect. A clause consists of a thing and a verdict on it. All
aspects have the same verdicts, so only the clause shows which aspect a word such as "flawless" praises. Some pairs of a
thing and a verdict occur only in the test split. So a model must learn what words mean and which thing they refer to.
"""

import csv
import hashlib
import io
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qacg_models.data import DataOptions, Dataset, count_overlap, load_data
from qacg_models.data.dataset import target_names
from qacg_models.data.example import Example
from qacg_models.data.splitting import split_dev

LABELS = ("none", "positive", "negative")
# About one of this many pairs of a thing and a verdict is held out for the test split.
HELD_OUT = 4


@dataclass(frozen=True)
class Language:
    """The words of a language.

    Attributes:
        things: singular nouns with their article, by aspect.
        verdicts: predicates by label.
        joints: texts between clauses.
        openings, closings: texts without an opinion, for the beginning and the end of a review.
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
    """Yields distinct texts, each with the label of every aspect.

    Args:
        count: number of texts.
        seed: seed of the choice; training texts of two seeds may overlap.
        held_out: True: only pairs of a thing and a verdict that are held out; False: only the other pairs.
        language: the words.
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
    """Formats texts as CSV for `qacg train`: columns text, aspect and label, and a row for each text and aspect."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(("text", "aspect", "label"))
    for text, labels in texts:
        writer.writerows((text, aspect, label) for aspect, label in labels.items())
    return lines.getvalue()


def _is_held_out(thing: str, verdict: str) -> bool:
    return hashlib.sha256(f"{thing}\n{verdict}".encode()).digest()[0] % HELD_OUT == 0


# Number of test sentences, the same for every size and seed.
TEST_SENTENCES = 300
PUBLISHED = {"sentihood": "sentihood-tsv", "semeval2014": "semeval-csv"}
KINDS = (*LANGUAGES, *PUBLISHED)


def dataset_of(kind: str, sentences: int, seed: int, data: Path | None, folder: Path) -> Dataset | None:
    """Makes a data set with a given number of sentences in train and dev, a tenth of them in dev.

    The metrics are accuracy and macro-F1, as for a user's data; the metrics of the published tasks are not used.
    Training selects weights by macro-F1 on dev.

    Returns None if the published data has fewer sentences.

    Args:
        kind: one of KINDS.
        sentences: number of sentences in train and dev together.
        seed: seed of the choice of sentences.
        data: folder of the published sets, each in a folder of its name; not used for invented texts.
        folder: where invented texts are written.

    Raises:
        InputError: there are too few sentences for a dev split, or the published set does not exist (DataError).
        ValueError: `data` is None for a published set.
    """
    if kind in LANGUAGES:
        return _invented(kind, sentences, seed, folder)
    if data is None:
        raise ValueError(f"data: expected the folder that contains {kind}/, got None. Pass --data DIR.")
    whole = load_data(data / kind, ("train", "test"), DataOptions(format=PUBLISHED[kind]))
    splits = whole.splits
    if len({row.sentence for row in splits["train"]}) < sentences:
        return None
    train, dev = split_dev(_chosen(splits["train"], sentences, seed), 0.1, seed)
    test = _chosen(splits["test"], TEST_SENTENCES, 0)
    targets = target_names([train], whole.task)
    known = set(whole.task.contexts(targets))
    rows = {"train": train, "dev": dev, "test": test}
    rows = {split: [row for row in part if row.context in known] for split, part in rows.items()}
    return replace(
        whole,
        task=replace(whole.task, metrics="classification", selection="macro_f1", complete=False),
        splits=rows,
        files={"train": whole.files["train"], "dev": whole.files["train"], "test": whole.files["test"]},
        targets=targets,
        overlap=count_overlap(rows),
    )


def _invented(kind: str, sentences: int, seed: int, folder: Path) -> Dataset:
    folder.mkdir(parents=True, exist_ok=True)
    language = LANGUAGES[kind]
    training = reviews(sentences, seed, held_out=False, language=language)
    for split, texts in {
        "train": training,
        "test": reviews(TEST_SENTENCES, 0, held_out=True, language=language),
    }.items():
        (folder / f"{split}.csv").write_text(as_csv(texts), encoding="utf-8")
    return load_data(folder, options=DataOptions(dev_seed=seed))


def _chosen(rows: Sequence[Example], sentences: int, seed: int) -> list[Example]:
    """Draws `sentences` different sentences at random, or all if there are fewer.

    Returns all examples of the drawn sentences, in the order of `rows`.
    """
    found = sorted({row.sentence for row in rows})
    drawn = set(random.Random(seed).sample(found, min(sentences, len(found))))
    return [row for row in rows if row.sentence in drawn]
