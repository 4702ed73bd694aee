"""Tables of training records: means over seeds, differences between runs, and incompatible records."""

from dataclasses import replace

import pytest
from commands import fails
from errors import raises
from qacg_models.cli.program import main
from qacg_models.errors import InputError
from qacg_models.sentiment.metrics import ClassificationMetrics
from qacg_models.sentiment.options import TrainingOptions
from qacg_models.sentiment.record import SplitFile, write_record
from qacg_models.sentiment.report.tables import markdown, selection_note
from untrained import OWN, record_of

SHARES = {"accuracy": 0.5, "macro_f1": 0.25, "strict_accuracy": 0.125, "aspect_f1": None, "sentiment_accuracy": 1.0}


def figures(**shares):
    return ClassificationMetrics.from_json(SHARES | shares | {"undefined": ["aspect_f1"]})


def record(seed=0, seconds=60.0, accuracy=0.5, splits=("dev", "test"), **options):
    chosen = {
        "model": "qacg-bert",
        "from_checkpoint": "/somewhere/minilm/model",
        "tokenizer": "/secret",
        "tensorboard": "/secret",
    }
    chosen |= {"attention": "fused", "epochs": 8, "seed": seed} | options
    base = record_of(replace(OWN, metrics="classification"), [""], TrainingOptions(**chosen))
    return replace(
        base,
        seconds=seconds,
        metrics={split: figures(accuracy=accuracy) for split in splits},
        tfidf={split: figures(accuracy=0.4) for split in splits},
        majority={split: figures() for split in splits},
        data={split: base.data[split] for split in splits},
        confusion={split: base.confusion[split] for split in splits},
    )


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]


def test_table_merges_seeds_of_a_run():
    records = [record(0, 60, 0.5), record(1, 120, 0.7), record(0, 240, attention="eager"), record(0, epochs=2)]
    text = markdown(records)
    header, _, fused, eager, short, tfidf, majority = cells(text)
    known = ["minilm/model", "dev"]
    assert header[:6] == ["model", "from", "protocol", "attention", "seeds", "accuracy"]
    # The deviation of 50 and 70 is 20 / sqrt(2).
    assert fused[:5] == ["QACG-BERT, epochs 8", *known, "fused", "0 1"]
    assert fused[5:] == ["60.0 ± 14.1", "25.0 ± 0.0", "12.5 ± 0.0", "n/a", "100.0 ± 0.0", "1.5 ± 0.7"]
    assert eager[:6] == ["QACG-BERT, epochs 8", *known, "eager", "0", "50.0"] and eager[-1] == "4.0"
    assert short[0] == "QACG-BERT, epochs 2"
    assert tfidf[0] == "TF-IDF + logistic regression" and tfidf[5] == "40.0"
    assert majority == ["majority", "", "", "", "", "50.0", "25.0", "12.5", "n/a", "100.0", ""]
    assert "own, test, in %:" in text and "abacus, 2 threads, torch 2.13, commit cccccccccccc-modified, 2026" in text
    assert "selected on dev" in text and "optimistic" not in text


def test_table_states_weights_of_the_last_step():
    last = replace(record(1), evaluations=1)
    assert selection_note(last).startswith("weights of the last step, 3, without checkpoint selection (")
    text = markdown([last])
    assert "\n\nWeights of the last step, without checkpoint selection. abacus" in text and "selected on" not in text
    mixed = "Checkpoints selected on dev. Weights of the last step, without checkpoint selection, in 1 of 2 runs."
    assert mixed in markdown([record(0), last])


def test_table_reads_folders_of_several_seeds(tmp_path, capsys):
    for folder, seed in (("three/seed-0", 0), ("three/seed-1", 1), ("mine", 2)):
        (tmp_path / folder).mkdir(parents=True)
        write_record(tmp_path / folder / "training.json", record(seed))
    assert main(["table", str(tmp_path / "three"), str(tmp_path / "mine"), "--split", "dev"]) == 0
    (row,) = [one for one in cells(capsys.readouterr().out) if one[0] == "QACG-BERT"]
    assert row[1:6] == ["minilm/model", "dev", "fused", "0 1 2", "50.0 ± 0.0"]
    fails(capsys, ["table", tmp_path / "three" / "seeds"], "seeds: no such folder")


def test_table_incompatible_records_raise():
    other = replace(record(1), machine=record().machine | {"threads": 1})
    for records, expected in (
        ([record(0), other], "models: expected trainings on one machine, .*got 2 machines"),
        ([record(0), record(0, 3.0)], r"models: expected each seed of QACG-BERT once, got \[0, 0\]"),
    ):
        with pytest.raises(InputError, match=expected):
            markdown(records)
    untested = record(1, splits=("dev",))
    assert "own, dev, in %:" in markdown([untested])
    with raises("InputError: expected metrics on test, got none for seed 1 of QACG-BERT"):
        markdown([record(), untested])


def test_table_per_data_set_notes_selection_on_test():
    second = record(0, protocol="released", epochs=30)
    second = replace(second, selected=replace(second.selected, split="test"))
    text = markdown([record(), second])
    names = ["QACG-BERT", "QACG-BERT", "TF-IDF + logistic regression", "majority"]
    assert [row[0] for row in cells(text)[2:]] == names, "both rows have their protocol in another column"
    assert "selected on dev, test. Metrics on test are optimistic if the checkpoint was selected on test." in text
    second = replace(second, data={"test": SplitFile(4, "z")})
    assert markdown([record(), second]).count("own, test, in %:") == 2
