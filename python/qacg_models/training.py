"""Training a QACG-BERT on the transformers Trainer, and writing it as one complete folder."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .data import Dataset, Row, file_digest, label_shares
from .errors import InputError
from .folders import put_in_place
from .inference import RECORD_FORMAT, RECORD_NAME, TrainedModel, judge, load_trained
from .options import TrainingOptions
from .threads import cpu_threads
from .tokenization import PaddingCollator, encode_rows, train_tokenizer

if TYPE_CHECKING:
    from transformers import EvalPrediction, PreTrainedTokenizerFast

    from .qacg_bert import QACGBertConfig

SELECTION_SPLIT = "dev"
SELECTION_METRIC = "strict_accuracy"


def train(
    dataset: Dataset,
    output: Path | str,
    options: TrainingOptions | None = None,
    *,
    tokenizer: PreTrainedTokenizerFast | None = None,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
) -> TrainedModel:
    """Train, keep the checkpoint with the best strict accuracy on dev, and write it to `output`.

    Everything is written beside `output` under a temporary name and renamed at the end, so `output` is
    either absent, what it was before, or complete.

    Args:
        dataset: with the splits train and dev; test is evaluated too if it is there, once, at the end.
        output: folder to make.
        options: None for the defaults.
        tokenizer: None learns one from the training split.
        overwrite: replace `output` if it exists.
        say: receives lines of progress; the progress bar goes to stderr.

    Returns:
        The model as loaded back from `output`; its record holds the figures and the loss curve.

    Raises:
        InputError: `output` exists and may not be replaced, a split is missing, or an option does not fit.
    """
    options = options or TrainingOptions()
    output = Path(output)
    check_output(output, overwrite)
    for split in ("train", SELECTION_SPLIT):
        if split not in dataset.splits:
            raise InputError(f"training needs the split {split!r}; this data has {', '.join(dataset.splits)}")
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        with cpu_threads(options.threads):
            record = _train_into(work, dataset, options, tokenizer, say)
        _write_json(work / "model" / RECORD_NAME, record)
        trained = load_trained(work / "model")
        # The figures on record are those of the files on disk, not of the model still in memory.
        record |= _figures(trained, dataset)
        _write_json(work / "model" / RECORD_NAME, record)
        put_in_place(work / "model", output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return TrainedModel(trained.model, trained.tokenizer, record)


def check_output(output: Path | str, overwrite: bool) -> None:
    """Refuse a folder that would be lost.

    Raises:
        InputError: it exists and may not be replaced, or is no model folder or empty folder.
    """
    output = Path(output)
    if not output.exists():
        return
    if output.is_dir() and not any(output.iterdir()):
        return
    if not overwrite:
        raise InputError(f"{output}: already exists; choose another --output, or replace it with --overwrite")
    if not (output / RECORD_NAME).is_file():
        raise InputError(f"{output}: is no model folder, so --overwrite leaves it alone")


def _train_into(
    work: Path,
    dataset: Dataset,
    options: TrainingOptions,
    tokenizer: PreTrainedTokenizerFast | None,
    say: Callable[[str], None],
) -> dict:
    """Train in `work`, save the best model as `work/model`, return the record without figures."""
    from transformers import TrainingArguments, set_seed
    from transformers.trainer_callback import PrinterCallback, ProgressCallback

    from .balanced_trainer import BalancedTrainer
    from .progress import StepBar
    from .qacg_bert import QACGBertForSequenceClassification

    set_seed(options.seed)
    training_rows, dev_rows = dataset.splits["train"], dataset.splits[SELECTION_SPLIT]
    if tokenizer is None:
        names = () if options.context_standalone else dataset.contexts
        texts = [*dict.fromkeys(row.sentence for row in training_rows), *names]
        tokenizer = train_tokenizer(texts, options.vocab_size)
    encode = {"tokenizer": tokenizer, "contexts": dataset.contexts, "max_length": options.max_length}
    encode["context_standalone"] = options.context_standalone
    training_set, cut = encode_rows(training_rows, **encode)
    dev_set, dev_cut = encode_rows(dev_rows, **encode)
    if cut or dev_cut:
        say(f"cut to {options.max_length} tokens: {cut} rows of train, {dev_cut} of {SELECTION_SPLIT}")

    config = _config(dataset, options, tokenizer)
    model = QACGBertForSequenceClassification._from_config(config, attn_implementation=options.attention)
    weights = sum(parameter.numel() for parameter in model.parameters())
    say(
        f"model: {options.layers} layers, hidden {options.hidden_size}, {weights:,} weights,"
        f" {options.attention} attention"
    )

    steps = math.ceil(len(training_set) / options.batch_size) * options.epochs
    arguments = TrainingArguments(
        output_dir=str(work / "checkpoints"),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=64,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        lr_scheduler_type="linear",
        warmup_steps=max(1, steps // 10),
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        save_only_model=True,
        load_best_model_at_end=True,
        metric_for_best_model=SELECTION_METRIC,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=max(1, steps // 50),
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        report_to="none",
        seed=options.seed,
    )
    trainer = BalancedTrainer(
        balance=options.balance,
        model=model,
        args=arguments,
        train_dataset=training_set,
        eval_dataset=dev_set,
        data_collator=PaddingCollator(tokenizer.pad_token_id),
        compute_metrics=lambda prediction: _judge_logits(dev_rows, prediction),
        callbacks=[StepBar(SELECTION_METRIC)],
    )
    for default in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(default)
    start = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - start

    trainer.model.save_pretrained(work / "model")
    tokenizer.save_pretrained(work / "model")
    state = trainer.state
    return {
        "format": RECORD_FORMAT,
        "task": dataset.task.to_json(),
        "max_length": options.max_length,
        "options": asdict(options),
        "selected": {
            "split": SELECTION_SPLIT,
            "metric": SELECTION_METRIC,
            "step": state.best_global_step,
            "value": state.best_metric,
        },
        "label_shares": label_shares(training_rows, dataset.task),
        "overlap": [[a, b, count] for (a, b), count in dataset.overlap.items()],
        "data": {
            split: {"rows": len(rows), "sha256": file_digest(dataset.files[split])}
            for split, rows in dataset.splits.items()
        },
        "steps": state.global_step,
        "seconds": seconds,
        "loss": [[entry["step"], entry["loss"]] for entry in state.log_history if "loss" in entry],
        "versions": _versions(),
    }


def _config(dataset: Dataset, options: TrainingOptions, tokenizer: PreTrainedTokenizerFast) -> QACGBertConfig:
    from .configuration import QACGBertConfig

    labels = dataset.task.labels
    return QACGBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=options.intermediate_size,
        max_position_embeddings=options.max_length,
        hidden_dropout_prob=options.dropout,
        attention_probs_dropout_prob=options.dropout,
        initializer_range=options.initializer_range,
        pooler=options.pooler,
        context_projection=options.context_projection,
        context_standalone=options.context_standalone,
        contexts=list(dataset.contexts),
        id2label=dict(enumerate(labels)),
        label2id={label: index for index, label in enumerate(labels)},
        pad_token_id=tokenizer.pad_token_id,
    )


def _judge_logits(rows: Sequence[Row], prediction: EvalPrediction) -> dict[str, float]:
    import torch

    if prediction.label_ids.tolist() != [row.label for row in rows]:
        raise RuntimeError("the Trainer evaluated the rows in another order than they were given")
    probabilities = torch.from_numpy(prediction.predictions).double().softmax(-1).numpy()
    return {SELECTION_METRIC: judge(rows, probabilities).strict_accuracy}


def _figures(trained: TrainedModel, dataset: Dataset) -> dict:
    """Metrics of the model and of the majority row on every split but train."""
    splits = [split for split in dataset.splits if split != "train"]
    return {
        "metrics": {split: trained.evaluate(dataset.splits[split]).to_json() for split in splits},
        "majority": {split: trained.majority(dataset.splits[split]).to_json() for split in splits},
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "tokenizers")}


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
