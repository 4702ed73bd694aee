"""Writes model folders like those of `qacg train`, with random weights."""

from dataclasses import replace

import torch
from parity import strengthen
from qacg_models.models.auto import BACKBONES, load_class
from qacg_models.sentiment.data_warnings import DataWarning
from qacg_models.sentiment.encoding import load_tokenizer, train_tokenizer
from qacg_models.sentiment.example import Task
from qacg_models.sentiment.metrics import METRIC_CLASSES
from qacg_models.sentiment.options import DataOptions, TrainingOptions
from qacg_models.sentiment.record import (
    RECORD_NAME,
    Selection,
    SplitFile,
    TrainingRecord,
    write_record,
)
from tokenizer_kinds import write_tokenizer

OWN = Task("own", ("none", "good", "bad"), ("food", "price", "service"), has_absent=True)
TEXTS = (
    "the food was great but the bill was not",
    "service is slow",
    "cheap and cheerful , though the <b>noise</b> & the queue are not for me",
    "location - 1 is safer and cheaper than location - 2",
)


def write_model(
    folder, task=OWN, kind="qacg-bert", layers=2, heads=2, fields=None, reading=None, tokenizer=None, **options
):
    """Writes a model folder and returns its path.

    Args:
        folder: path of the folder.
        task: the task.
        kind: name of the model in commands, a key of BACKBONES.
        layers, heads: sizes of the model.
        fields: further fields of the configuration, or None.
        reading: data options; None: the defaults.
        tokenizer: a kind of tokenizer_kinds.py, for a model without token types; None: that of train_tokenizer.
        **options: training options.
    """
    targets = ("location - 1", "location - 2") if task.has_targets else ("",)
    contexts = list(task.contexts(targets))
    chosen = TrainingOptions(model=kind, **options).resolved()
    if tokenizer is None:
        tokenizer, types = train_tokenizer([*TEXTS, *contexts] * 2, vocab_size=300), 2
    else:
        tokenizer, types = load_tokenizer(write_tokenizer(tokenizer, [*TEXTS, *contexts] * 2, folder)), 1
    sizes = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "type_vocab_size": types,
        "hidden_size": 8 * heads,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 24,
        "max_position_embeddings": 48,
        "num_labels": len(task.labels),
    }
    torch.manual_seed(0)
    model_class = load_class(BACKBONES[kind])
    if BACKBONES[kind].contexts:
        sizes |= {"contexts": contexts, "context_standalone": chosen.context_standalone}
    model = model_class(model_class.config_class(**sizes | (fields or {})))
    strengthen(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    resolved = replace(chosen, attention=options.get("attention", "fused"))
    write_record(folder / RECORD_NAME, record_of(task, targets, resolved, reading))
    return folder


def record_of(task, targets, options, reading=None):
    """Makes a training record with a value in every field; all metrics are 0.5."""
    figures = {name: 0.5 for name in METRIC_CLASSES[task.metrics].TITLES} | {"undefined": []}
    coin = {split: METRIC_CLASSES[task.metrics].from_json(figures) for split in ("dev", "test")}
    return TrainingRecord(
        task=task,
        targets=tuple(targets),
        max_length=48,
        options=replace(options, threads=1),
        data_options=reading or DataOptions(),
        selected=Selection("dev", task.selection, 2, 0.5),
        label_shares=(1 / len(task.labels),) * len(task.labels),
        overlap=(("dev", "test", 0),),
        data={split: SplitFile(4, f"digest of {split}") for split in ("train", "dev", "test")},
        warnings=(DataWarning("few_rows", "test", "metrics on 4 rows say little", 4, ("line 2",)),),
        steps=3,
        evaluations=2,
        seconds=60.0,
        loss=((1, 0.75), (2, 0.5)),
        ended="steps",
        versions={"torch": "2.13"},
        machine={"cpu": {"model": "abacus"}, "cuda": {"devices": []}, "threads": 2},
        commit="c" * 40 + "-modified",
        written="2026-01-02T03:04:05+00:00",
        metrics=coin,
        tfidf=coin,
        majority=coin,
        confusion={
            split: {aspect: ((1,) * len(task.labels),) * len(task.labels) for aspect in task.aspects} for split in coin
        },
        bfloat16_agreement=0.5,
    )
