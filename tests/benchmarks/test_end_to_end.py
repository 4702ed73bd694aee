"""The end-to-end benchmark: what it runs is what it says, and what it reckons from times is right."""

import json
from dataclasses import replace

import pytest
import torch
from model_sizes import TINY
from qacg_models import QACGBertConfig, QACGBertForSequenceClassification

from benchmarks import end_to_end, rows, sentences as sentences_command
from benchmarks.analysis.tables import markdown
from benchmarks.steps import names as step_names, providers, step_times
from benchmarks.steps.released import ReleasedQACGBert
from benchmarks.steps.sentences import load_sentences
from benchmarks.targets import step_marks

ORIGIN = rows.Origin(
    machine={"cpu": "Some CPU", "threads": 2, "instruction_sets": {"float32": "avx512"}},
    versions={"qacg_kernels": "0.1.0", "torch": "2.13.0"},
    commit="0123456789ab",
    dirty=False,
    taken="2030-01-02T03:04:05Z",
)
SMALL = {
    **TINY,
    "vocab_size": 40,
    "contexts": 3,
    "num_labels": 3,
}


@pytest.fixture(scope="module")
def sentences():
    return load_sentences(None, None)


def step_rows(size="minilm", mode="training", **seconds):
    taken = {tuple(name.split("_in_")): times for name, times in seconds.items()}
    taken = {(provider.replace("_", " "), dtype): times for (provider, dtype), times in taken.items()}
    counts = {"batches": 2, "sentences": 128, "tokens": 4000, "cells": 10000}
    return step_times.step_rows(
        taken, 0.01, ORIGIN, (step_names.RELEASED, "float32"), size=size, mode=mode, lengths="somewhere", **counts
    )


def test_ratios_are_of_medians_and_marks_are_judged_by_them():
    released, packed, half = step_rows(
        released_in_float32=[8.0, 2.0, 4.0], fused_packed_in_float32=[0.5, 0.8, 9.0], fused_packed_in_bfloat16=[0.4] * 3
    )
    assert (released.median_ms, released.sentences_per_second, released.ratio_to_released) == (4000, 32, 1)
    assert (packed.ratio_to_released, packed.min_ms, packed.repeats) == (5, 500, 3)
    assert half.ratio_to_released == 10
    first, second, third = step_marks.judge(step_marks.MARKS, [released, packed, half])
    assert (first.target, first.measured, first.met) == ("at least 5x", "5.00x", True)
    assert (second.measured, second.met) == ("10.00x", True)
    assert (third.measured, third.met) == ("not measured", False)
    slow = step_rows("base-12", released_in_float32=[5.0], fused_packed_in_float32=[1.0])
    missed, unknown = step_marks.judge(step_marks.AIMS, slow)
    assert str(missed).startswith("MISSED  base-12 training, fused packed in float32 vs released")
    assert unknown.measured == "not measured"
    (alone,) = step_rows(fused_packed_in_float32=[1.0])
    assert alone.ratio_to_released is None


def test_rows_survive_a_file_and_make_a_table(tmp_path):
    measured = step_rows(released_in_float32=[4.0], fused_packed_in_float32=[0.8])
    writer = rows.Writer(tmp_path, "end-to-end", ORIGIN)
    writer.add(measured)
    assert rows.load([writer.path]) == measured
    text = markdown(measured)
    assert "| minilm | training | float32 | 32 (1.0x) | 160 (5.0x) |" in text
    assert "somewhere, 60% padding" in text


def test_batches_hold_the_same_sentences_padded_and_packed(sentences):
    assert "bundled sample" in sentences.source
    batches = sentences.draw(3, 16)
    assert len(batches) == 3
    for batch in batches:
        assert batch.sentences == 16
        mask = batch.padded["attention_mask"].bool()
        assert batch.tokens == int(mask.sum()) < batch.cells == mask.numel()
        for name in ("input_ids", "token_type_ids"):
            assert torch.equal(batch.padded[name][mask], batch.packed[name])
        assert torch.equal(batch.padded["context_ids"], batch.packed["context_ids"])
        assert torch.equal(batch.padded["labels"], batch.packed["labels"])
    assert not torch.equal(batches[0].packed["input_ids"][:20], batches[1].packed["input_ids"][:20])
    with pytest.raises(ValueError, match="batches: got 1000 of 64, wanted at most"):
        sentences.draw(1000, 64)


