"""Sizes out of range raise an error with the number and the limit, before anything of that size is made."""

import pytest
import yaml
from errors import raises
from model_cases import SIZES
from qacg_models import (
    BertSumConfig,
    CGBertConfig,
    PlainBertConfig,
    QACGBertConfig,
    QueryAttentionConfig,
)
from qacg_models.cli import main
from qacg_models.configs.limits import MOST
from qacg_models.data import DataOptions
from qacg_models.errors import InputError
from qacg_models.runs.options import TrainingOptions
from qacg_models.runs.run_config import read_run_file
from qacg_models.training import model_setup
from test_cli import fails

HUGE = 1_000_000_000
ENCODERS = (PlainBertConfig, CGBertConfig, QACGBertConfig)
ENCODER_SIZES = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "type_vocab_size", "num_labels"),
)
# An option of training, and the field that it sets.
FLAGS = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
}


@pytest.mark.parametrize("field", ENCODER_SIZES)
@pytest.mark.parametrize("config_class", ENCODERS)
def test_encoder_config_too_large_size_raises(config_class, field):
    for make in (lambda fields: config_class(**fields), config_class.from_dict):
        with raises(f"ValueError: {field}: expected at most ... (...), got {HUGE}"):
            make({**SIZES, field: HUGE})


@pytest.mark.parametrize("config_class", [CGBertConfig, QACGBertConfig])
def test_config_too_many_contexts_raises(config_class):
    limit = MOST["contexts"][0]
    with raises(f"ValueError: contexts: expected at most {limit:,} (...), got {HUGE}"):
        config_class(**SIZES, contexts=HUGE)
    assert config_class(**SIZES, contexts=limit).num_contexts == limit


@pytest.mark.parametrize(
    "config_class, field",
    [
        (BertSumConfig, "inter_layers"),
        (BertSumConfig, "heads"),
        (BertSumConfig, "ff_size"),
        (QueryAttentionConfig, "conv_channels"),
        (QueryAttentionConfig, "num_question_types"),
    ],
)
def test_head_config_too_large_size_raises(config_class, field):
    with raises(f"ValueError: {field}: expected at most ... (...), got {HUGE}"):
        config_class(**{field: HUGE})


@pytest.mark.parametrize("config_class", [BertSumConfig, QueryAttentionConfig])
def test_head_config_too_large_encoder_raises(config_class):
    encoder = {"model_type": "bert", **SIZES, "num_hidden_layers": HUGE}
    with raises(f"ValueError: encoder.num_hidden_layers: expected at most 1,000 (...), got {HUGE}"):
        config_class(encoder=encoder)


@pytest.mark.parametrize("field", [*FLAGS, "epochs", "batch_size", "gradient_accumulation", "threads", "seed"])
def test_training_option_too_large_raises(field, tmp_path):
    with raises(f"InputError: {field}: expected at most ......, got {HUGE**3}"):
        TrainingOptions(**{field: HUGE**3})
    if field in FLAGS:  # the configuration accepts every valid option
        limit = MOST[FLAGS[field]][0]
        assert getattr(TrainingOptions(**{field: limit}), field) == limit
        with pytest.raises(InputError, match=field):
            TrainingOptions(**{field: limit + 1})


def test_train_numbers_out_of_range_print_one_line(small_data, tmp_path, capsys):
    data, output = ["--data", small_data], ["--output", tmp_path / "m"]
    fails(capsys, ["train", *data, *output, "--layers", HUGE], "layers: expected at most 1,000", f"got {HUGE}")
    fails(
        capsys, ["train", *data, *output, "--max-length", 100_000_000], "max_length: expected at most", "got 100000000"
    )
    for seed in (-1, 2**32, 2**70):
        fails(capsys, ["train", *data, *output, "--seeds", 0, seed], f"got {seed}")
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"layers": HUGE}), encoding="utf-8")
    fails(capsys, ["train", "--config", run, *data, *output], "layers: expected at most 1,000", f"got {HUGE}")
    bad = {"[1, x]": "'x'", "[1.5]": "1.5", "[true]": "True", "[]": "got []", f"[{2**70}]": f"got {2**70}"}
    for seeds, part in bad.items():
        run.write_text(f"seeds: {seeds}\n", encoding="utf-8")
        fails(capsys, ["train", "--config", run, *data, *output], "seed", part)
    assert not (tmp_path / "m").exists()


def test_commands_numbers_out_of_range_print_one_line(small_data, tmp_path, capsys):
    sample = ["--text", "good food"]
    for flag in ("--window", "--batch-size"):
        fails(capsys, ["predict", tmp_path, *sample, flag, HUGE**3], flag[2:].replace("-", "_"), "expected 1 to")
    fails(capsys, ["evaluate", tmp_path, "--data", small_data, "--bootstrap", HUGE], "bootstrap", "expected 0 to")
    fails(capsys, ["evaluate", tmp_path, "--data", small_data, "--bootstrap-seed", -1], "bootstrap-seed", "got -1")
    fails(capsys, ["convert", tmp_path, tmp_path / "new", "--seed", 2**70], "seed", f"got {2**70}")
    fails(capsys, ["demo", "--seed", 2**70, "--report", tmp_path / "r"], "seed", f"got {2**70}")


def test_dev_seed_accepts_any_integer():
    assert DataOptions(dev_seed=2**70).dev_seed == 2**70  # Python's random generator accepts it


def test_train_model_larger_than_memory_raises(small_data, tmp_path, capsys, monkeypatch):
    made = []
    monkeypatch.setattr(model_setup, "_memory", lambda: 2**20)
    monkeypatch.setattr("transformers.PreTrainedModel._from_config", lambda *a, **k: made.append(a))
    arguments = ["train", "--data", small_data, "--output", tmp_path / "m", "--hidden-size", 512]
    fails(capsys, arguments, "hidden_size", "layers", "fits into 0.00105 GB")
    assert not made


def test_run_file_keeps_valid_seeds(tmp_path):
    (tmp_path / "run.yaml").write_text("seeds: [0, 4294967295]\n", encoding="utf-8")
    assert read_run_file(tmp_path / "run.yaml") == {"seeds": [0, 2**32 - 1]}


def test_config_accepts_the_largest_published_sizes():
    config = QACGBertConfig(vocab_size=1_000_000, hidden_size=2048, num_hidden_layers=48, num_attention_heads=32)
    assert config.num_hidden_layers == 48
    assert main(["info"]) == 0
