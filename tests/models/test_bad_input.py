"""Invalid inputs, configurations and checkpoints raise an error with the argument, its value and its limits."""

import pytest
import torch
from model_cases import CASES, SIZES, SPANS, TOKENS
from qacg_models import CGBertConfig, PlainBertConfig, QACGBertConfig
from qacg_models.errors import CheckpointError
from safetensors.torch import load_file, save_file

every_model = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
CONTEXTUAL = {name: case for name, case in CASES.items() if "context_ids" in case.extra}
BUILT = {}
CONFIGS = (PlainBertConfig, CGBertConfig, QACGBertConfig)

IDS, TYPES, MASK = TOKENS["input_ids"], TOKENS["token_type_ids"], TOKENS["attention_mask"]
LONG = torch.full((2, 17), 5)
LONG[:, 1] = 3
BAD_INPUTS = {
    "id range": (
        {"input_ids": IDS + (IDS == 30)},
        ValueError,
        r"input_ids: expected 0 to 30 \(vocab_size is 31\), got values from 0 to 31",
    ),
    "negative id": (
        {"input_ids": IDS - 1},
        ValueError,
        r"input_ids: expected 0 to 30 \(vocab_size is 31\), got values from -1 to 29",
    ),
    "id dtype": (
        {"input_ids": IDS.float()},
        TypeError,
        r"input_ids: expected dtype torch\.int64 or torch\.int32, got dtype torch\.float32",
    ),
    "id type": ({"input_ids": [[2, 3]]}, TypeError, r"input_ids: expected a torch\.Tensor, got list"),
    "id rank": ({"input_ids": IDS[0]}, ValueError, r"input_ids: expected two dimensions \(B, L\), got shape \(8,\)"),
    "no token": (
        {**{name: t[:, :0] for name, t in TOKENS.items()}, "sentence_positions": torch.full((2, 1), -1)},
        ValueError,
        r"input_ids: expected at least one token per sequence, got shape \(2, 0\)",
    ),
    "too long": (
        {"input_ids": LONG, "attention_mask": None, "token_type_ids": None},
        ValueError,
        "input_ids: expected at most (max_position_embeddings = )?16 tokens.*, got sequences of 17",
    ),
    "type range": (
        {"token_type_ids": TYPES + 1},
        ValueError,
        r"token_type_ids: expected 0 to 1 \(type_vocab_size is 2\), g",
    ),
    "type shape": (
        {"token_type_ids": TYPES[:, 1:]},
        ValueError,
        r"token_type_ids: expected shape \(2, 8\), got shape \(2, 7\)",
    ),
    "position range": (
        {"position_ids": torch.arange(9, 17)[None]},
        ValueError,
        r"position_ids: expected 0 to 15 \(max_position_embeddings is 16\), got values from 9 to 16",
    ),
    "position type": ({"position_ids": [0, 1]}, TypeError, r"position_ids: expected a torch\.Tensor, got list"),
    "position shape": (
        {"position_ids": torch.arange(8)},
        ValueError,
        r"position_ids: expected shape \(2, 8\), got shape \(8,\)",
    ),
    "mask shape": (
        {"attention_mask": MASK[:, 1:]},
        ValueError,
        r"attention_mask: expected shape \(B, L\) = \(2, 8\), got shape \(2, 7\)",
    ),
    "mask values": (
        {"attention_mask": MASK * -10000},
        ValueError,
        "attention_mask: expected 1 for tokens and 0 for padding",
    ),
    "mask type": ({"attention_mask": [[1]]}, TypeError, r"attention_mask: expected a torch\.Tensor"),
}


def check_error(case, changes, error, message):
    inputs = {**case.inputs, **{name: t for name, t in changes.items() if name in TOKENS or name == "position_ids"}}
    inputs.update({name: t for name, t in changes.items() if name in case.extra or name in case.labels})
    with pytest.raises(error, match=message):
        built(case)(**inputs)


def built(case):
    """A model that is built once, because invalid inputs do not change it."""
    if id(case) not in BUILT:
        BUILT[id(case)] = case.build()
    return BUILT[id(case)]


@pytest.mark.parametrize("changes, error, message", BAD_INPUTS.values(), ids=BAD_INPUTS)
@every_model
def test_model_bad_inputs_raise(case, changes, error, message):
    check_error(case, changes, error, message)


