"""Invalid inputs, configurations, sizes and checkpoints raise an error with the argument, its value and its limits."""

import functools

import pytest
import torch
from commands import fails
from errors import raises
from model_cases import CASES, SIZES, SPANS, TOKENS
from qacg_models import (
    BertSumConfig,
    CGBertConfig,
    PlainBertConfig,
    QACGBertConfig,
    QueryAttentionConfig,
)
from qacg_models.sentiment.options import TrainingOptions

every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
CONTEXTUAL = {name: case for name, case in CASES.items() if "context_ids" in case.extra}
CONFIGS = (PlainBertConfig, CGBertConfig, QACGBertConfig)

IDS, TYPES, MASK = TOKENS["input_ids"], TOKENS["token_type_ids"], TOKENS["attention_mask"]
LONG = torch.full((2, 17), 5)
LONG[:, 1] = 3
BAD_INPUTS = {
    "ValueError: input_ids: expected 0 to 30 (vocab_size is 31), got values from 0 to 31": {
        "input_ids": IDS + (IDS == 30)
    },
    "TypeError: input_ids: expected dtype torch.int64 or torch.int32, got dtype torch.float32": {
        "input_ids": IDS.float()
    },
    "TypeError: input_ids: expected a torch.Tensor, got list": {"input_ids": [[2, 3]]},
    "ValueError: input_ids: expected two dimensions (B, L), got shape (8,)": {"input_ids": IDS[0]},
    "ValueError: input_ids: expected at least one token per sequence, got shape (2, 0)": {
        **{name: t[:, :0] for name, t in TOKENS.items()},
        "sentence_positions": torch.full((2, 1), -1),
    },
    "ValueError: input_ids: expected at most ...16 tokens..., got sequences of 17": {
        "input_ids": LONG,
        "attention_mask": None,
        "token_type_ids": None,
    },
    "ValueError: token_type_ids: expected 0 to 1 (type_vocab_size is 2), got values from 1 to 2": {
        "token_type_ids": TYPES + 1
    },
    "ValueError: token_type_ids: expected shape (2, 8), got shape (2, 7)": {"token_type_ids": TYPES[:, 1:]},
    "ValueError: position_ids: expected 0 to 15 (max_position_embeddings is 16), got values from 9 to 16": {
        "position_ids": torch.arange(9, 17)[None]
    },
    "ValueError: position_ids: expected shape (2, 8), got shape (8,)": {"position_ids": torch.arange(8)},
    "ValueError: attention_mask: expected 1 for tokens and 0 for padding": {"attention_mask": MASK * -10000},
}


BAD_CONTEXT_IDS = {
    "ValueError: context_ids: expected one id per sequence, 0 to 2, got None. config.context_id(name)": None,
    "ValueError: context_ids: expected 0 to 2 (num_contexts is 3), got values from 0 to 3": torch.tensor([0, 3]),
    "ValueError: context_ids: expected shape (2,), got shape (3,)": torch.zeros(3).long(),
    "ValueError: context_ids: expected shape (2, 1), got shape (2, 8)": IDS,
}
BAD_LABELS = {
    "ValueError: labels: expected 0 to 2 (num_labels is 3), or -100 for rows to leave out": torch.tensor([0, 3]),
    "ValueError: labels: expected shape (2,), got shape (2, 1)": torch.tensor([[0], [1]]),
    "TypeError: labels: expected dtype torch.int64 or torch.int32, got dtype torch.float32": torch.tensor([0.0, 1.0]),
    "TypeError: labels: expected a torch.Tensor, got list": [0, 1],
}
NO_INTEGER = "expected dtype torch.int64 or torch.int32, got dtype torch.float32"
BAD_POSITIONS = {
    "ValueError: start_positions: expected a tensor if end_positions is given, got None": {"start_positions": None},
    "ValueError: end_positions: expected a tensor if start_positions is given, got None": {"end_positions": None},
    "ValueError: end_positions: expected shape (2,) or (2, 1), got": {"end_positions": torch.tensor([1])},
    f"TypeError: start_positions: {NO_INTEGER}": {"start_positions": torch.ones(2)},
}
GIVEN = [
    (CASES, BAD_INPUTS),
    (CONTEXTUAL, {error: {"context_ids": given} for error, given in BAD_CONTEXT_IDS.items()}),
    ([name for name in CASES if "Sequence" in name], {error: {"labels": given} for error, given in BAD_LABELS.items()}),
    (
        ["BertForQuestionAnswering", "QueryAttention, linear"],
        {error: SPANS | given for error, given in BAD_POSITIONS.items()},
    ),
]


@functools.cache
def built(name):
    """Returns a model that all tests share, since invalid inputs do not change it."""
    return CASES[name].build()


@pytest.mark.parametrize(
    ("name", "error", "given"), [(name, *case) for names, cases in GIVEN for name in names for case in cases.items()]
)
def test_model_bad_inputs_raise(name, error, given):
    case = CASES[name]
    names = {*TOKENS, "position_ids", *case.extra, *case.labels}  # other models have other inputs
    with raises(error):
        built(name)(**case.inputs | {name: value for name, value in given.items() if name in names})


@pytest.mark.parametrize("config_class", [CGBertConfig, QACGBertConfig])
def test_config_unknown_context_name_raises(config_class):
    config = config_class(contexts=["price", "safety"])
    assert config.context_id("safety") == 1
    with raises("ValueError: context: expected one of 'price', 'safety', got 'food'"):
        config.context_id("food")


