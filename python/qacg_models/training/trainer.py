"""The transformers Trainer with durable checkpoints, the best weights, micro-batches and a fixed order of rows."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from qacg_models.data.collators import slice_batch
from qacg_models.runs.options import TrainingOptions
from qacg_models.training.arguments import training_arguments
from qacg_models.training.augmentation import JoinedTexts, WordDropout
from qacg_models.training.averaging import WeightAverage
from qacg_models.training.bert_adam import BertAdam, warmup_then_linear
from qacg_models.training.callbacks import EarlyStopping, EvaluationMetrics, TimeLimit, is_tie_with_lower_loss
from qacg_models.training.encoded_splits import EncodedSplits
from qacg_models.training.micro_batches import MicroBatches
from qacg_models.training.run_folder import RunFolder, RunState
from qacg_models.training.sampling import EpochSampler
from qacg_models.utils.atomic_files import explain_write_errors
from qacg_models.utils.devices import is_out_of_memory
from qacg_models.utils.distributed import is_main, wait_for_all, world_size


class AspectTrainer(Trainer):
    """Trains, and writes checkpoints and the best weights to the folder of the run.

    Args:
        options: options of training, from `resolve_options`.
        model: the model to train.
        splits: encoded rows of the training split and of the split that selects checkpoints.
        make_batch: data collator.
        metrics: computes the metrics of an evaluation; `metrics.task.selection` is the name of the metric that selects
            the best weights.
        callbacks: callbacks in addition to those that the options require.
        hide_words: word dropout, applied to each training batch.
        folder: folder of the run.
        say: called with each log line.
        checkpoint: checkpoint to resume from; None: start at the first step.
    """

    def __init__(
        self,
        *,
        options: TrainingOptions,
        model: PreTrainedModel,
        splits: EncodedSplits,
        make_batch: Callable[[Sequence[dict]], dict],
        metrics: EvaluationMetrics,
        callbacks: Sequence[TrainerCallback],
        hide_words: WordDropout,
        folder: RunFolder,
        say: Callable[[str], None],
        checkpoint: Path | None = None,
    ):
        self.options, self.folder, self.checkpoint, self.hide_words = options, folder, checkpoint, hide_words
        state, labels = RunState.read(checkpoint), splits.train.labels
        self.seconds_before, self.started = state.seconds, time.perf_counter()
        self.micro_batches = MicroBatches(state.micro_batches, say)
        self.micro_batch_share = 1.0  # rows in the current micro-batch / rows in its batch
        self.step_batches: list[dict] = []  # batches of the current step
        self.average: WeightAverage | None = None
        joined = JoinedTexts(splits.train, options.join_texts, options.max_length) if options.join_texts else None
        texts = splits.train.texts() if getattr(model.config, "shares_texts", False) else None
        self.sampler = EpochSampler(labels, options.balance, options.seed, joined, texts)
        self.offsets = label_offsets(labels, model.config.num_labels, options.logit_adjustment or 0.0)
        super().__init__(
            model=model,
            args=training_arguments(folder.path, options, len(splits.train), model, metrics.task.selection),
            train_dataset=joined or splits.train,
            eval_dataset=splits.evaluated,
            data_collator=make_batch,
            compute_metrics=metrics,
            callbacks=[*callbacks, _SetEpoch(self.sampler)],
        )
        self.time_limit = TimeLimit(options.minutes, self.seconds) if options.minutes else None
        if self.time_limit is not None:
            self.add_callback(self.time_limit)
        if options.patience:
            self.add_callback(EarlyStopping(options.patience))
        if options.schedule == "steady":
            self.add_callback(_KeepAverage(self))

    def seconds(self) -> float:
        """Returns the duration of training in seconds, including the time before the checkpoint of a resumed run."""
        return self.seconds_before + time.perf_counter() - self.started

    def end_reason(self) -> str:
        """Returns the reason why training ended, one of `runs.record.ENDS`."""
        if self.state.global_step >= self.state.max_steps:
            return "steps"
        return "minutes" if self.time_limit is not None and self.time_limit.reached else "patience"

    # --- saving ---

    def _save_checkpoint(self, model, trial) -> None:
        with self.folder.new_checkpoint(self.state.global_step, self.options.keep_checkpoints) as path:
            super()._save_checkpoint(model, trial)
            # The Trainer stores a path in the temporary folder, and warns in a resumed run that it does not exist.
            self.state.best_model_checkpoint = None
            if is_main():
                self.state.save_to_json(path / TRAINER_STATE_NAME)
                if self.average is not None:
                    self.average.save(path)
                RunState(self.seconds(), self.micro_batches.count).write(path)
            wait_for_all()
        wait_for_all()

    def _get_output_dir(self, trial) -> str:
        return str(self.folder.writing)  # the Trainer adds the name of the checkpoint

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        tie = is_tie_with_lower_loss(metrics, self.args.metric_for_best_model, self.state)
        better = super()._determine_best_metric(metrics, trial) or tie
        if better:
            self.state.best_global_step = self.state.global_step
            with explain_write_errors(self.folder.path), self.evaluated_weights():
                self.save_model(str(self.folder.best), _internal_call=True)
            wait_for_all()
        return better

    # --- evaluating ---

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Sets the model's weights to their running average inside the block; does nothing without an average."""
        return nullcontext() if self.average is None else self.average.applied_to(self.model)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        with self.evaluated_weights():
            return super().evaluate(*args, **kwargs)

    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        try:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        except RuntimeError as error:
            rows = len(inputs["labels"])
            if world_size() > 1 or rows == 1 or not is_out_of_memory(error):
                raise
        halves = [slice_batch(inputs, start, end) for start, end in ((0, rows // 2), (rows // 2, rows))]
        results = [self.prediction_step(model, half, prediction_loss_only, ignore_keys) for half in halves]
        losses, *others = zip(*results)
        loss = sum(loss * len(half["labels"]) for loss, half in zip(losses, halves)) / rows
        return loss, *(None if pair[0] is None else torch.cat(pair) for pair in others)

    # --- steps ---

    def training_step(self, model, inputs, *args, **kwargs) -> torch.Tensor:
        # Word dropout is applied here and not in the collator: the collator runs ahead of the step, so the state of the
        # random generator in a checkpoint would not be that of the step.
        self.step_batches.append(self.hide_words(inputs))
        batches = self.step_batches[-1:]
        while (losses := self._add_gradients(model, batches, *args, **kwargs)) is None:
            self.micro_batches.double(self.step_batches[-1], self.state.global_step + 1)
            # An interrupted backward pass leaves incomplete gradients, so the step starts again.
            model.zero_grad()
            batches = self.step_batches
        if self.accelerator.sync_gradients:
            self.step_batches = []
        return losses[-1]

    def _add_gradients(self, model, batches: Sequence[dict], *args, **kwargs) -> list[torch.Tensor] | None:
        """Adds the gradients of batches, and returns the losses; None if memory runs out.

        With several processes, torch's error is raised instead, because the other processes would not repeat the step.
        """
        losses = []
        try:
            for batch in batches:
                loss = torch.zeros((), device=self.args.device)
                for share, micro_batch in self.micro_batches.split(batch):
                    self.micro_batch_share = share
                    loss += super().training_step(model, micro_batch, *args, **kwargs)
                losses.append(loss)
        except RuntimeError as error:
            if world_size() > 1 or not is_out_of_memory(error):
                raise
            return None
        finally:
            self.micro_batch_share = 1.0
        return losses

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if self.offsets is not None and model.training:
            loss, output = self._adjusted_loss(model, inputs)
        else:
            loss, output = super().compute_loss(model, inputs, return_outputs=True, **kwargs)
        loss = loss if self.micro_batch_share == 1 else self.micro_batch_share * loss
        return (loss, output) if return_outputs else loss

    def _adjusted_loss(self, model, inputs) -> tuple[torch.Tensor, dict]:
        """Returns cross-entropy of logits + offsets (Menon et al., 2021, arXiv:2007.07314, eq. 10), and the output."""
        output = model(**{name: value for name, value in inputs.items() if name != "labels"})
        logits = output.logits.float()
        return torch.nn.functional.cross_entropy(logits + self.offsets.to(logits.device), inputs["labels"]), output

    def _get_train_sampler(self, train_dataset=None) -> EpochSampler:
        return self.sampler

    # --- optimizer ---

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        if self.options.protocol != "released":
            return super().create_optimizer(model)
        if self.optimizer is None:
            model = self.model if model is None else model
            decayed = self.get_decay_parameter_names(model)
            groups = [
                {
                    "params": [
                        value
                        for name, value in model.named_parameters()
                        if value.requires_grad and (name in decayed) is decays
                    ],
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
                lambda step: warmup_then_linear(step, num_training_steps, self.options.warmup),
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler


def label_offsets(labels: Sequence[int], classes: int, weight: float) -> torch.Tensor | None:
    """Returns `weight` times the log share of each label, with add-one smoothing.

    Args:
        labels: (N) class of each training row.
        classes: number of classes.
        weight: factor of the log shares; 0 gives no offsets.

    Returns:
        (classes) float32; None for a weight of 0.
    """
    if not weight:
        return None
    counts = torch.bincount(torch.as_tensor(labels).long(), minlength=classes).float() + 1
    return weight * (counts / counts.sum()).log()


class _SetEpoch(TrainerCallback):
    """Sets the epoch of the sampler; in a resumed epoch `state.epoch` is a fraction."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.epoch = int(state.epoch or 0)


class _KeepAverage(TrainerCallback):
    """Updates the running average of the weights after each step; a resumed run reads it from the checkpoint."""

    def __init__(self, trainer: AspectTrainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer.average = WeightAverage(self.trainer.model)
        if self.trainer.checkpoint is not None:
            self.trainer.average.load(self.trainer.checkpoint)

    def on_step_end(self, args, state, control, **kwargs):
        self.trainer.average.update(self.trainer.model, state.global_step)