@pytest.mark.parametrize(
    "context_ids, error, message",
    [
        (
            None,
            ValueError,
            r"context_ids: expected one id per sequence, 0 to 2, got None\. config\.context_id\(name\) returns ",
        ),
        (
            torch.tensor([0, 3]),
            ValueError,
            r"context_ids: expected 0 to 2 \(num_contexts is 3\), got values from 0 to 3",
        ),
        (torch.zeros(3).long(), ValueError, r"context_ids: expected shape \(2,\), got shape \(3,\)"),
        (IDS, ValueError, r"context_ids: expected shape \(2, 1\), got shape \(2, 8\)"),
        (["price", "price"], TypeError, r"context_ids: expected a torch\.Tensor, got list"),
    ],
)
@pytest.mark.parametrize("case", CONTEXTUAL.values(), ids=CONTEXTUAL)
def test_model_bad_context_ids_raise(case, context_ids, error, message):
    check_error(case, {"context_ids": context_ids}, error, message)


@pytest.mark.parametrize("config_class", [CGBertConfig, QACGBertConfig])
def test_config_unknown_context_name_raises(config_class):
    config = config_class(contexts=["price", "safety"])
    assert config.context_id("safety") == 1
    with pytest.raises(ValueError, match="context: expected one of 'price', 'safety', got 'food'"):
        config.context_id("food")


@pytest.mark.parametrize(
    "labels, error, message",
    [
        (
            torch.tensor([0, 3]),
            ValueError,
            r"labels: expected 0 to 2 \(num_labels is 3\), or -100 for rows to leave out, g",
        ),
        (torch.tensor([[0], [1]]), ValueError, r"labels: expected shape \(2,\), got shape \(2, 1\)"),
        (torch.tensor([0.0, 1.0]), ValueError, r"labels: expected shape \(2, 3\) for multi_label_classificat"),
        ([0, 1], TypeError, r"labels: expected a torch\.Tensor or None, got list"),
    ],
)
@pytest.mark.parametrize("name", [name for name in CASES if "Sequence" in name])
def test_classifier_bad_labels_raise(name, labels, error, message):
    check_error(CASES[name], {"labels": labels}, error, message)


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"start_positions": None}, ValueError, "start_positions: expected both or neither, got None besi"),
        ({"end_positions": None}, ValueError, "end_positions: expected both or neither, got None beside"),
        ({"end_positions": torch.tensor([1])}, ValueError, r"end_positions: expected shape \(2,\), got shape \(1,\)"),
        (
            {"start_positions": torch.ones(2)},
            TypeError,
            r"start_positions: expected an integer torch\.Tensor, got torch\.float32",
        ),
    ],
)
@pytest.mark.parametrize("name", ["BertForQuestionAnswering", "QueryAttention, linear"])
def test_answer_head_bad_positions_raise(name, changes, error, message):
    check_error(CASES[name], {**SPANS, **changes}, error, message)


BAD_SETTINGS = {
    "unknown": (
        TypeError,
        r"hiden_size: expected a field of \w+, got an unknown name\. Did you mean 'hidden_size'",
        {"hiden_size": 12},
    ),
    "another kind": (ValueError, "model_type: expected one of .*, got 'roberta'", {"model_type": "roberta"}),
    "heads": (
        ValueError,
        "hidden_size: expected a multiple of num_attention_heads = 5, got 12",
        {"num_attention_heads": 5},
    ),
    "layers": (ValueError, "num_hidden_layers: expected at least 1, got 0", {"num_hidden_layers": 0}),
    "size type": (TypeError, "vocab_size: expected an integer, got '31'", {"vocab_size": "31"}),
    "dropout": (
        ValueError,
        r"hidden_dropout_prob: expected a probability in \[0, 1\), got 1\.0",
        {"hidden_dropout_prob": 1.0},
    ),
    "attention dropout": (
        ValueError,
        r"attention_probs_dropout_prob: expected a probability in \[0, 1\), got -0\.1",
        {"attention_probs_dropout_prob": -0.1},
    ),
    "not finite": (ValueError, "layer_norm_eps: expected a finite number, got nan", {"layer_norm_eps": float("nan")}),
    "norms": (
        ValueError,
        "layer_norm_initializer: expected one of 'identity', 'normal', got 'ones'",
        {"layer_norm_initializer": "ones"},
    ),
    "pooler": (ValueError, "pooler: expected one of 'cls', 'attention', got 'mean'", {"pooler": "mean"}),
    "two poolers": (
        ValueError,
        "full_pooler: expected the value for pooler='cls', got True, which is pooler='attention'",
        {"pooler": "cls", "full_pooler": True},
    ),
    "activation": (ValueError, "hidden_act: expected one of 'gelu', 'gelu_10', 'g", {"hidden_act": "gulu"}),
    "problem": (ValueError, "problem_type: expected one of 'regression', 'single_la", {"problem_type": "ranking"}),
    "padding": (ValueError, "pad_token_id: expected less than vocab_size = 31, got 31", {"pad_token_id": 31}),
    "labels": (
        ValueError,
        "num_labels: expected 3 as in id2label, got 2",
        {"num_labels": 2, "id2label": {0: "a", 1: "b", 2: "c"}},
    ),
    "label ids": (
        ValueError,
        "label2id: expected 'b' for 1 as in id2label, got 'a'",
        {"id2label": {0: "a", 1: "b"}, "label2id": {"a": 1, "b": 0}},
    ),
    "positions": (
        ValueError,
        "position_embedding_type: expected 'absolute', got 'relative_key'",
        {"position_embedding_type": "relative_key"},
    ),
}
BAD_CONTEXT_SETTINGS = {
    "projection": (
        ValueError,
        "context_projection: expected one of 'hidden', 'head', got 'full'",
        {"context_projection": "full"},
    ),
    "flag": (TypeError, "lambda_bias: expected True or False, got 1", {"lambda_bias": 1}),
    "no contexts": (ValueError, "contexts: expected at least one name, go", {"contexts": []}),
    "zero contexts": (ValueError, "contexts: expected at least 1, got 0", {"contexts": 0}),
    "context twice": (
        ValueError,
        "contexts: expected distinct names, got 'a' more than once",
        {"contexts": ["a", "b", "a"]},
    ),
    "context name": (TypeError, "contexts: expected strings, got the name", {"contexts": ["a", 3]}),
    "one string": (TypeError, "contexts: expected a list of names or a ", {"contexts": "price"}),
    "num_contexts": (TypeError, "num_contexts: expected no value, since contex", {"num_contexts": 3}),
}