def test_lengths_are_counted_as_the_committed_histogram_holds_them(sentences, capsys, monkeypatch):
    monkeypatch.delenv("QACG_DATA", raising=False)
    assert sentences_command.main([]) == 0
    counts = json.loads(capsys.readouterr().out)["counts"]
    assert sum(counts.values()) == len(sentences.features)
    assert counts[str(len(sentences.features[0]["input_ids"]))] > 0
    assert sentences_command.main(["--data", "no/such/folder"]) == 1


def test_the_released_operations_give_the_outputs_and_maps_of_the_model():
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
    wanted = model(**batch, output_attentions=True, output_lambda=True)
    loss, logits, *kept = ReleasedQACGBert(model)(**batch)
    torch.testing.assert_close(loss, wanted.loss)
    torch.testing.assert_close(logits, wanted.logits, rtol=1e-4, atol=1e-5)
    names = ("attentions", "softmax_maps", "quasi_maps", "lambdas")
    for name, layers in zip(names, kept):
        for mine, theirs in zip(layers, wanted[name]):
            mine = mine.squeeze(-1) if name == "lambdas" else mine
            torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")
    with pytest.raises(ValueError, match="pooler: got 'attention', wanted 'cls'"):
        ReleasedQACGBert(QACGBertForSequenceClassification(QACGBertConfig(**SMALL, pooler="attention")))


RACE = [step_names.RELEASED, step_names.FUSED, step_names.PACKED, step_names.FOLDED, step_names.BERT]


@pytest.mark.full
def test_a_quick_run_writes_a_row_for_every_provider(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("QACG_DATA", raising=False)
    threads = str(torch.get_num_threads())
    arguments = ["--quick", "--threads", threads, "--out", str(tmp_path), "--dtypes", "float32", "--providers", *RACE]
    clean = replace(rows.origin(), dirty=False)
    monkeypatch.setattr(rows, "origin", lambda: clean)
    assert end_to_end.main([*arguments, "--minutes", "0"]) == 0
    assert capsys.readouterr().out.count("not measured, the time is spent") == 2
    assert end_to_end.main(arguments) == 0, capsys.readouterr().err
    (path,) = tmp_path.iterdir()
    measured = rows.load([path])
    wanted = {(mode, name) for mode in step_names.MODES for name in RACE if providers.takes(name, mode)}
    assert {(row.mode, row.provider) for row in measured} == wanted
    for row in measured:
        assert row.size == "tiny"
        assert row.sentences == 16
        assert 0 < row.tokens < row.cells
        rival = next(other for other in measured if (other.mode, other.provider) == (row.mode, step_names.RELEASED))
        assert row.ratio_to_released == pytest.approx(rival.median_ms / row.median_ms, rel=1e-3)
    monkeypatch.setattr(end_to_end, "measure", lambda *_: pytest.fail("measured again"))
    assert end_to_end.main(arguments) == 0
    assert rows.load([path]) == measured
    assert capsys.readouterr().out.count(": kept") == 2


def test_no_figure_for_a_provider_that_computes_something_else(monkeypatch, capsys):
    monkeypatch.delenv("QACG_DATA", raising=False)

    def wrong(builder):
        runner = providers.Builder.packed(builder)
        weight = runner.model.bert.encoder.layer[0].attention.self.lambda_q_query_layer.weight
        runner.model.bert.encoder.layer[0].attention.self.lambda_q_query_layer.weight = torch.nn.Parameter(weight + 1)
        return runner

    monkeypatch.setitem(providers.PROVIDERS, step_names.PACKED, wrong)
    arguments = ["--quick", "--dtypes", "float32", "--modes", "inference", "--providers", step_names.PACKED]
    assert end_to_end.main([*arguments, "--threads", str(torch.get_num_threads())]) == 1
    out, err = capsys.readouterr()
    assert "parity fails, so there are no figures" in err
    assert "fused packed, float32" in err
    assert "ms a batch" not in out
