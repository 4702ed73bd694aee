"""Whole steps of models: agreement of implementations, records, and ratios of times."""

from dataclasses import replace

import pytest
import torch
from benchmark_records import ORIGIN
from model_sizes import TINY
from qacg_models import QACGBertConfig, QACGBertForSequenceClassification

from benchmarks import end_to_end, model_steps as step_names, records
from benchmarks.model_steps import implementations
from benchmarks.model_steps.released import ReleasedQACGBert
from benchmarks.model_steps.sentences import load_sentences
from benchmarks.model_steps.times import Workload, step_records
from benchmarks.table import markdown
from benchmarks.targets.performance import TARGETS

SMALL = {**TINY, "vocab_size": 40, "contexts": 3, "num_labels": 3}


@pytest.fixture(scope="module")
def sentences():
    return load_sentences(None, None)


def step_times(size="minilm", mode="training", **seconds):
    by_name = {tuple(name.replace("_", " ").split(" in ")): times for name, times in seconds.items()}
    return step_records(by_name, 0.01, ORIGIN, Workload(size, mode, "somewhere", 2, 128, 4000, 10000))


def test_ratios_and_targets_use_medians():
    released, packed, half = step_times(
        released_in_float32=[8.0, 2.0, 4.0], fused_packed_in_float32=[0.5, 0.8, 9.0], fused_packed_in_bfloat16=[0.4] * 3
    )
    assert (released.median_ms, released.sentences_per_second, released.ratio_to_released) == (4000, 32, 1)
    assert (packed.ratio_to_released, packed.min_ms, packed.repeats) == (5, 500, 3)
    assert half.ratio_to_released == 10
    first, second, third, *_ = (target.judge("cpu", [released, packed, half]) for target in TARGETS["steps"])
    assert (first.target, first.measured, first.met) == ("at least 5x", "5.00x", True)
    assert (second.measured, second.met) == ("10.00x", True)
    assert (third.measured, third.met) == ("not measured", False)
    slow = step_times("base-12", released_in_float32=[5.0], fused_packed_in_float32=[1.0])
    *_, missed, unknown = (target.judge("cpu", slow) for target in TARGETS["steps"])
    assert str(missed).startswith("MISSED  base-12 training, fused packed in float32 vs released")
    assert unknown.measured == "not measured"
    assert "| minilm | training | float32 | 32 (1.0x) | 160 (5.0x) |" in markdown([released, packed])


def test_batches_have_the_same_sentences_in_both_forms(sentences):
    assert "bundled sample" in sentences.source
    batches = sentences.draw(3, 16)
    assert len(batches) == 3
    for batch in batches:
        assert batch.sentences == 16
        mask = batch.padded["attention_mask"].bool()
        assert (batch.tokens, batch.padded_tokens) == (int(mask.sum()), mask.numel())
        assert batch.tokens < batch.padded_tokens
        for name in ("input_ids", "token_type_ids"):
            assert torch.equal(batch.padded[name][mask], batch.packed[name])
        assert torch.equal(batch.padded["context_ids"], batch.packed["context_ids"])
        assert torch.equal(batch.padded["labels"], batch.packed["labels"])
    assert not torch.equal(batches[0].packed["input_ids"][:20], batches[1].packed["input_ids"][:20])
    with pytest.raises(ValueError, match=r"batches: expected at most .* got 1000"):
        sentences.draw(1000, 64)


def test_released_operations_match_the_model():
    torch.manual_seed(0)
    config = QACGBertConfig(**SMALL, initializer_range=0.5)
    model = QACGBertForSequenceClassification(config).eval()
    batch = {
        "input_ids": torch.randint(40, (2, 5)),
        "attention_mask": torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]),
        "token_type_ids": torch.randint(2, (2, 5)),
        "context_ids": torch.tensor([2, 0]),
        "labels": torch.tensor([1, 2]),
    }
    expected = model(**batch, output_attentions=True, output_gates=True)
    loss, logits, *kept = ReleasedQACGBert(model)(**batch)
    torch.testing.assert_close(loss, expected.loss)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-5)
    names = ("attentions", "softmax_maps", "quasi_maps", "lambdas")
    for name, layers in zip(names, kept):
        for mine, theirs in zip(layers, expected[name]):
            mine = mine.squeeze(-1) if name == "lambdas" else mine
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    with pytest.raises(ValueError, match="pooler: expected 'cls', got 'attention'"):
        ReleasedQACGBert(QACGBertForSequenceClassification(QACGBertConfig(**SMALL, pooler="attention")))


COMPARED = [step_names.RELEASED, step_names.FUSED, step_names.PACKED, step_names.FOLDED, step_names.BERT]


@pytest.mark.full
def test_quick_run_stores_all_records(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("QACG_DATA", raising=False)
    threads = str(torch.get_num_threads())
    arguments = ["--quick", "--threads", threads, "--out", str(tmp_path), "--dtypes", "float32"]
    arguments += ["--implementations", *COMPARED]
    clean = replace(records.origin(), dirty=False)
    monkeypatch.setattr(records, "origin", lambda: clean)
    assert end_to_end.main([*arguments, "--minutes", "0"]) == 0
    assert capsys.readouterr().out.count("not measured, the time limit is reached") == 2
    assert end_to_end.main(arguments) == 0, capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    measured = records.load([path])
    required = {(mode, name) for mode in step_names.MODES for name in COMPARED if implementations.supports(name, mode)}
    assert {(row.mode, row.implementation) for row in measured} == required
    for row in measured:
        assert row.size == "tiny"
        assert row.sentences == 16
        assert 0 < row.tokens < row.padded_tokens
        released = next(
            other for other in measured if (other.mode, other.implementation) == (row.mode, step_names.RELEASED)
        )
        assert row.ratio_to_released == pytest.approx(released.median_ms / row.median_ms, rel=1e-3)
    monkeypatch.setattr(end_to_end, "measure", lambda *_: pytest.fail("measured again"))
    assert end_to_end.main(arguments) == 0
    assert records.load([path]) == measured
    assert capsys.readouterr().out.count(": already measured") == 2


def test_wrong_implementation_is_not_measured(monkeypatch, capsys):
    monkeypatch.delenv("QACG_DATA", raising=False)

    def wrong(builder):
        runner = implementations.Builder.packed(builder)
        weight = runner.model.bert.encoder.layer[0].attention.self.lambda_q_query_layer.weight
        runner.model.bert.encoder.layer[0].attention.self.lambda_q_query_layer.weight = torch.nn.Parameter(weight + 1)
        return runner

    monkeypatch.setitem(implementations.IMPLEMENTATIONS, step_names.PACKED, wrong)
    arguments = ["--quick", "--dtypes", "float32", "--modes", "inference", "--implementations", step_names.PACKED]
    assert end_to_end.main([*arguments, "--threads", str(torch.get_num_threads())]) == 1
    out, err = capsys.readouterr()
    assert "parity fails, so there are no measurements" in err
    assert "fused packed, float32" in err
    assert "ms a batch" not in out
