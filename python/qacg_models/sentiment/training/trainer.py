"""The Trainer of a run: its optimizer, callbacks and checkpoints.

A checkpoint is written to the folder `.writing`, flushed to the disk, and renamed. So a checkpoint with its final name
is whole, and it contains all that a resumed run reads: the state of the Trainer, the seconds up to the checkpoint, the
best weights so far, and, with the schedule "steady", the average of the weights.
"""

from __future__ import annotations

import json
import math
import shutil
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations import TensorBoardCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from qacg_models.errors import InputError
from qacg_models.models.base import mean_cross_entropy
from qacg_models.sentiment.calibration import probabilities_of
from qacg_models.sentiment.encoding import batch_maker
from qacg_models.sentiment.example import Example, Task
from qacg_models.sentiment.metrics import judge
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.training.rows import EncodedSplits, EpochSampler, JoinedTexts, WordDropout
from qacg_models.utils.files import explain_write_errors, replace_folder
from qacg_models.utils.machine import is_main, run_on_main, wait_for_all, world_size
from qacg_models.utils.progress import pause_bars, progress_bar

if TYPE_CHECKING:
    from tqdm import tqdm
    from transformers import EvalPrediction

WEIGHT_DECAY = 0.01  # decoupled, on all parameters but biases and LayerNorm
# Maximum norm of all gradients together; with the protocol "released", of the gradient of each tensor.
MAX_GRAD_NORM = 1.0
EVALUATION_BATCH = 64
ENDLESS_EPOCHS = 100_000  # for the Trainer, if only patience or the time limit ends training
OPEN_STEPS = 1_000  # with the schedule "steady", the warm-up is the share `warmup` of this number of steps
STEPS_BETWEEN_CHECKS = 10  # steps between checks of the time limit with several processes, which have to agree
# The larger POWER, the more the average depends on the last steps: mainly on the last 1 / (POWER + 1) of all steps.
POWER = 8
KEPT = 2  # number of newest checkpoints that are kept
WRITING = ".writing"
SECONDS_NAME, BEST_NAME, AVERAGE_NAME = "run_state.json", "best.safetensors", "average.safetensors"


