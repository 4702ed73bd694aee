"""Kinds of text, each cut to a number of sentences, as data that a training takes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qacg_models.data import DataOptions, Dataset, count_overlap, load_data
from qacg_models.data.dataset import context_names
from qacg_models.data.example import Example
from qacg_models.data.splitting import split_dev

from benchmarks.learning.reviews import LANGUAGES, as_csv, reviews

# Of the published test splits as many sentences are judged, the same for every size and seed.
TEST_SENTENCES = 300
PUBLISHED = {"sentihood": "sentihood-tsv", "semeval2014": "semeval-csv"}
KINDS = (*LANGUAGES, *PUBLISHED)


def dataset_of(kind: str, sentences: int, seed: int, data: Path | None, folder: Path) -> Dataset | None:
    """Data whose train and dev have so many sentences together, a tenth of them dev; None where there are not so many.

    All are judged as data of one's own: by accuracy and macro-F1 over all rows, dev by macro-F1.

    Args:
        kind: one of KINDS.
        seed: of the choice of sentences.
        data: folder of the published sets, each in a folder of its name; for invented texts not needed.
        folder: where invented texts are written.

    Raises:
        DataError: the published set is not there.
    """
    if kind in LANGUAGES:
        return _invented(kind, sentences, seed, folder)
    if data is None:
        raise ValueError(f"{kind}: wanted the folder that holds {kind}/")
    whole = load_data(data / kind, ("train", "test"), DataOptions(format=PUBLISHED[kind]))
    splits = whole.splits
    if len({row.sentence for row in splits["train"]}) < sentences:
        return None
    train, dev = split_dev(_chosen(splits["train"], sentences, seed), 0.1, seed)
    test = _chosen(splits["test"], TEST_SENTENCES, 0)
    known = set(context_names([train], whole.task))
    rows = {"train": train, "dev": dev, "test": test}
    rows = {split: [row for row in part if row.context in known] for split, part in rows.items()}
    return replace(
        whole,
        task=replace(whole.task, metrics="classification", selection="macro_f1", complete=False),
        splits=rows,
        files={"train": whole.files["train"], "dev": whole.files["train"], "test": whole.files["test"]},
        contexts=context_names([train], whole.task),
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
    """All rows of so many sentences drawn at random, in their order."""
    found = sorted({row.sentence for row in rows})
    drawn = set(random.Random(seed).sample(found, min(sentences, len(found))))
    return [row for row in rows if row.sentence in drawn]
