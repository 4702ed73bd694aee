"""Micro-batches of a batch that does not fit into memory: equal gradients and steps, a warning, and resuming."""

from dataclasses import replace
from functools import wraps

import pytest
import torch
from errors import raises
from full_members import members
from interrupted_runs import assert_same_run, interrupted
from kill_and_resume import OPTIONS
from qacg_models.data.collators import PackingCollator, PaddingCollator, slice_batch
from qacg_models.models.qacg_bert import QACGBertForSequenceClassification as Model
from qacg_models.runs.record import read_record
from qacg_models.training import train
from qacg_models.training.trainer import AspectTrainer
from transformers import Trainer

# Without randomness, so that micro-batches and the whole batch differ by rounding only.
STEADY = replace(OPTIONS, dropout=0.0, word_dropout=0.0, batch_size=16, max_steps=4, epochs=None, eval_every=4)


@pytest.fixture
def memory(monkeypatch):
    """Simulates memory for a number of rows; more rows fail in the backward of training, elsewhere in the forward."""
    plain, room = Model.forward, {"rows": 10**9, "failures": 0}

    @wraps(plain)  # transformers inspects the argument names
    def forward(self, *args, **kwargs):
        found = plain(self, *args, **kwargs)
        rows = len(found.logits)
        if rows > room["rows"]:

            def fail(gradient):
                room["failures"] += 1
                hook.remove()
                raise torch.OutOfMemoryError("CUDA out of memory")

            if not found.logits.requires_grad:
                raise torch.OutOfMemoryError("CUDA out of memory")
            # The classifier, which comes later in the model, has gradients by then.
            hook = self.bert.embeddings.word_embeddings.weight.register_hook(fail)
        return found

    monkeypatch.setattr(Model, "forward", forward)
    return room


def trained(dataset, folder, **changed):
    printed = []
    found = train(dataset, folder, replace(STEADY, **changed), say=printed.append)
    return found, [line for line in printed if "at once" in line]


@pytest.fixture
def gradients(monkeypatch):
    """Collects the gradients of each step, by name, as the optimizer receives them."""
    plain, found = AspectTrainer.training_step, []

    def training_step(self, model, *args, **kwargs):
        loss = plain(self, model, *args, **kwargs)
        if self.accelerator.sync_gradients:
            found.append({name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None})
        return loss

    monkeypatch.setattr(AspectTrainer, "training_step", training_step)
    return found


def assert_near(found, expected):
    assert found.keys() == expected.keys()
    largest = max(one.abs().max() for one in expected.values())
    for name, one in expected.items():
        torch.testing.assert_close(found[name], one, rtol=1e-3, atol=1e-6 * float(largest), msg=name)


@pytest.mark.parametrize("accumulation", members([1, 2], fast=[2]))
def test_micro_batches_give_the_gradients_of_the_batch(dataset, tmp_path, memory, gradients, accumulation):
    options = {"gradient_accumulation": accumulation, "batch_size": 16 // accumulation}
    whole, printed = trained(dataset, tmp_path / "whole", **options)
    assert whole.record.parts == 1 and printed == []
    memory["rows"] = 3
    parted, printed = trained(dataset, tmp_path / "parted", **options)
    rows = 16 // accumulation
    expected = {1: 8, 2: 4}[accumulation]
    assert memory["failures"]
    assert parted.record.parts == expected
    assert read_record(tmp_path / "parted").parts == expected
    assert len(printed) == {1: 3, 2: 2}[accumulation]
    assert printed[-1].startswith(f"{rows} rows do not fit into memory at once: from step 1 on")
    assert f"into {expected} micro-batches" in printed[-1]
    assert_near(gradients[4], gradients[0])
    for found, one in zip(parted.record.loss, whole.record.loss, strict=True):
        assert found == pytest.approx(one, rel=1e-3)
    assert (parted.record.steps, whole.record.steps) == (4, 4)
    assert len(gradients) == 8


@pytest.mark.full
def test_out_of_memory_within_a_step_recomputes_its_batches(dataset, tmp_path, memory, gradients, monkeypatch):
    """The previous batch is computed again, because its gradients are mixed with those of the failed pass."""
    trained(dataset, tmp_path / "whole", gradient_accumulation=2, batch_size=8)
    plain, calls = Trainer.training_step, []

    def scarce(self, model, inputs, *args, **kwargs):
        calls.append(len(inputs["labels"]))
        if len(calls) == 4:  # the second batch of the second step
            memory["rows"] = 4
        return plain(self, model, inputs, *args, **kwargs)

    monkeypatch.setattr(Trainer, "training_step", scarce)
    _, printed = trained(dataset, tmp_path / "parted", gradient_accumulation=2, batch_size=8)
    assert calls == [8, 8, 8, 8, *[4] * 12] and "from step 2 on" in printed[0]
    assert_near(gradients[4], gradients[0])
    assert_near(gradients[5], gradients[1])


@pytest.mark.full
def test_resumed_run_keeps_its_micro_batches(dataset, tmp_path, memory):
    """With dropout, a run with other micro-batches would drop other entries and give other weights."""
    memory["rows"] = 5
    options = replace(STEADY, dropout=0.1, checkpoint_every=2)
    expected = train(dataset, tmp_path / "whole", options, say=lambda line: None)
    with interrupted(AspectTrainer, "_save_checkpoint", after=True):
        train(dataset, tmp_path / "model", options, say=lambda line: None)
    printed, memory["failures"] = [], 0
    found = train(dataset, tmp_path / "model", options, resume=True, say=printed.append)
    assert memory["failures"] == 0 and not [line for line in printed if "at once" in line]
    assert (found.record.parts, expected.record.parts) == (4, 4)
    assert_same_run(found, expected)


def test_out_of_memory_with_one_row_raises(dataset, tmp_path, memory):
    memory["rows"] = 0
    with raises("InputError: max_length: expected rows that each fit into memory, got a row that does not"):
        trained(dataset, tmp_path / "model")


def test_training_step_other_errors_propagate(dataset, tmp_path, monkeypatch):
    def raising(*args, **kwargs):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(Trainer, "training_step", raising)
    with raises("RuntimeError: shapes differ"):
        trained(dataset, tmp_path / "model")


def test_shared_texts_need_no_token_types():
    features = [{"input_ids": ids, "labels": 0} for ids in ([5, 6], [5, 6], [7])]
    batch = PackingCollator(share_texts=True)(features)
    assert batch["text_ids"].tolist() == [0, 0, 1]
    assert batch["input_ids"].tolist() == [5, 6, 7]


@pytest.mark.parametrize("collate", [PackingCollator(), PaddingCollator(0)], ids=["packed", "padded"])
def test_slice_batch_equals_collating_the_slice(collate):
    features = [
        {"input_ids": [5] * size, "token_type_ids": [0, 1] * (size // 2) + [1] * (size % 2), "labels": size}
        | {"context_ids": size + 1}
        for size in (4, 7, 2, 7, 5)
    ]
    part, expected = slice_batch(collate(features), 1, 4), collate(features[1:4])
    assert part.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(torch.as_tensor(part[name]), torch.as_tensor(values)), name
    assert not isinstance(part.get("max_seqlen", 0), torch.Tensor)