class AspectTrainer(Trainer):
    """Trains, writes checkpoints to the folder of the run, and keeps the weights of the best evaluation.

    The attribute `best` has these weights by name, in the memory of the CPU. It is empty before the first evaluation,
    and in all processes but the main process. With `checkpoint`, training resumes from it.
    """

    def __init__(
        self,
        options: TrainingOptions,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        splits: EncodedSplits,
        metrics: EvaluationMetrics,
        folder: Path,
        checkpoint: Path | None = None,
    ):
        self.options, self.folder, selection = options, folder, metrics.task.selection
        ends, special = (tokenizer.cls_token_id, tokenizer.sep_token_id), tokenizer.all_special_ids
        self.hide_words = WordDropout(options.word_dropout, tokenizer.unk_token_id, special, *ends)
        self.seconds_before, self.started = 0.0, time.perf_counter()
        self.best: dict[str, Tensor] = {}
        if checkpoint is not None:
            self.seconds_before = json.loads((checkpoint / SECONDS_NAME).read_text())["seconds"]
            if is_main() and (checkpoint / BEST_NAME).exists():
                self.best = load_file(checkpoint / BEST_NAME)
        train, rows = splits.train, len(splits.train)
        joined = JoinedTexts(train, options.join_texts, options.max_length, ends[1]) if options.join_texts else None
        texts = train.texts() if getattr(model.config, "shares_texts", False) else None
        self.sampler = EpochSampler(train.labels, options.balance, options.seed, joined, texts)
        self.graphs = GraphedSteps(model) if options.cuda_graphs else None
        self.ending = Ending(options.minutes, options.patience, self.seconds)
        self.average = WeightAverage(checkpoint) if options.schedule == "steady" else None
        self.bar = StepBar(options.step_limit(rows), selection, metrics.split)
        callbacks = [self.ending, _SetEpoch(self.sampler), self.average]
        if is_main():
            callbacks += [self.bar, options.tensorboard and tensorboard(options.tensorboard)]
        released = options.protocol == "released"
        super().__init__(
            model=model,
            args=training_arguments(folder, options, rows, selection),
            train_dataset=joined or train,
            eval_dataset=splits.evaluated,
            data_collator=batch_maker(model, tokenizer, options.max_length if options.cuda_graphs else None),
            compute_metrics=metrics,
            callbacks=list(filter(None, callbacks)),
            optimizer_cls_and_kwargs=(BertAdam, {"lr": options.learning_rate}) if released else None,
        )
        # On a CPU, where operators cost little, one large copy takes longer than the casts of autocast.
        casts = self.args.bf16 and self.args.device.type != "cpu" and not options.cuda_graphs
        self.cast = CastWeights(model) if casts else None
        offsets = label_offsets(train.labels, model.config.num_labels, options.logit_adjustment or 0.0)
        self.offsets = None if offsets is None else offsets.to(self.args.device)
        for default in (ProgressCallback, PrinterCallback):
            self.remove_callback(default)

    def seconds(self) -> float:
        """Returns the duration of training in seconds, including the time before the checkpoint of a resumed run."""
        return self.seconds_before + time.perf_counter() - self.started

    # --- saving ---

    def _save_checkpoint(self, model, trial) -> None:
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        written = self.folder / WRITING / name
        try:
            with explain_write_errors(self.folder):
                super()._save_checkpoint(model, trial)
                if is_main():
                    self._add_to_checkpoint(written)
                wait_for_all()
                if is_main():
                    replace_folder(written, self.folder / name)
        except InputError:
            shutil.rmtree(written.parent, ignore_errors=True)  # frees space on a full disk
            raise
        if is_main():
            for old in checkpoints(self.folder)[:-KEPT]:
                shutil.rmtree(old)
        wait_for_all()

    def _add_to_checkpoint(self, folder: Path) -> None:
        """Adds what the Trainer does not write to the folder of a checkpoint."""
        # The Trainer stores a path in the temporary folder, and warns in a resumed run that it does not exist.
        self.state.best_model_checkpoint = None
        self.state.save_to_json(folder / TRAINER_STATE_NAME)
        (folder / SECONDS_NAME).write_text(json.dumps({"seconds": self.seconds()}) + "\n", encoding="utf-8")
        for name, weights in ((BEST_NAME, self.best), (AVERAGE_NAME, self.average and self.average.weights)):
            if weights:
                save_file(weights, folder / name)

    def _get_output_dir(self, trial) -> str:
        return str(self.folder / WRITING)  # the Trainer adds the name of the checkpoint

    def _determine_best_metric(self, metrics: dict[str, float], trial) -> bool:
        state, value = self.state, metrics[f"eval_{self.args.metric_for_best_model}"]
        # Small dev sets often reach a metric of 100 %, so the lower loss decides between equal evaluations.
        before = [entry["eval_loss"] for entry in evaluations(state) if entry["step"] == state.best_global_step]
        tie = bool(before) and value == state.best_metric and metrics["eval_loss"] < before[0]
        better = super()._determine_best_metric(metrics, trial) or tie
        if better:
            self.state.best_global_step = self.state.global_step
            if is_main():
                with self.evaluated_weights():
                    weights = self.model.state_dict()
                    self.best = {name: value.to("cpu", copy=True) for name, value in weights.items()}
        return better

    # --- evaluating ---

    def evaluated_weights(self) -> AbstractContextManager[None]:
        """Sets the model's weights to their running average inside the block; does nothing without an average."""
        return nullcontext() if self.average is None else self.average.applied_to(self.model)

    def evaluate(self, *args, **kwargs) -> dict[str, float]:
        with self.evaluated_weights():
            return super().evaluate(*args, **kwargs)

    # --- steps ---

    def training_step(self, model, inputs, *args, **kwargs) -> torch.Tensor:
        # Word dropout is applied here and not in the collator: the collator runs ahead of the step, so the state of the
        # random generator in a checkpoint would not be that of the step.
        return super().training_step(model, self.hide_words(inputs), *args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        if self.graphs is not None and model.training:
            model = self.graphs.runner(inputs)
        with self.cast if self.cast is not None and self.model.training else nullcontext():
            if self.offsets is None or not self.model.training:
                return super().compute_loss(model, inputs, return_outputs, **kwargs)
            output = model(**{name: value for name, value in inputs.items() if name != "labels"})
        # Cross-entropy of logits + offsets (Menon et al., 2021, arXiv:2007.07314, eq. 10).
        loss = mean_cross_entropy(output.logits.float() + self.offsets, inputs["labels"])
        return (loss, output) if return_outputs else loss

    def _get_train_sampler(self, train_dataset=None) -> EpochSampler:
        return self.sampler

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


GRAPHS = "cudagraphs"  # the backend of torch.compile that runs forward and backward of a shape as CUDA graphs


class GraphedSteps:
    """Runs the forwards and backwards of a model's frequent batch shapes as CUDA graphs.

    Capturing a graph takes seconds. So a shape has a graph after EAGER steps, if fewer than MOST shapes have one. MOST
    is torch's limit of graphs per function.
    """

    EAGER, MOST = 3, 8

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.graphed = torch.compile(model, backend=GRAPHS, dynamic=False, fullgraph=True)
        self.steps: Counter[tuple[int, ...]] = Counter()
        self.shapes: set[tuple[int, ...]] = set()

    def runner(self, inputs: dict) -> nn.Module:
        """Returns the model, or its graphs, for a batch of `PaddingCollator`."""
        shape = *inputs["input_ids"].shape, *inputs["labels"].shape
        self.steps[shape] += 1
        if self.steps[shape] > self.EAGER and len(self.shapes) < self.MOST:
            self.shapes.add(shape)
        return self.graphed if shape in self.shapes else self.model


class CastWeights:
    """A context in which the linear layers of a model have bfloat16 weights, which one operator casts together.

    Autocast would cast each weight, and each gradient, by an operator of its own: half of the operators of a step.
    Gradients reach the float32 weights.
    """

    def __init__(self, model: nn.Module):
        layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
        weights = [(layer, name, weight) for layer in layers for name, weight in layer.named_parameters(recurse=False)]
        # Single numbers are last, so that the other weights start at multiples of 128 bytes in memory.
        self.weights = sorted(weights, key=lambda one: one[2].numel() % 64 != 0)

    def __enter__(self) -> None:
        # Frozen weights apart, so that no gradients are computed for them.
        for trained in (True, False):
            chosen = [one for one in self.weights if one[2].requires_grad is trained]
            for (layer, name, _), cast in zip(chosen, _Cast.apply(*(weight for _, _, weight in chosen))):
                layer._parameters[name] = cast

    def __exit__(self, *_) -> None:
        for layer, name, weight in self.weights:
            layer._parameters[name] = weight


class _Cast(torch.autograd.Function):
    """Casts float32 tensors to bfloat16, and their gradients back."""

    @staticmethod
    def forward(ctx, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a weight that the step does not use has no gradient
        return _copies(tensors, torch.bfloat16)

    @staticmethod
    def backward(ctx, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        copies = iter(_copies([one for one in gradients if one is not None], torch.float32))
        return tuple(None if one is None else next(copies) for one in gradients)


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Returns copies in another dtype, which share one memory."""
    if not tensors:
        return ()
    sizes = [t.numel() for t in tensors]
    parts = tensors[0].new_empty(sum(sizes), dtype=dtype).split(sizes)
    copies = tuple(part.view_as(t) for part, t in zip(parts, tensors))
    torch._foreach_copy_(copies, tensors)
    return copies


class BertAdam(Optimizer):
    """Adam of the released code: no bias correction, decoupled weight decay, and clipping per tensor.

    m = b1 m + (1 - b1) g,  v = b2 v + (1 - b2) g^2,  w = w - lr (m / (sqrt(v) + eps) + decay w), where g is the
    gradient of one tensor, scaled down to the norm `max_grad_norm` if its norm is larger.
    """

    BETAS, EPS = (0.9, 0.999), 1e-6

    def __init__(self, params: Iterable, lr: float, weight_decay: float = 0.0, max_grad_norm: float = MAX_GRAD_NORM):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "max_grad_norm": max_grad_norm})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Performs one update."""
        first, second = self.BETAS
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight] = {name: torch.zeros_like(weight) for name in ("mean", "square")}
            means, squares = ([self.state[weight][name] for weight in weights] for name in ("mean", "square"))
            # Operators on lists have less launch overhead than one per weight.
            gradients = [weight.grad for weight in weights]
            norms = torch.stack(torch._foreach_norm(gradients))
            scales = (group["max_grad_norm"] / (norms + 1e-6)).clamp(max=1.0)
            gradients = torch._foreach_mul(gradients, scales.unbind())
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)
            updates = torch._foreach_sqrt(squares)
            torch._foreach_add_(updates, self.EPS)
            updates = torch._foreach_div(means, updates)
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
            torch._foreach_add_(weights, updates, alpha=-group["lr"])


def warmup_then_linear(step: int, steps: int, warmup: float) -> float:
    """Returns the factor of the learning rate at a step, from 0, of `steps`; `warmup` is a share of the steps.

    With x = step / steps, the factor is x / warmup while x is below `warmup`, then 1 - x, and 0 after the last step.
    The released code has the same jump at x = warmup. Unlike this function, it underestimates the total number of
    steps, and its rates are negative after that number.
    """
    share = step / steps
    return share / warmup if share < warmup else max(0.0, 1.0 - share)


def checkpoints(folder: Path) -> list[Path]:
    """Returns the checkpoints in the folder of a run, oldest first."""
    found = [path for path in folder.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


def damage_of(checkpoint: Path) -> str | None:
    """Returns which file of a checkpoint is incomplete: JSON, safetensors or torch's archive; None if all are whole.

    A checkpoint is whole when it gets its name, so such damage came later. Values are not checked.
    """
    for path in sorted(checkpoint.iterdir()):
        try:
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))
            elif path.suffix == ".safetensors":
                safe_open(path, "pt")
            elif path.suffix in (".pt", ".pth"):
                zipfile.ZipFile(path).close()
        except (OSError, ValueError, SafetensorError, zipfile.BadZipFile) as error:
            return f"{path.name} is damaged ({error})"
    return None


