"""The card beside a saved model."""

import yaml
from encoders import bert_config
from qacg_models import (
    BertSumConfig,
    BertSumForExtractiveSummarization,
    QueryAttentionConfig,
    QueryAttentionForQuestionAnswering,
)


def test_a_card_says_what_is_known_and_is_never_overwritten(tmp_path):
    model = QueryAttentionForQuestionAnswering(QueryAttentionConfig(encoder=bert_config(), num_question_types=4))
    model.save_pretrained(tmp_path)
    card = (tmp_path / "README.md").read_text()
    front, _, text = card.removeprefix("---\n").partition("---\n")
    assert yaml.safe_load(front) == {
        "library_name": "transformers",
        "pipeline_tag": "question-answering",
        "tags": ["query_attention"],
    }
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in text
    assert "| `num_question_types` | `4` |" in text and "vocabulary of 31" in text
    (tmp_path / "README.md").write_text("mine")
    model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"


def test_only_the_main_process_writes_a_card(tmp_path):
    model = BertSumForExtractiveSummarization(BertSumConfig(encoder=bert_config(), heads=2, ff_size=9))
    model.save_pretrained(tmp_path / "a", is_main_process=False)
    assert not (tmp_path / "a" / "README.md").exists()
    model.save_pretrained(tmp_path / "b")
    assert "pipeline_tag: summarization" in (tmp_path / "b" / "README.md").read_text()
