"""The models built on quasi-attention, and the aspect-based sentiment application that uses them."""

import importlib

from qacg_models.models.auto import register_with

_HOMES = {
    "AspectPrediction": "qacg_models.inference.aspect_sentiment",
    "AspectSentiment": "qacg_models.inference.aspect_sentiment",
    "BertForQuestionAnswering": "qacg_models.models.bert",
    "BertForSequenceClassification": "qacg_models.models.bert",
    "BertModel": "qacg_models.models.bert",
    "CGBertConfig": "qacg_models.configs.cg_bert",
    "CGBertForSequenceClassification": "qacg_models.models.cg_bert",
    "CGBertModel": "qacg_models.models.cg_bert",
    "CGBertModelOutput": "qacg_models.models.outputs",
    "CGBertSequenceClassifierOutput": "qacg_models.models.outputs",
    "PlainBertConfig": "qacg_models.configs.bert",
    "QACGBertConfig": "qacg_models.configs.qacg_bert",
    "QACGBertModel": "qacg_models.models.qacg_bert",
    "QACGBertForSequenceClassification": "qacg_models.models.qacg_bert",
    "QACGBertModelOutput": "qacg_models.models.outputs",
    "QACGBertSequenceClassifierOutput": "qacg_models.models.outputs",
    "attention_relevance": "qacg_models.attribution.relevance",
    "embedding_gradient": "qacg_models.attribution.sensitivity",
    "gradient_relevance": "qacg_models.attribution.relevance",
    "layerwise_relevance": "qacg_models.attribution.relevance",
    "register_auto_classes": "qacg_models.models.auto",
    "token_sensitivity": "qacg_models.attribution.sensitivity",
    "MultiHeadedAttention": "qacg_models.modules.multi_headed_attention",
    "empty_layer_cache": "qacg_models.modules.multi_headed_attention",
    "PositionwiseFeedForward": "qacg_models.modules.bertsum_layers",
    "PositionalEncoding": "qacg_models.modules.bertsum_layers",
    "TransformerEncoderLayer": "qacg_models.modules.bertsum_layers",
    "TransformerInterEncoder": "qacg_models.modules.bertsum_layers",
    "TransformerInterEncoderOutput": "qacg_models.modules.bertsum_layers",
    "BertSumConfig": "qacg_models.configs.bertsum",
    "BertSumForExtractiveSummarization": "qacg_models.models.bertsum",
    "BertSumOutput": "qacg_models.models.bertsum",
    "ExtractiveSummarizer": "qacg_models.inference.summarization",
    "Summary": "qacg_models.inference.summarization",
    "QueryAttentionConfig": "qacg_models.configs.query_attention",
    "QueryAttentionForQuestionAnswering": "qacg_models.models.query_attention",
    "QueryAttentionOutput": "qacg_models.models.query_attention",
    "QuestionAnswerer": "qacg_models.inference.question_answering",
    "Answer": "qacg_models.inference.question_answering",
}

__all__ = list(_HOMES)


# transformers takes seconds to import; a name is fetched when it is first used.
def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    register_with(name)
    return found


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
