"""Operators of training steps and predictions as on a GPU, whose host needs longer to launch them than to run them."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from errors import raises
from qacg_models.layers import batch
from qacg_models.layers.embeddings import Dropout
from qacg_models.sentiment.encoding import PackingCollator, PaddingCollator
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training import start, train, trainer
from qacg_models.sentiment.training.trainer import AspectTrainer, CastWeights, GraphedSteps, StepBar
from torch._dynamo.testing import CompileCounterWithBackend
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from untrained import OWN, TEXTS, write_model

from qacg_kernels.utils import torch_internals

LAYERS = 6  # as MiniLM
NO_LAUNCH = {"aten::detach", "aten::_unsafe_view", "aten::empty", "aten::new_empty"}
READS = {"aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero", "aten::_unique2"}


class Operators(TorchDispatchMode):
    """Collects devices of results, and names of all operators but views and allocations."""

    def __init__(self):
        super().__init__()
        self.names: list[str] = []
        self.devices: set[str] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not func.is_view and func._schema.name not in NO_LAUNCH:
            self.names.append(func._schema.name)
        results = func(*args, **(kwargs or {}))
        self.devices |= {t.device.type for t in tree_leaves(results) if isinstance(t, torch.Tensor)}
        return results


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
        self.cast = CastWeights(self.model)  # not used on a CPU
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
    checkpoint = write_model(tmp_path / "start", OWN, kind="bert", layers=LAYERS)
    options = {
        "max_steps": 2,
        "batch_size": 16,
        "max_length": 48,
        "learning_rate": 1e-3,
        "precision": "bfloat16",
    } | options
    train(dataset, tmp_path / "model", TrainingOptions(model=kind, from_checkpoint=str(checkpoint), **options))
    # The backend may call its kernels directly: a forward and a backward per layer.
    names = [name for name in steps[-1].names if not name.startswith("qacg::")] + 2 * LAYERS * ["qacg::attention"]
    assert len(names) <= most, Counter(names).most_common(20)
    assert not READS.intersection(names)


KINDS = ["qacg-bert", "cg-bert", "aspect-bert", "bert"]


def model_and_rows(folder, kind):
    """A model whose last layer reads the aspect, and features of rows of different lengths."""
    fields = {} if kind == "bert" else {"context_from_layer": 1, "context_standalone": True}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    trained = load_trained(write_model(folder, OWN, kind, fields=fields | dropout))
    return trained.model, trained.features(rows_of(16))


def rows_of(texts):
    return [
        Example(str(i), " ".join([TEXTS[i % 4]] * (1 + i // 12)), name, "", name, i % 3, i)
        for i in range(texts)
        for name in OWN.aspects
    ]


def batch_of(model, rows, *, is_packed):
    shares = getattr(model.config, "shares_texts", False)
    return (PackingCollator(shares) if is_packed else PaddingCollator(0, shares, max_length=48))(rows)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_stay_on_their_device(tmp_path, kind, is_packed):
    model, rows = model_and_rows(tmp_path, kind)
    model = model.train().to("meta")  # where a read of a value, and a copy to the CPU, raise an error
    inputs = batch_of(model, rows, is_packed=is_packed)
    with Operators() as operators:
        inputs = {name: x.to("meta") if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        model(**inputs).loss.backward()
    assert operators.devices == {"meta"}


@pytest.mark.parametrize("kind", KINDS)
def test_padded_shapes_have_the_loss_of_packed_texts(tmp_path, kind):
    model, rows = model_and_rows(tmp_path, kind)
    model, shapes = model.double(), set()
    for chosen in (rows[:9], rows[9:24], rows[24:]):
        found = []
        for is_packed in (True, False):
            inputs = batch_of(model, chosen, is_packed=is_packed)
            loss = model(**inputs).loss
            loss.backward()
            found.append([loss.detach(), *(weight.grad for weight in model.parameters())])
            model.zero_grad()
        shapes.add(tuple(inputs["input_ids"].shape))
        for one, other in zip(*found):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
    assert {length for _, length in shapes} == {32, 48}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("qacg-bert", SHARED | {"context_from_layer": 1, "precision": "bfloat16"}),
        pytest.param("qacg-bert", {}, marks=pytest.mark.full),
        pytest.param("aspect-bert", {"protocol": "released"}, marks=pytest.mark.full),
        pytest.param("bert", {"logit_adjustment": 1.0}, marks=pytest.mark.full),
    ],
)
def test_graphed_steps_have_the_losses_of_eager_ones(dataset, tmp_path, monkeypatch, kind, options):
    checkpoint = write_model(tmp_path / "start", OWN, kind="bert", layers=2)
    graphs = CompileCounterWithBackend("aot_eager")  # traces forward and backward whole, and captures nothing
    monkeypatch.setattr(trainer, "GRAPHS", graphs)
    monkeypatch.setattr(GraphedSteps, "EAGER", 1)
    monkeypatch.setattr(start, "_check_cuda_graphs", lambda options: None)
    plain = {
        "max_steps": 10,
        "batch_size": 16,
        "max_length": 40,
        "learning_rate": 1e-3,
        "dropout": 0.0,
        "precision": "float32",
    }
    options = TrainingOptions(model=kind, from_checkpoint=str(checkpoint), **plain | options)
    curves = [
        [loss for _, loss in train(dataset, tmp_path / str(has), replace(options, cuda_graphs=has)).record.loss]
        for has in (False, True)
    ]
    assert 1 <= graphs.frame_count <= 3, "a graph per shape that occurs more than once"
    assert curves[1] == pytest.approx(curves[0], rel=0.02 if options.precision == "bfloat16" else 1e-4)


def test_frequent_shapes_have_graphs_up_to_a_limit():
    model = torch.nn.Linear(1, 1)
    graphs = GraphedSteps(model)
    inputs = [{"input_ids": torch.zeros(8, 16 * i), "labels": torch.zeros(32)} for i in range(1, 11)]
    assert [graphs.runner(inputs[0]) is model for _ in range(5)] == [True, True, True, False, False]
    for one in inputs * 4:
        graphs.runner(one)
    assert [graphs.runner(one) is model for one in inputs] == [False] * 8 + [True] * 2


@pytest.mark.parametrize(
    ("options", "has_gpu", "message"),
    [
        ({}, False, "expected a machine with a CUDA GPU, got none. Omit cuda_graphs."),
        (
            {"gradient_accumulation": 2},
            True,
            "expected one process and gradient_accumulation=1, got 2 batches in a step",
        ),
    ],
)
def test_graphs_that_cannot_be_captured_raise(dataset, monkeypatch, options, has_gpu, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    with raises(f"InputError: cuda_graphs: {message}"):
        start.resolve_options(TrainingOptions(cuda_graphs=True, from_checkpoint="scratch", **options), dataset)


def test_prediction_copies_its_logits_once(tmp_path, monkeypatch):
    trained = load_trained(write_model(tmp_path / "model", OWN, **SHARED | {"context_from_layer": 1}))
    copies = []
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(tuple(self.shape)) or self)
    with Operators() as operators:
        trained.logits(rows_of(8), batch_size=5)
    assert copies == [(24, 3)]
    assert not READS.intersection(operators.names)
