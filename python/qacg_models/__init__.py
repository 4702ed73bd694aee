"""Models with quasi-attention and without, for aspect-based sentiment, question answering and summaries."""

import importlib
from typing import TYPE_CHECKING

from qacg_models.models.auto import register_with
from qacg_models.registration import register_lazily

# Importing transformers takes seconds, so each name is imported on first use. Type checkers read these imports; a test
# compares them with the table below.
if TYPE_CHECKING:
    from qacg_models.attribution.relevance import (
        attention_relevance as attention_relevance,
        gradient_relevance as gradient_relevance,
        layerwise_relevance as layerwise_relevance,
    )
    from qacg_models.attribution.sensitivity import (
        embedding_gradient as embedding_gradient,
        token_sensitivity as token_sensitivity,
    )
    from qacg_models.configs.aspect_bert import AspectBertConfig as AspectBertConfig
    from qacg_models.configs.bert import PlainBertConfig as PlainBertConfig
    from qacg_models.configs.bertsum import BertSumConfig as BertSumConfig
    from qacg_models.configs.cg_bert import CGBertConfig as CGBertConfig
    from qacg_models.configs.qacg_bert import QACGBertConfig as QACGBertConfig
    from qacg_models.configs.query_attention import QueryAttentionConfig as QueryAttentionConfig
    from qacg_models.estimators.aspect_sentiment import AspectSentiment as AspectSentiment
    from qacg_models.estimators.classifier import AspectSentimentClassifier as AspectSentimentClassifier
    from qacg_models.inference.aspect_predictor import AspectPrediction as AspectPrediction
    from qacg_models.inference.question_answering import (
        Answer as Answer,
        QuestionAnswerer as QuestionAnswerer,
    )
    from qacg_models.inference.summarization import (
        ExtractiveSummarizer as ExtractiveSummarizer,
        Summary as Summary,
    )
    from qacg_models.models.aspect_bert import (
        AspectBertForSequenceClassification as AspectBertForSequenceClassification,
        AspectBertModel as AspectBertModel,
        AspectBertModelOutput as AspectBertModelOutput,
        AspectBertSequenceClassifierOutput as AspectBertSequenceClassifierOutput,
    )
    from qacg_models.models.auto import register_auto_classes as register_auto_classes
    from qacg_models.models.bert import (
        BertForQuestionAnswering as BertForQuestionAnswering,
        BertForSequenceClassification as BertForSequenceClassification,
        BertModel as BertModel,
    )
    from qacg_models.models.bertsum import (
        BertSumForExtractiveSummarization as BertSumForExtractiveSummarization,
        BertSumOutput as BertSumOutput,
    )
    from qacg_models.models.cg_bert import (
        CGBertForSequenceClassification as CGBertForSequenceClassification,
        CGBertModel as CGBertModel,
        CGBertModelOutput as CGBertModelOutput,
        CGBertSequenceClassifierOutput as CGBertSequenceClassifierOutput,
    )
    from qacg_models.models.qacg_bert import (
        QACGBertForSequenceClassification as QACGBertForSequenceClassification,
        QACGBertModel as QACGBertModel,
        QACGBertModelOutput as QACGBertModelOutput,
        QACGBertSequenceClassifierOutput as QACGBertSequenceClassifierOutput,
    )
    from qacg_models.models.query_attention import (
        QueryAttentionForQuestionAnswering as QueryAttentionForQuestionAnswering,
        QueryAttentionOutput as QueryAttentionOutput,
    )
    from qacg_models.modules.bertsum_layers import (
        PositionalEncoding as PositionalEncoding,
        PositionwiseFeedForward as PositionwiseFeedForward,
        TransformerEncoderLayer as TransformerEncoderLayer,
        TransformerInterEncoder as TransformerInterEncoder,
        TransformerInterEncoderOutput as TransformerInterEncoderOutput,
    )
    from qacg_models.modules.multi_headed_attention import (
        MultiHeadedAttention as MultiHeadedAttention,
        empty_layer_cache as empty_layer_cache,
    )

_HOMES = {
    "AspectBertConfig": "qacg_models.configs.aspect_bert",
    "AspectBertForSequenceClassification": "qacg_models.models.aspect_bert",
    "AspectBertModel": "qacg_models.models.aspect_bert",
    "AspectBertModelOutput": "qacg_models.models.aspect_bert",
    "AspectBertSequenceClassifierOutput": "qacg_models.models.aspect_bert",
    "AspectPrediction": "qacg_models.inference.aspect_predictor",
    "AspectSentiment": "qacg_models.estimators.aspect_sentiment",
    "AspectSentimentClassifier": "qacg_models.estimators.classifier",
    "BertForQuestionAnswering": "qacg_models.models.bert",
    "BertForSequenceClassification": "qacg_models.models.bert",
    "BertModel": "qacg_models.models.bert",
    "CGBertConfig": "qacg_models.configs.cg_bert",
    "CGBertForSequenceClassification": "qacg_models.models.cg_bert",
    "CGBertModel": "qacg_models.models.cg_bert",
    "CGBertModelOutput": "qacg_models.models.cg_bert",
    "CGBertSequenceClassifierOutput": "qacg_models.models.cg_bert",
    "PlainBertConfig": "qacg_models.configs.bert",
    "QACGBertConfig": "qacg_models.configs.qacg_bert",
    "QACGBertModel": "qacg_models.models.qacg_bert",
    "QACGBertForSequenceClassification": "qacg_models.models.qacg_bert",
    "QACGBertModelOutput": "qacg_models.models.qacg_bert",
    "QACGBertSequenceClassifierOutput": "qacg_models.models.qacg_bert",
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

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from qacg_models.utils.quiet import quiet

        with quiet("torchao", "torch.utils._pytree"):  # transformers imports torchao, which prints warnings
            value = getattr(importlib.import_module(_HOMES[name]), name)
        register_with(name)
        return value


register_lazily()


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
