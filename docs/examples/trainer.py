"""Trains with the Trainer of transformers, then predicts with a pipeline: python docs/examples/trainer.py"""

import random
import tempfile

import torch
from qacg_models import PackingCollator, QACGBertConfig, QACGBertForSequenceClassification
from qacg_models.sentiment.encoding import train_tokenizer
from transformers import Trainer, TrainingArguments, pipeline

ASPECTS, LABELS = ["food", "price"], ["none", "good", "bad"]
WORDS = {
    "food": {"good": "the soup was lovely", "bad": "the fish was raw"},
    "price": {"good": "it was cheap", "bad": "the bill was a shock"},
}


def reviews(count, seed):
    """Yields two rows (text, aspect, label) for each random sentence, one for each aspect."""
    draw = random.Random(seed)
    for _ in range(count):
        labels = {aspect: draw.choice(LABELS) for aspect in ASPECTS}
        clauses = ["we came by bus", *(WORDS[aspect][label] for aspect, label in labels.items() if label != "none")]
        yield from ((" and ".join(draw.sample(clauses, len(clauses))), *pair) for pair in labels.items())


def main(folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)  # faster for a model of this size
    tokenizer = train_tokenizer([text for text, _, _ in reviews(400, 0)])
    config = QACGBertConfig(
        vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        contexts=ASPECTS, context_standalone=True, id2label=dict(enumerate(LABELS)), pooler="attention",
        initializer_range=0.08,
    )  # fmt: skip
    model = QACGBertForSequenceClassification(config)

    def encoded(rows):
        for text, aspect, label in rows:
            tokens = tokenizer(text, return_token_type_ids=True)
            ids = {"context_ids": config.context_id(aspect), "labels": LABELS.index(label)}
            yield {"input_ids": tokens["input_ids"], "token_type_ids": tokens["token_type_ids"], **ids}

    arguments = TrainingArguments(
        folder, num_train_epochs=8, per_device_train_batch_size=32, learning_rate=2e-3, report_to="none",
        remove_unused_columns=False, save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    Trainer(model, arguments, PackingCollator(), list(encoded(reviews(400, 0)))).train()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ask, rows = pipeline("aspect-sentiment", model=folder, device="cpu"), list(reviews(40, 1))
    right = [ask(text, aspects=[aspect])[0]["label"] == label for text, aspect, label in rows]
    print(ask("the soup was lovely but the bill was a shock"))
    return sum(right) / len(rows)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as output:
        print(f"accuracy: {main(output):.1%}")
