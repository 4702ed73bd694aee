"""One training run of the study, from the published files to the stored result; the caller sets one thread."""

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from qacg_models.checkpoints.packaged import located
from qacg_models.data import Dataset, load_data
from qacg_models.data.tokenization import load_tokenizer
from qacg_models.inference.trained_model import probabilities_of
from qacg_models.metrics import judge
from qacg_models.utils.provenance import origin
from torch.nn import functional as F

from benchmarks.evidence.results import as_scores
from benchmarks.many_aspects.arms import ARMS, DATA, EPOCHS, OTHER_SETTINGS, PAIRS, ROWS, SETTINGS, Trial
from benchmarks.many_aspects.batches import Batch, Questions
from benchmarks.many_aspects.models import AspectModel
from benchmarks.many_aspects.results import Result, store

WARMUP, WEIGHT_DECAY, MAX_NORM = 0.1, 0.01, 1.0
EVALUATED_ROWS = 64


def train(trial: Trial, data: Path, out: Path) -> Result:
    """Trains a model, evaluates it and stores the result. A run takes minutes; if interrupted, it starts again.

    Args:
        trial: the training run.
        data: folder of the published data sets, each in a folder of its name.
        out: folder of results.

    Raises:
        DataError: the data set does not exist.
        InputError: MiniLM's package is not installed.
    """
    splits = ("train", "dev") if trial.is_search else ("train", "dev", "test")
    dataset = load_data(data / trial.data, splits, DATA[trial.data])
    before = time.process_time()
    model, questions = prepared(trial.arm, dataset, trial.seed)
    fit(model, questions["train"], trial)
    seconds = time.process_time() - before
    scores = {split: probabilities(model, questions[split]) for split in splits[1:]}
    dev = judge(dataset.task, dataset.splits["dev"], scores["dev"])
    result = Result(
        trial,
        dev=getattr(dev, dataset.task.selection),
        seconds=seconds,
        machine=origin(),
        scores=None if trial.is_search else as_scores(scores["test"]),
    )
    store(out, result)
    return result


def prepared(name: str, dataset: Dataset, seed: int) -> tuple[AspectModel, dict[str, Questions]]:
    """Makes the model of an arm before training, and encodes the splits of a data set."""
    torch.manual_seed(seed)
    arm, tokenizer = ARMS[name], load_tokenizer(located("minilm"))
    joined = arm.kind == PAIRS and arm.from_layer == 0
    questions = {split: Questions(rows, tokenizer, dataset.contexts, joined) for split, rows in dataset.splits.items()}
    return AspectModel(arm, len(dataset.task.labels), dataset.contexts, tokenizer), questions


def fit(model: AspectModel, questions: Questions, trial: Trial) -> None:
    """Trains for EPOCHS with AdamW, a linear warm-up and decay, in bfloat16 autocast."""
    setting, new = {**SETTINGS, **OTHER_SETTINGS}[trial.setting], model.new_parameters()
    old = [parameter for parameter in model.parameters() if parameter not in new]
    optimizer = torch.optim.AdamW(
        [
            {"params": list(_with_decay(group, decays)), "lr": rate, "weight_decay": WEIGHT_DECAY * decays}
            for group, rate in ((old, setting.rate), (list(new), setting.rate * setting.factor))
            for decays in (True, False)
        ],
        fused=True,
    )
    generator = np.random.default_rng(trial.seed)
    batches = [batch for _ in range(EPOCHS) for batch in questions.shuffled(ROWS, generator)]
    warm, total = WARMUP * len(batches), len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm, (total - step) / (total - warm))
    )
    model.train()
    started = time.monotonic()
    for step, batch in enumerate(batches, 1):
        loss = F.cross_entropy(_logits(model, batch), batch.labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"  step {step} of {total}, loss {loss.item():.3f}, {time.monotonic() - started:.0f} s", flush=True)


def _with_decay(parameters: Iterable[torch.nn.Parameter], decays: bool) -> Iterable[torch.nn.Parameter]:
    """The parameters with weight decay (matrices) if `decays`, else the others (biases and those of LayerNorm)."""
    return (parameter for parameter in parameters if (parameter.dim() > 1) == decays)


def _logits(model: AspectModel, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return model(batch).float()


@torch.inference_mode()
def probabilities(model: AspectModel, questions: Questions) -> np.ndarray:
    """Computes the probabilities of all questions, float64 (N, classes), in the order of the split."""
    model.eval()
    batches = list(questions.by_length(EVALUATED_ROWS))
    logits = np.concatenate([_logits(model, batch).double().numpy() for batch in batches])
    order = np.concatenate([batch.rows for batch in batches])
    found = np.empty_like(logits)
    found[order] = logits
    return probabilities_of(found)
