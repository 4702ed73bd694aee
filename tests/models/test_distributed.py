"""Two processes over gloo train like one: equal losses, the same selected step, one folder."""

import pytest
import torch
from processes import SUPPORT, run_python
from qacg_models.sentiment.dataset import load_data
from qacg_models.sentiment.trained_model import load_trained
from qacg_models.sentiment.training import train
from qacg_models.utils.machine import local_device
from two_processes import OPTIONS


@pytest.fixture(scope="module")
def one(small_data, tmp_path_factory):
    return train(load_data(small_data), tmp_path_factory.mktemp("one") / "model", OPTIONS)


def by_two(small_data, output):
    """Trains with two processes into `output`, whose name selects the run; returns what they print."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    done = run_python(*launcher, SUPPORT / "two_processes.py", small_data, output, OMP_NUM_THREADS="1")
    assert done.stdout.count("model: QACG-BERT") == 2, "only one process prints"
    assert [path.name for path in output.parent.iterdir()] == [output.name]
    return done.stdout


@pytest.fixture(scope="module")
def seeds(small_data, tmp_path_factory):
    """The folder of two seeds that two processes trained."""
    output = tmp_path_factory.mktemp("two") / "seeds"
    printed = by_two(small_data, output).splitlines()
    assert [line for line in printed if line.startswith("seed ")] == ["seed 0", "seed 1"]
    assert sorted(path.name for path in output.iterdir()) == ["run.yaml", "seed-0", "seed-1"]
    return output


@pytest.mark.full
def test_ddp_of_two_processes_equals_one(seeds, one):
    same_run(load_trained(seeds / "seed-0"), one)


@pytest.mark.full
def test_ddp_of_two_processes_resumed_equals_one(small_data, one, tmp_path):
    printed = by_two(small_data, tmp_path / "resumed")
    assert printed.count("resuming from checkpoint-6") == 1
    same_run(load_trained(tmp_path / "resumed"), one)


def same_run(trained, one):
    steps, losses = zip(*trained.record.loss)
    expected_steps, expected = zip(*one.record.loss)
    assert steps == expected_steps
    assert losses == pytest.approx(expected, rel=1e-4)
    assert trained.record.selected.step == one.record.selected.step
    assert trained.record.selected.value == pytest.approx(one.record.selected.value)
    weights, expected_weights = trained.model.state_dict(), one.model.state_dict()
    assert weights.keys() == expected_weights.keys()
    for name, value in weights.items():
        # Adam divides by the root of tiny squares, which makes rounding of tiny gradients large.
        torch.testing.assert_close(
            value, expected_weights[name], atol=2e-3, rtol=1e-2, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.full
def test_ddp_seeds_give_different_models(seeds):
    first, second = (load_trained(seeds / f"seed-{seed}").record.loss for seed in (0, 1))
    assert [step for step, _ in first] == [step for step, _ in second] and first != second


def test_local_device_is_one_gpu_per_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert local_device() == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (local_device(), local_device("cpu")) == ("cuda", "cpu")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert (local_device(), local_device("cpu"), local_device("cuda:1")) == ("cuda:3", "cpu", "cuda:1")
