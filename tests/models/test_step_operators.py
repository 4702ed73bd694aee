"""Operators of training steps and predictions as on a GPU, whose host needs longer to launch them than to run them."""

from collections import Counter

import pytest
import torch
from qacg_models.layers import batch
from qacg_models.layers.embeddings import Dropout
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training import train
from qacg_models.sentiment.training.trainer import AspectTrainer, StepBar
from torch.utils._python_dispatch import TorchDispatchMode
from untrained import OWN, TEXTS, write_model

from qacg_kernels.utils import torch_internals

LAYERS = 6  # as MiniLM
READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::_unique2"}


class Operators(TorchDispatchMode):
    """Collects the names of all operators but views; an operator of the backend counts as one."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func._schema.name not in ("aten::detach", "aten::_unsafe_view"):
            self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch_internals, "has_values", lambda tensor: False)  # values are checked on a CPU only
    monkeypatch.setattr(batch, "rounding_pays", lambda device: False)
    monkeypatch.setattr(Dropout, "forward", lambda self, x: torch.native_dropout(x, self.p, self.training)[0])


@pytest.fixture
def steps(monkeypatch):
    """The operators of each training step, from the batch to the end of the step."""
    found, step, end = [], AspectTrainer.training_step, StepBar.on_step_end

    def begin(self, *args, **kwargs):
        found.append(Operators())
        found[-1].__enter__()
        return step(self, *args, **kwargs)

    def finish(self, *args, **kwargs):
        found[-1].__exit__(None, None, None)
        return end(self, *args, **kwargs)

    monkeypatch.setattr(AspectTrainer, "training_step", begin)
    monkeypatch.setattr(StepBar, "on_step_end", finish)
    return found


SHARED = {"context_standalone": True, "context_from_layer": LAYERS - 1}


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [
        ("qacg-bert", SHARED, 500),
        ("qacg-bert", {}, 700),  # every layer reads the aspect
        ("aspect-bert", {"logit_adjustment": 1.0}, 400),
        ("bert", {"protocol": "released"}, 400),
    ],
    ids=["shared", "qacg", "aspect", "released"],
)
def test_step_has_few_operators_and_reads_no_value(steps, dataset, tmp_path, kind, options, most):
    start = write_model(tmp_path / "start", OWN, kind="bert", layers=LAYERS)
    options = {"max_steps": 2, "batch_size": 16, "max_length": 48, "learning_rate": 1e-3, "bf16": True} | options
    train(dataset, tmp_path / "model", TrainingOptions(model=kind, from_checkpoint=str(start), **options))
    names = steps[-1].names
    assert len(names) <= most, Counter(names).most_common(20)
    assert not READS.intersection(names)


def test_prediction_copies_its_logits_once(tmp_path, monkeypatch):
    trained = load_trained(write_model(tmp_path / "model", OWN, **SHARED | {"context_from_layer": 1}))
    rows = [Example(str(i), TEXTS[i % 4], name, "", name, None, i) for i in range(8) for name in OWN.aspects]
    copies = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(tuple(self.shape)) or self)
    with Operators() as operators:
        trained.logits(rows, batch_size=5)
    assert copies == [(24, 3)]
    assert not READS.intersection(operators.names)