def training_arguments(folder: Path, options: TrainingOptions, rows: int, selection: str) -> TrainingArguments:
    """Returns the arguments of the Trainer, for `rows` training rows and the metric `selection`."""
    if world_size() == 1 and torch.cuda.device_count() > 1:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES: expected one GPU per process, got {torch.cuda.device_count()}. Start one process"
            " for each GPU with torchrun --nproc-per-node N, or select one GPU with this environment variable."
        )
    constant, limit, per_epoch = options.schedule == "steady", options.step_limit(rows), options.steps_per_epoch(rows)
    # The warm-up to a constant rate does not depend on the last step, so runs of different lengths start identically.
    steps = OPEN_STEPS if constant else limit
    eval_every = min(options.eval_every or per_epoch, limit or ENDLESS_EPOCHS * per_epoch)
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=options.epochs or ENDLESS_EPOCHS,
        max_steps=options.max_steps or -1,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=EVALUATION_BATCH,
        gradient_accumulation_steps=options.gradient_accumulation,
        learning_rate=options.learning_rate,
        weight_decay=WEIGHT_DECAY,
        # BertAdam, the optimizer of the released protocol, clips the gradient of each tensor itself.
        max_grad_norm=0.0 if options.protocol == "released" else MAX_GRAD_NORM,
        lr_scheduler_type="constant_with_warmup" if constant else "linear",
        warmup_steps=math.ceil(options.warmup * steps),
        bf16=options.precision == "bfloat16",
        use_cpu=not torch.accelerator.is_available(),  # otherwise transformers raises an error for bf16 without a GPU
        eval_strategy="steps",
        eval_steps=eval_every,
        save_steps=options.checkpoint_every,
        metric_for_best_model=selection,
        greater_is_better=True,
        logging_nan_inf_filter=False,  # the filter reads the loss of every step, which waits for a GPU
        logging_steps=max(1, limit // 50 if limit else eval_every // 5),
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False if world_size() > 1 else None,
        report_to="none",
        seed=options.seed,
    )