BAD_FIELDS = {
    "TypeError: hiden_size: expected a field of ..., got an unknown name. Did you mean 'hidden_size'": {
        "hiden_size": 12
    },
    "ValueError: model_type: expected one of ..., got 'roberta'": {"model_type": "roberta"},
    "ValueError: hidden_size: expected a multiple of num_attention_heads = 5, got 12": {"num_attention_heads": 5},
    "TypeError: vocab_size: expected an integer, got '31'": {"vocab_size": "31"},
    "ValueError: hidden_dropout_prob: expected a probability in [0, 1), got 1.0": {"hidden_dropout_prob": 1.0},
    "ValueError: layer_norm_eps: expected a finite number, got nan": {"layer_norm_eps": float("nan")},
    "ValueError: pooler: expected one of 'cls', 'attention', got 'mean'": {"pooler": "mean"},
    "ValueError: full_pooler: expected None with pooler='cls', got True, which means 'attention'": {
        "pooler": "cls",
        "full_pooler": True,
    },
    "ValueError: hidden_act: expected one of 'gelu', 'gelu_10', ...got 'gulu'": {"hidden_act": "gulu"},
    "ValueError: pad_token_id: expected less than 31, got 31": {"pad_token_id": 31},
    "TypeError: label2id: expected a dict from name to id, got int": {"label2id": 5},
    "ValueError: id2label: expected integers from 0 as ids, got 'a'": {"id2label": {"a": "b"}},
    "ValueError: num_labels: expected 3 as in id2label, got 2": {"num_labels": 2, "id2label": {0: "a", 1: "b", 2: "c"}},
    "ValueError: label2id: expected 'b' for 1 as in id2label, got 'a'": {
        "id2label": {0: "a", 1: "b"},
        "label2id": {"a": 1, "b": 0},
    },
    "ValueError: position_embedding_type: expected 'absolute', got 'relative_key'": {
        "position_embedding_type": "relative_key"
    },
}
BAD_CONTEXT_FIELDS = {
    "ValueError: context_projection: expected one of 'hidden', 'head', got 'full'": {"context_projection": "full"},
    "ValueError: contexts: expected at least one name, got": {"contexts": []},
    "ValueError: contexts: expected distinct names, got 'a' more than once": {"contexts": ["a", "b", "a"]},
    "TypeError: contexts: expected a list of names or a number": {"contexts": "price"},
    "TypeError: num_contexts: ...got an unknown name. Did you mean 'contexts'": {"num_contexts": 3},
}


@pytest.mark.parametrize("config_class", CONFIGS)
def test_config_takes_label_names_from_label2id(config_class):
    assert config_class(**SIZES, label2id={"a": 1, "b": 0, "c": 2}).id2label == {0: "b", 1: "a", 2: "c"}


HUGE = 1_000_000_000

BAD_HEAD_FIELDS = {
    "ValueError: num_labels: expected at least 1, got -1": {"num_labels": -1},
}
BAD_QACG_FIELDS = {
    "TypeError: beta: expected a number, got '1'": {"beta": "1"},
    "ValueError: gamma: expected a finite number, got inf": {"gamma": float("inf")},
    "ValueError: attention_naming: expected one of 'released', 'compact', got 'old'": {"attention_naming": "old"},
}
BAD_CONFIGS = [
    (CONFIGS, BAD_FIELDS),
    ((CGBertConfig, QACGBertConfig), BAD_CONTEXT_FIELDS),
    ((QACGBertConfig,), BAD_QACG_FIELDS),
    (
        (CGBertConfig,),
        {"ValueError: gate_activation: expected one of 'sigmoid', 'tanh', got 'relu'": {"gate_activation": "relu"}},
    ),
    ((BertSumConfig, QueryAttentionConfig), BAD_HEAD_FIELDS),
]


@pytest.mark.parametrize(
    ("config_class", "error", "given"),
    [(one, *case) for classes, cases in BAD_CONFIGS for one in classes for case in cases.items()],
)
def test_config_bad_field_raises(config_class, error, given):
    sizes = SIZES if config_class in CONFIGS else {}
    for make in (lambda fields: config_class(**fields), config_class.from_dict):
        with raises(error):
            make(sizes | given)


@every_model
def test_model_of_config_made_invalid_later_raises(case):
    config = case.make_config()
    field, value = ("encoder", None) if case.is_head else ("pooler", "last")
    setattr(config, field, value)
    with raises(f"ValueError: {field}: "):
        case.model_class(config)


@pytest.mark.parametrize("field", ["hidden_size", "max_length", "epochs", "batch_size", "threads", "seed"])
def test_training_option_too_large_raises(field):
    with raises(f"InputError: {field}: expected at most ..., got {HUGE**3}"):
        TrainingOptions(**{field: HUGE**3})


def test_train_numbers_out_of_range_print_one_line(small_data, tmp_path, capsys):
    train, run = ["train", "--data", small_data, "--output", tmp_path / "m"], tmp_path / "run.yaml"
    fails(capsys, [*train, "--set", f"layers={HUGE}"], "layers: expected at most 1,000", f"got {HUGE}")
    fails(capsys, ["predict", tmp_path, "--text", "food", "--batch-size", HUGE**3], "batch-size", "expected 1 to")
    for seed in (-1, 2**32, 2**70):
        fails(capsys, [*train, "--seeds", 0, seed], f"got {seed}")
    run.write_text(f"minutes: {10**400}\n", encoding="utf-8")
    fails(capsys, [*train, "--config", run], "minutes: expected a value of type float, got 1000")
    for seeds, part in {"[1, x]": "'x'", "[1.5]": "1.5", "[true]": "True", "[]": "got []"}.items():
        run.write_text(f"seeds: {seeds}\n", encoding="utf-8")
        fails(capsys, [*train, "--config", run], "seed", part)
    assert not (tmp_path / "m").exists()
