"""The transformers Trainer with checkpoints that are whole or absent, the best weights, and the order of rows."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qacg_models.runs.options import TrainingOptions
from qacg_models.training.bert_adam import BertAdam, warm_up_then_fall
from qacg_models.training.sampling import EpochSampler
from qacg_models.utils.distributed import is_main, wait_for_all

BEST = "best"
SECONDS_NAME = "seconds.txt"


class AspectTrainer(Trainer):
    """Trains in the folder `args.output_dir`.

    Every checkpoint, and the best weights as `best-STEP`, is written under another name, flushed to the disk and
    renamed, so that a folder with a checkpoint's name is complete whenever the process dies.

    Args:
        options: resolved.
        train_features, eval_features: features of `encode_examples`.
        compute_metrics: from an EvalPrediction; holds `args.metric_for_best_model`.
        earlier: seconds that training took before the checkpoint from which it goes on.
    """

    def __init__(
        self,
        *,
        options: TrainingOptions,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_features: Sequence[dict],
        eval_features: Sequence[dict],
        make_batch: Callable[[Sequence[dict]], dict],
        compute_metrics: Callable,
        callbacks: Sequence[TrainerCallback],
        earlier: float = 0.0,
    ):
        self.options, self.earlier, self.begun = options, earlier, time.perf_counter()
        self.sampler = EpochSampler([feature["labels"] for feature in train_features], options.balance, options.seed)
        self.staging: Path | None = None
        super().__init__(
            model=model,
            args=args,
            train_dataset=list(train_features),
            eval_dataset=list(eval_features),
            data_collator=make_batch,
            compute_metrics=compute_metrics,
            callbacks=[*callbacks, _SetEpoch(self.sampler)],
        )

    @property
    def folder(self) -> Path:
        """Where checkpoints go."""
        return Path(self.args.output_dir)

    def best_weights(self) -> Path:
        """Folder of the weights of the best evaluation."""
        return self.folder / f"{BEST}-{self.state.best_global_step}"

    def seconds(self) -> float:
        """Seconds that training has taken, those before the checkpoint from which it went on included."""
        return self.earlier + time.perf_counter() - self.begun

    def _get_train_sampler(self, train_dataset=None) -> EpochSampler:
        return self.sampler

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        if self.options.protocol != "released":
            return super().create_optimizer(model)
        if self.optimizer is None:
            model = self.model if model is None else model
            decayed = self.get_decay_parameter_names(model)
            groups = [
                {
                    "params": [value for name, value in model.named_parameters() if (name in decayed) is decays],
                    "weight_decay": self.options.weight_decay if decays else 0.0,
                }
                for decays in (True, False)
            ]
            self.optimizer = BertAdam(groups, self.options.learning_rate, max_grad_norm=self.options.max_grad_norm)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer=None):
        if self.options.protocol != "released":
            return super().create_scheduler(num_training_steps, optimizer)
        if self.lr_scheduler is None:
            self.lr_scheduler = LambdaLR(
                optimizer or self.optimizer,
                lambda step: warm_up_then_fall(step, num_training_steps, self.options.warmup),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    def _get_output_dir(self, trial) -> str:
        return str(self.staging or self.folder)

    def _save_checkpoint(self, model, trial) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        self.staging = self.folder / ".writing"
        try:
            super()._save_checkpoint(model, trial)
        finally:
            staging, self.staging = self.staging, None
        wait_for_all()
        if is_main():
            (staging / name / SECONDS_NAME).write_text(f"{self.seconds()}\n", encoding="utf-8")
            publish(staging / name, self.folder / name)
            for old in checkpoints(self.folder)[: -self.options.keep_checkpoints]:
                remove(old)
        wait_for_all()

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        better = super()._determine_best_metric(metrics, trial)
        if better:
            writing, best = self.folder / ".writing" / BEST, self.best_weights()
            self.save_model(str(writing), _internal_call=True)
            wait_for_all()
            if is_main():
                publish(writing, best)
                for old in self.folder.glob(f"{BEST}-*"):
                    if old != best:
                        remove(old)
            wait_for_all()
        return better


class _SetEpoch(TrainerCallback):
    """Tells the sampler which epoch comes; at the beginning of one that is gone on with, the epoch is a fraction."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.epoch = int(state.epoch or 0)


def checkpoints(folder: Path) -> list[Path]:
    """The whole checkpoints of a folder, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def seconds_before(checkpoint: Path | None) -> float:
    """How long training took up to a checkpoint; 0 without one."""
    return 0.0 if checkpoint is None else float((checkpoint / SECONDS_NAME).read_text(encoding="utf-8"))


def publish(written: Path, name: Path) -> None:
    """Gives a folder that has been written its name, once its content is on the disk."""
    for path in (*(path for path in written.rglob("*") if path.is_file()), written):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    if name.exists():  # of an earlier attempt, beyond the checkpoint from which this one went on
        remove(name)
    os.rename(written, name)


def remove(folder: Path) -> None:
    """Deletes a folder so that no half of it is ever found under its name."""
    doomed = folder.with_name(f".deleting-{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.rename(folder, doomed)
    shutil.rmtree(doomed)
