"""The sample reviews, a wide table: they are read, and no split repeats another."""

from qacg_models.sentiment.dataset import load_data, sample_reviews
from qacg_models.sentiment.options import DataOptions

ASPECTS = ("food", "service", "price", "atmosphere", "design", "reliability")


def runs_of_words(rows, length=5):
    words = [row.sentence.lower().split() for row in rows]
    return {tuple(each[start : start + length]) for each in words for start in range(len(each) - length + 1)}


def test_reviews_have_every_aspect_and_no_overlap():
    dataset = load_data(sample_reviews(), ("train", "dev", "test"), DataOptions(wide=True))
    assert set(dataset.task.aspects) == set(ASPECTS)
    splits = dataset.splits
    texts = {name: len(rows) // len(ASPECTS) for name, rows in splits.items()}
    assert texts == {"train": 2281, "dev": 125, "test": 241}
    assert not runs_of_words(splits["train"]) & runs_of_words([*splits["dev"], *splits["test"]])
    for rows in splits.values():
        assert {(row.aspect, row.label) for row in rows} == {
            (aspect, label) for aspect in ASPECTS for label in range(3)
        }
