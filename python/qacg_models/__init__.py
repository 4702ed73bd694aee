"""The models built on quasi-attention, and the aspect-based sentiment application that uses them."""

import importlib

_HOMES = {
    "AspectPrediction": "aspect_sentiment",
    "AspectSentiment": "aspect_sentiment",
    "BertForQuestionAnswering": "bert",
    "BertForSequenceClassification": "bert",
    "BertModel": "bert",
    "CGBertConfig": "configuration",
    "CGBertForSequenceClassification": "cg_bert",
    "CGBertModel": "cg_bert",
    "CGBertModelOutput": "outputs",
    "CGBertSequenceClassifierOutput": "outputs",
    "PlainBertConfig": "configuration",
    "QACGBertConfig": "configuration",
    "QACGBertModel": "qacg_bert",
    "QACGBertForSequenceClassification": "qacg_bert",
    "QACGBertModelOutput": "outputs",
    "QACGBertSequenceClassifierOutput": "outputs",
    "attention_relevance": "relevance",
    "embedding_gradient": "sensitivity",
    "gradient_relevance": "relevance",
    "layerwise_relevance": "relevance",
    "register_auto_classes": "auto",
    "token_sensitivity": "sensitivity",
    "MultiHeadedAttention": "multi_headed_attention",
    "empty_layer_cache": "multi_headed_attention",
    "PositionwiseFeedForward": "bertsum_layers",
    "PositionalEncoding": "bertsum_layers",
    "TransformerEncoderLayer": "bertsum_layers",
    "TransformerInterEncoder": "bertsum_layers",
    "TransformerInterEncoderOutput": "bertsum_layers",
    "BertSumConfig": "bertsum",
    "BertSumForExtractiveSummarization": "bertsum",
    "BertSumOutput": "bertsum",
    "ExtractiveSummarizer": "summarization",
    "Summary": "summarization",
    "QueryAttentionConfig": "query_attention",
    "QueryAttentionForQuestionAnswering": "query_attention",
    "QueryAttentionOutput": "query_attention",
    "QuestionAnswerer": "question_answering",
    "Answer": "question_answering",
}

__all__ = list(_HOMES)


# transformers takes seconds to import; a name is fetched when it is first used.
def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
