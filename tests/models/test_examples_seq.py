"""The README's examples of BertSum and Query Attention, run as they stand there."""

import pytest
import torch
from encoders import bert_config
from qacg_models.tokenization import train_tokenizer
from transformers import BertModel

TEXT = "The river rose in the night. A bridge was closed at once. Schools stay open today."

ATTENTION = """
from qacg_models import MultiHeadedAttention, empty_layer_cache
attention, cache = MultiHeadedAttention(head_count=8, model_dim=512, dropout=0.1), empty_layer_cache()
step = attention(None, None, torch.randn(2, 1, 512), layer_cache=cache, type="self")
"""

BERTSUM = """
from qacg_models import BertSumConfig, BertSumForExtractiveSummarization, ExtractiveSummarizer
model = BertSumForExtractiveSummarization.from_encoder(bert, BertSumConfig(inter_layers=2))
summary = ExtractiveSummarizer(model, tokenizer).summarize(text, count=2)
"""

QUERY_ATTENTION = """
from qacg_models import QueryAttentionConfig, QueryAttentionForQuestionAnswering, QuestionAnswerer
model = QueryAttentionForQuestionAnswering.from_encoder(bert, QueryAttentionConfig(head="convolutional"))
answer = QuestionAnswerer(model, tokenizer).answer("What was closed?", text)
"""


@pytest.fixture
def names():
    """What the examples find: a text, an encoder and its tokenizer."""
    tokenizer = train_tokenizer([TEXT] * 3, vocab_size=200)
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 256}
    return {"torch": torch, "text": TEXT, "tokenizer": tokenizer, "bert": BertModel(bert_config(**sizes)).eval()}


def run(example, names):
    assert len(example.strip().splitlines()) == 3
    exec(example, names)
    return names


def test_attention_with_a_cache(names):
    run(ATTENTION, names)
    assert names["step"].shape == (2, 1, 512) and names["cache"]["self_keys"].shape == (2, 8, 1, 64)


def test_bertsum(names):
    summary = run(BERTSUM, names)["summary"]
    assert len(summary.sentences) == 2 and all(s in TEXT for s in summary.sentences)
    assert all(0 < score < 1 for score in summary.scores) and summary.unread == 0


def test_query_attention(names):
    answer = run(QUERY_ATTENTION, names)["answer"]
    assert answer.text and TEXT[answer.start : answer.end] == answer.text
