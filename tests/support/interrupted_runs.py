"""Runs that are interrupted at a given call, and the comparison of a resumed run with an uninterrupted one."""

import itertools
from contextlib import contextmanager

import pytest
import torch


class Interrupted(BaseException):
    """No code catches this exception by mistake."""


def interrupt_at(patch, owner, name, call=1, *, after=False, error=Interrupted):
    """Makes the `call`-th call of a function raise an error, before it runs or after."""
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
    """Interrupts the block at a call, as `interrupt_at` does, and expects that this ends it."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        interrupt_at(patch, owner, name, call, after=after)
        yield


def assert_same_run(trained, expected):
    """The weights, the tokenizer and the record of two runs are equal, apart from their times."""
    weights, expected_weights = trained.model.state_dict(), expected.model.state_dict()
    for name, value in expected_weights.items():
        assert torch.equal(weights[name], value), name
    record, expected_record = trained.record.to_json(), expected.record.to_json()
    for part in ("metrics", "selected", "steps", "loss", "ended", "tfidf"):
        assert record[part] == expected_record[part], part
    assert trained.tokenizer.backend_tokenizer.to_str() == expected.tokenizer.backend_tokenizer.to_str()
