"""Interrupts a short training or another run at a given call, and compares a resumed run with an uninterrupted one."""

import itertools
from contextlib import contextmanager

import pytest
import torch
from model_sizes import SMALL, SMALL_FLAGS
from qacg_models.sentiment.options import TrainingOptions

# A training of 30 steps that evaluates twice and writes five checkpoints, and the same as flags of `qacg train`.
OPTIONS = TrainingOptions(**SMALL, epochs=2, batch_size=16, learning_rate=3e-3, eval_every=20, checkpoint_every=7)
FLAGS = [*SMALL_FLAGS, "--epochs=2", "--batch-size=16", "--learning-rate=3e-3"]
FLAGS += ["--set=eval_every=20", "--set=checkpoint_every=7"]


class Interrupted(BaseException):
    """An exception that no code under test suppresses."""


def interrupt_at(patch, owner, name, call=1, *, after=False, error=Interrupted):
    """Makes the `call`-th call of the function `owner.name` raise `error`, before or (with `after`) after it runs."""
    plain, count = getattr(owner, name), itertools.count(1)

    def interrupting(*args, **kwargs):
        interrupts = next(count) == call
        if interrupts and not after:
            raise error
        result = plain(*args, **kwargs)
        if interrupts:
            raise error
        return result

    patch.setattr(owner, name, interrupting)


@contextmanager
def interrupted(owner, name, call=1, *, after=False):
    """A context manager: the `call`-th call of `owner.name` raises `Interrupted`, which must end the block."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        interrupt_at(patch, owner, name, call, after=after)
        yield


def assert_same_run(trained, expected):
    """Asserts that two runs have equal weights, tokenizers and results (the parts of the record listed below)."""
    weights, expected_weights = trained.model.state_dict(), expected.model.state_dict()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name
    record, expected_record = trained.record.to_json(), expected.record.to_json()
    for part in ("metrics", "selected", "steps", "evaluations", "loss", "ended", "tfidf"):
        assert record[part] == expected_record[part], part
    assert trained.tokenizer.backend_tokenizer.to_str() == expected.tokenizer.backend_tokenizer.to_str()
