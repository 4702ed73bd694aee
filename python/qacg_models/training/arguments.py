"""Converts the training options of this package to the arguments of the transformers Trainer."""

import math
from pathlib import Path

import torch
from transformers import PreTrainedModel, TrainingArguments

from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.utils.distributed import world_size

EVALUATION_BATCH = 64
# The number of epochs for the Trainer if only patience or the time limit ends training.
ENDLESS_EPOCHS = 100_000
# With the schedule "steady", the warm-up is the share `warmup` of this number of steps.
OPEN_STEPS = 1_000


def steps_per_epoch(rows: int, options: TrainingOptions) -> int:
    """Returns the number of optimizer steps in which all processes together read `rows` rows once."""
    batches = math.ceil(rows / (options.batch_size * world_size()))
    return math.ceil(batches / options.gradient_accumulation)


def step_limit(rows: int, options: TrainingOptions) -> int | None:
    """Returns the maximum number of optimizer steps: `max_steps`, otherwise the steps of `epochs`.

    If both are None, the number of steps has no limit, and None is returned.

    Args:
        rows: number of rows of the training split.
        options: options whose `batch_size` is not None.
    """
    if options.max_steps is None and options.epochs is None:
        return None
    return options.max_steps or steps_per_epoch(rows, options) * options.epochs


def training_arguments(
    work: Path, options: TrainingOptions, rows: int, model: PreTrainedModel, selection: str
) -> TrainingArguments:
    """Returns the arguments of the Trainer.

    Args:
        work: folder of the run.
        options: options of training, from `resolve_options`.
        rows: number of rows of the training split.
        model: the model to train.
        selection: name of the metric by which evaluations are compared.

    Raises:
        InputError: there is a single process, although sharding is requested or several GPUs are visible.
    """
    if options.fsdp and world_size() == 1:
        raise InputError("fsdp: expected several processes, got 1. Start them with torchrun --nproc-per-node N.")
    if world_size() == 1 and torch.cuda.device_count() > 1:
        raise InputError(
            f"CUDA_VISIBLE_DEVICES: expected one GPU per process, got {torch.cuda.device_count()}. Start one process"
            " for each GPU with torchrun --nproc-per-node N, or select one GPU with this environment variable."
        )
    constant, limit, per_epoch = options.schedule == "steady", step_limit(rows, options), steps_per_epoch(rows, options)
    # The warm-up to a constant rate does not depend on the last step, so runs of different lengths start identically.
    steps = OPEN_STEPS if constant else limit
    eval_every = min(options.eval_every or per_epoch, limit or ENDLESS_EPOCHS * per_epoch)
    sharding = {}
    if options.fsdp:
        sharding = {
            "fsdp": True,
            "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": sorted(model._no_split_modules)},
        }
    return TrainingArguments(
        output_dir=str(work),
        num_train_epochs=options.epochs or ENDLESS_EPOCHS,
        max_steps=options.max_steps or -1,
        per_device_train_batch_size=options.batch_size,
        per_device_eval_batch_size=EVALUATION_BATCH,
        gradient_accumulation_steps=options.gradient_accumulation,
        learning_rate=options.learning_rate,
        weight_decay=options.weight_decay,
        # BertAdam, the optimizer of the released protocol, clips the gradient of each tensor itself.
        max_grad_norm=0.0 if options.protocol == "released" else options.max_grad_norm,
        lr_scheduler_type="constant_with_warmup" if constant else "linear",
        warmup_steps=math.ceil(options.warmup * steps),
        bf16=bool(options.bf16),
        use_cpu=not torch.accelerator.is_available(),  # otherwise transformers raises an error for bf16 without a GPU
        eval_strategy="steps",
        eval_steps=eval_every,
        save_strategy="steps",
        save_steps=options.checkpoint_every,
        metric_for_best_model=selection,
        greater_is_better=True,
        logging_strategy="steps",
        logging_steps=max(1, limit // 50 if limit else eval_every // 5),
        remove_unused_columns=False,
        label_names=["labels"],
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False if world_size() > 1 else None,
        report_to="none",
        seed=options.seed,
        **sharding,
    )
