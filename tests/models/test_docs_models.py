"""The reference page of the models: its table of systems and its examples, run in order."""

import ast
import re
from pathlib import Path

import pytest
import qacg_models
import torch
from docs_pages import page
from encoders import bert_config, build
from qacg_models import BertSumConfig, CGBertConfig, PlainBertConfig, QACGBertConfig, QueryAttentionConfig
from qacg_models.data.tokenization import train_tokenizer
from transformers import BertModel

ROOT = Path(__file__).resolve().parents[2]
PAGE = page("reference/models")
SECTION = PAGE.partition("\n## Differences")[0]
EXAMPLES = dict(re.findall(r"```python\n# (\d+)\.[^\n]*\n(.*?)```", SECTION, re.DOTALL))
DIFFERENCES = PAGE.partition("\n## Differences from the documents")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in SECTION.splitlines() if line.startswith("| ")][1:]

CONFIGS = (PlainBertConfig, CGBertConfig, QACGBertConfig, BertSumConfig, QueryAttentionConfig)

TEXT = "The river rose in the night. A bridge was closed at once. Schools stay open today."


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The variables after each example, by its number."""
    tokenizer = train_tokenizer([TEXT] * 3, vocab_size=200)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 256}
    bert = build(BertModel, bert_config(**sizes))
    folder = tmp_path_factory.mktemp("bert")
    bert.save_pretrained(folder)
    batch = tokenizer(["the river rose", "a bridge was closed at once"], padding=True, return_tensors="pt")
    torch.manual_seed(0)
    found = {"torch": torch, "text": TEXT, "tokenizer": tokenizer, "bert": bert, "folder": str(folder), "batch": batch}
    after = {}
    for number, example in EXAMPLES.items():
        statements = [line for line in example.splitlines() if line.strip()]
        assert len(statements) <= 3, (number, statements)
        exec(example, found)
        after[number] = dict(found)
    return after


def test_docs_model_table_names_exist():
    assert [row[0] for row in ROWS] == ["QACG-BERT", "CG-BERT", "BERT", "BertSum", "Query Attention"]
    used = []
    for _, classes, tests, examples in ROWS:
        for name in re.findall(r"`(\w+)`", classes):
            assert name in qacg_models.__all__
        assert all((ROOT / "tests" / "models" / f"{name}.py").is_file() for name in re.findall(r"`(\w+)`", tests))
        used += examples.split(", ")
    assert used == [str(i + 1) for i in range(len(used))]
    assert list(EXAMPLES) == [str(i + 1) for i in range(len(used))]


def test_docs_differences_name_fields_and_other_values():
    rows = [line for line in DIFFERENCES.splitlines() if line.startswith("| ")][1:]
    known = [config() for config in CONFIGS]
    for row in rows:
        fields = re.findall(r'`(\w+)=("\w+"|\w+)`', row.split("|")[4])
        assert fields, row
        for name, text in fields:
            value = ast.literal_eval(text)
            takers = [config for config in known if name in config.to_dict()]
            assert takers, name
            for config in takers:
                changed = type(config)(**{name: value})
                assert getattr(changed, name) == value, name
            assert any(getattr(config, name) != value for config in takers), name


def test_docs_example_of_qacg_bert(names):
    model, found = names["1"]["model"], names["2"]
    assert names["1"]["logits"].shape == (2, 3) and model.config.contexts == ["price", "safety"]
    words = found["bert"].embeddings.word_embeddings.weight
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, words)
    padding = found["batch"]["attention_mask"] == 0
    assert found["sensitivity"].shape == padding.shape and bool(padding.any())
    assert not found["sensitivity"][padding].any() and bool((found["sensitivity"][~padding] > 0).all())
    highest = names["1"]["logits"].max(-1).values
    torch.testing.assert_close(found["relevance"].sum(-1), highest, rtol=1e-3, atol=1e-3)


def test_docs_example_of_cg_bert(names):
    model = names["3"]["model"]
    assert names["3"]["logits"].shape == (2, 3) and model.config.gate_activation == "tanh"


def test_docs_example_of_bert(names):
    loss = names["4"]["loss"]
    loss.backward()
    assert bool(loss.isfinite()) and names["4"]["model"].classifier.weight.shape == (3, 16)


@pytest.mark.parametrize("number", ["5", "8"])
def test_docs_example_of_answers(names, number):
    answer = names[number]["answer"]
    assert answer.text and TEXT[answer.start : answer.end] == answer.text


def test_docs_example_of_cached_attention(names):
    assert names["6"]["step"].shape == (2, 1, 512) and names["6"]["cache"]["self_keys"].shape == (2, 8, 1, 64)


def test_docs_example_of_bertsum(names):
    summary = names["7"]["summary"]
    assert len(summary.sentences) == 2 and all(s in TEXT for s in summary.sentences)
    assert all(0 < score < 1 for score in summary.scores) and summary.unread == 0
