"""One training run of the study, from the published files to the stored result. An interrupted run resumes."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from qacg_models.data import Dataset, Example, load_data
from qacg_models.inference.trained_model import TrainedModel, load_trained
from qacg_models.models.qacg_bert import QACGBertForSequenceClassification
from qacg_models.reporting.attention_maps import padded_inputs
from qacg_models.reporting.run_records import row_of
from qacg_models.training import train_seeds
from qacg_models.training.run_folder import unfinished_path

from benchmarks.evidence.results import Result, as_scores, store
from benchmarks.evidence.study import DATA, Trial


def dataset_of(trial: Trial, data: Path) -> Dataset:
    """Loads the splits of a training run; a search has no test split."""
    chosen = DATA[trial.data]
    splits = ("train", "dev") if trial.is_search else ("train", "dev", "test")
    return load_data(data / chosen.name, splits, chosen.options)


def train(trial: Trial, data: Path, work: Path, out: Path) -> None:
    """Trains a model, stores the result, and removes the model.

    Args:
        trial: the training run.
        data: folder of the published data sets, each in a folder of its name.
        work: folder of unfinished runs; a run that was interrupted resumes from there.
        out: folder of results.

    Raises:
        DataError: the data set does not exist.
        InputError: the pretrained weights do not exist.
    """
    dataset = dataset_of(trial, data)
    folder = work / trial.name
    resumed = folder.exists() or unfinished_path(folder).exists()
    before = time.process_time()
    train_seeds(dataset, folder, trial.options, [trial.seed], resume=True)
    trained = load_trained(folder)
    seconds = None if resumed else time.process_time() - before
    scores = gates = None
    if not trial.is_search:
        scores = as_scores(trained.probabilities(dataset.splits["test"]))
        gates = gate_statistics(trained, dataset.splits["dev"])
    store(out, Result(trial, row_of(trained.record), scores, seconds, gates))
    shutil.rmtree(folder)


EXAMPLES, BATCH = 256, 32
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def gate_statistics(trained: TrainedModel, examples: Sequence[Example]) -> list[dict[str, float | list[float]]] | None:
    """Statistics of the quasi-attention map of each layer, over the tokens of the first EXAMPLES examples.

    The statistics of lambda are the mean, the standard deviation, quantiles at QUANTILES and the share below 0. The
    statistics of lambda G are two numbers for each query row, averaged over the rows. The first is the sum of the row's
    absolute values; it would be 1 for the softmax map. The second is the standard deviation of these absolute values,
    divided by their mean; it is 0 for a uniform map. Returns None for a model without the map.
    """
    model = trained.model
    if not isinstance(model, QACGBertForSequenceClassification) or model.config.quasi_scale == 0:
        return None
    lambdas, weights, deviations = ([[] for _ in range(model.config.num_hidden_layers)] for _ in range(3))
    for start in range(0, min(EXAMPLES, len(examples)), BATCH):
        batch, features = padded_inputs(trained, examples[start : min(start + BATCH, EXAMPLES)])
        with torch.inference_mode():
            output = model(**batch, output_attentions=True, output_lambda=True)
        for n, feature in enumerate(features):
            length = len(feature["input_ids"])
            for layer, (lam, quasi) in enumerate(zip(output.lambdas, output.quasi_maps)):
                entries = quasi[n, :, :length, :length].double().abs()
                lambdas[layer].append(lam[n, :, :length].double().flatten())
                weights[layer].append(entries.sum(-1).flatten())
                deviations[layer].append((entries.std(-1, correction=0) / entries.mean(-1).clamp(min=1e-30)).flatten())
    found = []
    for lam, weight, deviation in (
        (torch.cat(values) for values in layer) for layer in zip(lambdas, weights, deviations)
    ):
        found.append(
            {
                "lambda_mean": float(lam.mean()),
                "lambda_deviation": float(lam.std(correction=0)),
                "lambda_quantiles": torch.quantile(lam, torch.tensor(QUANTILES, dtype=lam.dtype)).tolist(),
                "lambda_below_0": float((lam < 0).double().mean()),
                "weight": float(weight.mean()),
                "deviation_over_keys": float(deviation.mean()),
            }
        )
    return found
