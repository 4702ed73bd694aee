from .attribution import (
    attention_relevance as attention_relevance,
    gradient_relevance as gradient_relevance,
    layerwise_relevance as layerwise_relevance,
    token_sensitivity as token_sensitivity,
)
from .layers.bertsum import (
    MultiHeadedAttention as MultiHeadedAttention,
    PositionalEncoding as PositionalEncoding,
    PositionwiseFeedForward as PositionwiseFeedForward,
    TransformerEncoderLayer as TransformerEncoderLayer,
    TransformerInterEncoder as TransformerInterEncoder,
    empty_layer_cache as empty_layer_cache,
)
from .layers.context import fold_context as fold_context
from .models.aspect_bert import (
    AspectBertConfig as AspectBertConfig,
    AspectBertForSequenceClassification as AspectBertForSequenceClassification,
    AspectBertModel as AspectBertModel,
)
from .models.auto import register_auto_classes as register_auto_classes
from .models.bert import (
    BertForQuestionAnswering as BertForQuestionAnswering,
    BertForSequenceClassification as BertForSequenceClassification,
    BertModel as BertModel,
    PlainBertConfig as PlainBertConfig,
)
from .models.bertsum import (
    BertSumConfig as BertSumConfig,
    BertSumForExtractiveSummarization as BertSumForExtractiveSummarization,
    BertSumOutput as BertSumOutput,
)
from .models.cg_bert import (
    CGBertConfig as CGBertConfig,
    CGBertForSequenceClassification as CGBertForSequenceClassification,
    CGBertModel as CGBertModel,
    CGBertModelOutput as CGBertModelOutput,
    CGBertSequenceClassifierOutput as CGBertSequenceClassifierOutput,
)
from .models.qacg_bert import (
    QACGBertConfig as QACGBertConfig,
    QACGBertForSequenceClassification as QACGBertForSequenceClassification,
    QACGBertModel as QACGBertModel,
    QACGBertModelOutput as QACGBertModelOutput,
    QACGBertSequenceClassifierOutput as QACGBertSequenceClassifierOutput,
)
from .models.query_attention import (
    QueryAttentionConfig as QueryAttentionConfig,
    QueryAttentionForQuestionAnswering as QueryAttentionForQuestionAnswering,
    QueryAttentionOutput as QueryAttentionOutput,
)
from .sentiment.encoding import PackingCollator as PackingCollator
from .sentiment.engines import BatchPredictor as BatchPredictor
from .sentiment.estimators import (
    AspectSentiment as AspectSentiment,
    AspectSentimentClassifier as AspectSentimentClassifier,
)
from .sentiment.predictor import AspectPrediction as AspectPrediction
from .tasks import (
    Answer as Answer,
    ExtractiveSummarizer as ExtractiveSummarizer,
    QuestionAnswerer as QuestionAnswerer,
    Summary as Summary,
)
