"""Trains on a CSV and predicts: python docs/examples/aspect_sentiment.py FOLDER (a new folder)"""

import csv
import random
import sys
from pathlib import Path

from qacg_models import AspectSentiment
from qacg_models.cli.program import main as qacg

OPINIONS = {
    "food": {"good": ["the soup was lovely", "we loved the fish"], "bad": ["the bread was stale", "the fish was raw"]},
    "price": {"good": ["the bill was a bargain", "it was cheap"], "bad": ["the bill was a shock", "it costs too much"]},
    "service": {"good": ["the waiter was kind", "they were quick"], "bad": ["the waiter was rude", "nobody came"]},
}


def write_reviews(path, sentences=80):
    """Writes a CSV with a row per sentence and aspect, labelled `none` if the sentence has no opinion on the aspect."""
    random.seed(0)
    with path.open("w", newline="", encoding="utf-8") as handle:
        rows = csv.writer(handle)
        rows.writerow(["text", "aspect", "label"])
        for _ in range(sentences):
            said = {aspect: random.choice(["good", "bad"]) for aspect in random.sample(sorted(OPINIONS), 2)}
            text = " and ".join(random.choice(OPINIONS[aspect][label]) for aspect, label in said.items())
            rows.writerows([text, aspect, said.get(aspect, "none")] for aspect in OPINIONS)


def main(folder, *options):
    folder = Path(folder)
    folder.mkdir()
    data, model = folder / "reviews.csv", folder / "model"
    write_reviews(data)
    train = ["train", "--data", str(data), "--output", str(model), "--from", "scratch", *options]
    if qacg(train) != 0:
        raise SystemExit("training failed")
    answers = AspectSentiment.from_pretrained(str(model))("the soup was lovely and the bill was a shock")
    for answer in answers:
        print(f"{answer.aspect}: {answer.label}")
    return {answer.aspect: answer.label for answer in answers}


if __name__ == "__main__":
    main(*sys.argv[1:] or ["reviews"], "--epochs=15")