def label_offsets(labels: Sequence[int], classes: int, weight: float) -> torch.Tensor | None:
    """Returns (classes) `weight` times the log share of each label, with add-one smoothing; None for a weight of 0."""
    if not weight:
        return None
    counts = torch.bincount(torch.as_tensor(labels).long(), minlength=classes).float() + 1
    return weight * (counts / counts.sum()).log()


class EvaluationMetrics:
    """Computes the metrics of the task, and warns when the model predicts one label for every row.

    Consecutive evaluations with one label give one warning. `rows` are in the order of the evaluation.
    """

    def __init__(self, task: Task, rows: Sequence[Example], split: str, say: Callable[[str], None]):
        self.task, self.rows, self.split, self.say = task, rows, split, say
        self.collapsed = False

    def __call__(self, prediction: EvalPrediction) -> dict[str, float]:
        """Returns the metrics by name."""
        probabilities = probabilities_of(prediction.predictions)
        labels, before = set(probabilities.argmax(axis=1).tolist()), self.collapsed
        self.collapsed = len(labels) == 1
        if self.collapsed and not before:
            with pause_bars():
                self.say(
                    f"collapse: {self.task.labels[labels.pop()]!r} is predicted for every row of {self.split}. This can"
                    " be temporary; if it lasts, lower learning_rate or increase balance"
                )
        metrics = judge(self.task, self.rows, probabilities)
        return {name: getattr(metrics, name) for name in metrics.TITLES}


