"""The transformers Trainer with checkpoints that are whole or absent, the best weights, and the order of rows."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainingArguments

from qacg_models.data.collators import slice_batch
from qacg_models.data.feature_table import FeatureTable
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.averaging import WeightAverage
from qacg_models.training.bert_adam import BertAdam, warm_up_then_fall
from qacg_models.training.callbacks import EarlyStopping, TimeLimit, is_tie_with_lower_loss
from qacg_models.training.checkpoints import (
    BEST,
    SECONDS_NAME,
    WRITING,
    best_of,
    best_path,
    checkpoint_path,
    checkpoints,
    seconds_before,
)
from qacg_models.training.joined_texts import JoinedTexts
from qacg_models.training.micro_batches import MicroBatches
from qacg_models.training.sampling import EpochSampler
from qacg_models.training.whole_folders import publish
from qacg_models.training.word_dropout import WordDropout
from qacg_models.utils.atomic_files import explain_write_errors, remove_folder
from qacg_models.utils.devices import is_out_of_memory
from qacg_models.utils.distributed import is_main, wait_for_all, world_size


class AspectTrainer(Trainer):
    """Trains in the folder `args.output_dir`.

    Every checkpoint, and the best weights as `best-STEP`, is written under another name, flushed to the disk and
    renamed, so that a folder with a checkpoint's name is complete whenever the process dies.

    Args:
        options: settled.
        train_features: of the training split, which stay where they are.
        eval_features: features of `encode_examples`.
        compute_metrics: from an EvalPrediction; holds `args.metric_for_best_model`.
        hide_words: what each batch of training goes through.
        say: receives lines.
        checkpoint: of this run, from which it goes on; None to begin.
    """

    def __init__(
        self,
        *,
        options: TrainingOptions,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_features: FeatureTable,
        eval_features: Sequence[dict],
        make_batch: Callable[[Sequence[dict]], dict],
        compute_metrics: Callable,
        callbacks: Sequence[TrainerCallback],
        hide_words: WordDropout,
        say: Callable[[str], None],
        checkpoint: Path | None = None,
    ):
        self.options, self.checkpoint, self.hide_words = options, checkpoint, hide_words
        self.earlier, self.begun = seconds_before(checkpoint), time.perf_counter()
        self.average: WeightAverage | None = None
        joined = JoinedTexts(train_features, options.join_texts, options.max_length) if options.join_texts else None
        self.sampler = EpochSampler(train_features.labels(), options.balance, options.seed, joined)
        self.offsets = label_offsets(train_features.labels(), model.config.num_labels, options.logit_adjustment or 0.0)
        self.staging: Path | None = None
        self.parts = MicroBatches(checkpoint, say)
        self.share = 1.0  # of the rows of a batch that are computed at a time
        self.of_step: list[dict] = []  # batches of the step that is under way
        super().__init__(
            model=model,
            args=args,
            train_dataset=joined or train_features,
            eval_dataset=list(eval_features),
            data_collator=make_batch,
            compute_metrics=compute_metrics,
            callbacks=[*callbacks, _SetEpoch(self.sampler)],
        )
        self.time_limit = TimeLimit(options.minutes, self.seconds) if options.minutes else None
        if self.time_limit is not None:
            self.add_callback(self.time_limit)
        if options.patience:
            self.add_callback(EarlyStopping(options.patience))
        if options.schedule == "steady":
            self.add_callback(_KeepAverage(self))

    @property
    def folder(self) -> Path:
        """Where checkpoints go."""
        return Path(self.args.output_dir)

    def best_weights(self) -> Path:
        """Folder of the weights of the best evaluation."""
        return best_path(self.folder, self.state.best_global_step)

    def seconds(self) -> float:
        """Seconds that training has taken, those before the checkpoint from which it went on included."""
        return self.earlier + time.perf_counter() - self.begun

    def ended(self) -> str:
        """Why training ended, one of `ENDS`."""
        if self.state.global_step >= self.state.max_steps:
            return "steps"
        return "minutes" if self.time_limit is not None and self.time_limit.reached else "patience"

    def judged(self) -> AbstractContextManager[None]:
        """Within, the model has the weights that evaluations judge: their average where one is kept."""
        return nullcontext() if self.average is None else self.average.inside(self.model)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        with self.judged():
            return super().evaluate(*args, **kwargs)

    def training_step(self, model, inputs, *args, **kwargs) -> torch.Tensor:
        # Here, and not where batches are made: those are made ahead, which a checkpoint does not know of.
        self.of_step.append(self.hide_words(inputs))
        batches = self.of_step[-1:]
        while (losses := self._add_gradients(model, batches, *args, **kwargs)) is None:
            self.parts.double(self.of_step[-1], self.state.global_step + 1)
            # A backward pass that broke off has left some gradients, and nobody knows which: the step begins again.
            model.zero_grad()
            batches = self.of_step
        if self.accelerator.sync_gradients:
            self.of_step = []
        return losses[-1]

    def _add_gradients(self, model, batches: Sequence[dict], *args, **kwargs) -> list[torch.Tensor] | None:
        """Adds the gradients of batches and returns their losses; None where there is no memory for it.

        Several processes have to do the same, and one alone cannot know that another has run out of memory: there the
        error is raised.
        """
        losses = []
        try:
            for batch in batches:
                loss = torch.zeros((), device=self.args.device)
                for share, part in self.parts.of(batch):
                    self.share = share
                    loss += super().training_step(model, part, *args, **kwargs)
                losses.append(loss)
        except RuntimeError as error:
            if world_size() > 1 or not is_out_of_memory(error):
                raise
            return None
        finally:
            self.share = 1.0
        return losses

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if self.offsets is not None and model.training:
            found = self._adjusted_loss(model, inputs)
            found = found if return_outputs else found[0]
        else:
            found = super().compute_loss(model, inputs, return_outputs=return_outputs, **kwargs)
        if self.share == 1:
            return found
        return (self.share * found[0], found[1]) if return_outputs else self.share * found

    def _adjusted_loss(self, model, inputs) -> tuple[torch.Tensor, dict]:
        """Cross-entropy of the logits plus `offsets`, and the output (Menon et al., 2021, arXiv:2007.07314, eq. 10)."""
        output = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = output.logits.float()
        return torch.nn.functional.cross_entropy(logits + self.offsets.to(logits.device), inputs["labels"]), output

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        except RuntimeError as error:
            rows = len(inputs["labels"])
            if world_size() > 1 or rows == 1 or not is_out_of_memory(error):
                raise
        halves = [slice_batch(inputs, start, end) for start, end in ((0, rows // 2), (rows // 2, rows))]
        found = [self.prediction_step(model, half, prediction_loss_only, ignore_keys) for half in halves]
        losses, *others = zip(*found)
        loss = sum(loss * len(half["labels"]) for loss, half in zip(losses, halves)) / rows
        return loss, *(None if parts[0] is None else torch.cat(parts) for parts in others)

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

    @contextmanager
    def _writing(self) -> Iterator[Path]:
        """The folder in which what is saved is written; where the disk does not take it, nothing of it stays."""
        writing = self.folder / WRITING
        try:
            with explain_write_errors(writing):
                yield writing
        except InputError:
            shutil.rmtree(writing, ignore_errors=True)  # which gives the space back
            raise

    def _save_checkpoint(self, model, trial) -> None:
        path = checkpoint_path(self.folder, self.state.global_step)
        with self._writing() as writing:
            self.staging = writing
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.staging = None
            wait_for_all()
            if is_main():
                if self.average is not None:
                    self.average.save(writing / path.name)
                self.parts.save(writing / path.name)
                (writing / path.name / SECONDS_NAME).write_text(f"{self.seconds()}\n", encoding="utf-8")
                publish(writing / path.name, path)
        if is_main():
            self._remove_old()
        wait_for_all()

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        equal = is_tie_with_lower_loss(metrics, self.args.metric_for_best_model, self.state)
        better = super()._determine_best_metric(metrics, trial) or equal
        if better:
            self.state.best_global_step = self.state.global_step
            with self._writing() as writing, self.judged():
                self.save_model(str(writing / BEST), _internal_call=True)
                wait_for_all()
                if is_main():
                    publish(writing / BEST, self.best_weights())
            wait_for_all()
        return better

    def _remove_old(self) -> None:
        """Deletes all but the newest checkpoints, and the weights that none of those names."""
        kept = self.options.keep_checkpoints
        for old in checkpoints(self.folder)[:-kept]:
            remove_folder(old)
        named = {best_of(path) for path in checkpoints(self.folder)} | {self.best_weights()}
        for old in self.folder.glob(f"{BEST}-*"):
            if old not in named:
                remove_folder(old)


def label_offsets(labels: Sequence[int], classes: int, weight: float) -> torch.Tensor | None:
    """(classes) float32: `weight` times the log share of each label, one row added to each; None for a weight of 0."""
    if not weight:
        return None
    counts = torch.bincount(torch.as_tensor(labels).long(), minlength=classes).float() + 1
    return weight * (counts / counts.sum()).log()


class _SetEpoch(TrainerCallback):
    """Tells the sampler which epoch comes; at the beginning of one that is gone on with, the epoch is a fraction."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.epoch = int(state.epoch or 0)


class _KeepAverage(TrainerCallback):
    """Keeps the average of the weights, from the beginning or from where the checkpoint has it."""

    def __init__(self, trainer: AspectTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.average = WeightAverage(self.trainer.model)
        if self.trainer.checkpoint is not None:
            self.trainer.average.load(self.trainer.checkpoint)

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.average.update(self.trainer.model, state.global_step)
