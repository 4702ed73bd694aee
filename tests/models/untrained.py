"""Folders as `qacg train` writes them, with weights at random: for tests of what is done with a model."""

import json

import torch
from model_judging import strengthen
from qacg_models import (
    BertForSequenceClassification,
    PlainBertConfig,
    QACGBertConfig,
    QACGBertForSequenceClassification,
)
from qacg_models.data.task import SENTIHOOD, Task
from qacg_models.data.tokenization import train_tokenizer
from qacg_models.runs.options import TrainingOptions

OWN = Task("own", ("none", "good", "bad"), ("food", "price", "service"), has_absent=True)
TEXTS = (
    "the food was great but the bill was not",
    "service is slow",
    "cheap and cheerful , though the <b>noise</b> & the queue are not for me",
    "location - 1 is safer and cheaper than location - 2",
)


def write_model(folder, task=OWN, kind="qacg-bert", layers=2, heads=2, **options):
    """A model folder, a path; `options` are those of training. Returns the folder."""
    targets = ("location - 1", "location - 2") if task == SENTIHOOD else ("",)
    contexts = [task.context(target, aspect) for target in targets for aspect in task.aspects]
    chosen = TrainingOptions(model=kind, **options).resolved()
    tokenizer = train_tokenizer([*TEXTS, *contexts] * 2, vocab_size=300)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 8 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
        "num_labels": len(task.labels),
    }
    torch.manual_seed(0)
    if kind == "bert":
        model = BertForSequenceClassification(PlainBertConfig(**sizes))
    else:
        context = {"contexts": contexts, "context_standalone": chosen.context_standalone}
        model = QACGBertForSequenceClassification(QACGBertConfig(**sizes, **context))
    strengthen(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        "format": 2,
        "options": vars(chosen) | {"attention": options.get("attention", "fused"), "threads": 1},
        "task": task.to_json(),
        "contexts": contexts,
        "data_options": {},
        "max_length": 48,
        "label_shares": [1 / len(task.labels)] * len(task.labels),
    }
    (folder / "training.json").write_text(json.dumps(record), encoding="utf-8")
    return folder