def evaluations(state: TrainerState) -> list[dict]:
    """Returns the evaluations in the Trainer's log, which checkpoints store."""
    return [entry for entry in state.log_history if "eval_loss" in entry]


class Ending(TrainerCallback):
    """Ends training at the time limit, or when evaluations stop improving, and evaluates after the last step.

    A tie with a lower loss is not an improvement, because the loss can decrease for hours after the metric on dev has
    reached 100 %. The evaluations are counted in the Trainer's log, which a resumed run continues, as `seconds` does. A
    limit or patience of 0 is none.
    """

    def __init__(self, minutes: float, patience: int, seconds: Callable[[], float]):
        self.minutes, self.patience, self.seconds = minutes, patience, seconds
        self.timed_out = False

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= state.max_steps:
            control.should_evaluate = True
        if not self.minutes or (world_size() > 1 and state.global_step % STEPS_BETWEEN_CHECKS):
            return
        if run_on_main(lambda: self.seconds() >= 60 * self.minutes):
            self.timed_out = control.should_evaluate = control.should_training_stop = True

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        name = f"eval_{args.metric_for_best_model}"
        # best_metric is updated after this call: here a new best value is still above it.
        if not self.patience or state.best_metric is None or metrics[name] > state.best_metric:
            return
        found = {entry["step"]: entry[name] for entry in evaluations(state)}
        first = min(step for step, value in found.items() if value == state.best_metric)
        if sum(step > first for step in found) >= self.patience:
            control.should_training_stop = True

    def reason(self, state: TrainerState) -> str:
        """Returns the reason why training ended, for `TrainingRecord.ended`."""
        if state.global_step >= state.max_steps:
            return "steps"
        return "minutes" if self.timed_out else "patience"


class WeightAverage(TrainerCallback):
    """Polynomial-decay average of the weights (Shamir and Zhang, 2013), for trainings of unknown length.

    With a constant learning rate the weights vary from step to step. Their average is about as accurate as weights
    after a decayed learning rate, and is available after every step. After step t the average moves towards the model's
    weights by the share (POWER + 1) / (t + POWER) of the difference. A resumed run reads it from its checkpoint.
    """

    def __init__(self, checkpoint: Path | None = None):
        self.checkpoint = checkpoint
        self.weights: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        if self.checkpoint is not None:
            self.weights |= load_file(self.checkpoint / AVERAGE_NAME, device=str(model.device))

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        share = (POWER + 1) / (state.global_step + POWER)
        names, values = zip(*model.named_parameters())
        torch._foreach_lerp_([self.weights[name] for name in names], values, share)

    @contextmanager
    def applied_to(self, model: torch.nn.Module) -> Iterator[None]:
        """Sets the model's weights to the average inside the block, and restores the weights bit for bit at its end."""
        own = {name: value.detach().clone() for name, value in model.named_parameters()}
        model.load_state_dict(self.weights, strict=False)  # without the buffers
        try:
            yield
        finally:
            model.load_state_dict(own, strict=False)


class _SetEpoch(TrainerCallback):
    """Sets the epoch of the sampler; in a resumed epoch `state.epoch` is a fraction."""

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.sampler.epoch = int(state.epoch or 0)


class StepBar(TrainerCallback):
    """Shows the progress of training on stderr: the steps of `limit`, the loss, and a metric on a split."""

    def __init__(self, limit: int | None, metric: str, split: str):
        self.limit, self.metric, self.split = limit, metric, split
        self.bar: tqdm | None = None
        self.values: dict[str, str] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.bar = progress_bar(self.limit, "training", "step", done=state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            self.values["loss"] = f"{logs['loss']:.3f}"
        if (name := f"eval_{self.metric}") in logs:
            self.values[f"{self.split} {self.metric.replace('_', ' ')}"] = f"{logs[name]:.1%}"
        self.bar.set_postfix(self.values, refresh=False)

    def close(self) -> None:
        """Closes the bar, so that the next line begins on a new line; can be called repeatedly."""
        if self.bar is not None:
            self.bar.close()


def tensorboard(folder: str) -> TrainerCallback:
    """Returns a callback that writes the log for TensorBoard, which must be installed, to `folder`."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            f"tensorboard: cannot be used ({error}). Install the extra `tensorboard` (pip install tensorboard), or"
            " omit the option."
        ) from None
    return TensorBoardCallback(SummaryWriter(folder))