@pytest.mark.parametrize("error, message, settings", BAD_SETTINGS.values(), ids=BAD_SETTINGS)
@pytest.mark.parametrize("config_class", CONFIGS)
def test_config_bad_field_raises(config_class, error, message, settings):
    for make in (lambda fields: config_class(**fields), config_class.from_dict):
        with pytest.raises(error, match=message):
            make({**SIZES, **settings})


@pytest.mark.parametrize("error, message, settings", BAD_CONTEXT_SETTINGS.values(), ids=BAD_CONTEXT_SETTINGS)
@pytest.mark.parametrize("config_class", [CGBertConfig, QACGBertConfig])
def test_context_config_bad_field_raises(config_class, error, message, settings):
    with pytest.raises(error, match=message):
        config_class(**{**SIZES, **settings})


def test_config_bad_field_of_one_model_raises():
    for field, value, error in (("beta", "1", TypeError), ("gamma", float("inf"), ValueError)):
        with pytest.raises(error, match=f"{field}: expected .*, got"):
            QACGBertConfig(**{field: value})
    with pytest.raises(ValueError, match="attention_naming: expected one of 'released', 'compact', got 'old'"):
        QACGBertConfig(attention_naming="old")
    with pytest.raises(ValueError, match="gate_activation: expected one of 'sigmoid', 'tanh', got 'relu'"):
        CGBertConfig(gate_activation="relu")


@every_model
def test_model_of_config_made_invalid_later_raises(case):
    config = case.make_config()
    field, value = ("encoder", None) if case.is_head else ("pooler", "last")
    setattr(config, field, value)
    with pytest.raises(ValueError, match=f"{field}: "):
        case.model_class(config)


@every_model
def test_from_pretrained_damaged_checkpoint_raises(case, tmp_path):
    model = case.build()
    model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    state = {
        name: tensor.clone() for name, tensor in load_file(path).items()
    }  # copies, because the mapped file changes

    def check_load_error(match, **options):
        with pytest.raises(CheckpointError, match=match):
            case.model_class.from_pretrained(tmp_path, **options)

    path.write_bytes(whole[:-10])
    check_load_error(r"model\.safetensors: is truncated after \d+ of \d+ bytes, in \w+")
    path.write_bytes(whole[:9])
    check_load_error(r"model\.safetensors: is damaged")
    words = next(name for name in state if name.endswith("word_embeddings.weight"))
    save_file({**state, words: state[words][:30].clone()}, path)
    check_load_error(
        r"model\.safetensors: .*(word_embeddings\.weight: expected shape \(31|expected 30 as in .*word_emb)"
    )
    query = next(name for name in state if name.endswith("layer.1.attention.self.query.weight"))
    save_file({name: tensor for name, tensor in state.items() if name != query}, path)
    check_load_error(rf"model\.safetensors: expected \d+ \w+ tensors of {case.model}, .*without .*self\.query\.weight")
    save_file({**state, query: torch.full_like(state[query], float("nan"))}, path)
    check_load_error(r"model\.safetensors: .*self\.query\.weight: expected finite values")
    path.write_bytes(whole)
    wide = case.make_config(hidden_size=24)
    check_load_error(
        r"model\.safetensors: .*(word_embeddings\.weight: expected|expected 12 as in .*word_emb)", config=wide
    )
