"""Every model class of the package with small sizes and inputs, for tests that all models have in common."""

from dataclasses import dataclass, field

import qacg_models
import torch
import transformers
from model_sizes import TINY
from parity import strengthen, weighted_sum

SIZES = {**TINY, "max_position_embeddings": 16, "type_vocab_size": 2}
SEP = 3
TOKENS = {
    "input_ids": torch.tensor([[2, 7, 30, SEP, 11, 9, 14, SEP], [2, 9, SEP, 5, 6, SEP, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 0, 0]]),
}
CONTEXT = {"context_ids": torch.tensor([2, 0])}
SENTENCES = {"sentence_positions": torch.tensor([[0, 4, -1], [0, 3, 5]])}
CLASSES = {"labels": torch.tensor([1, 2])}
SPANS = {"start_positions": torch.tensor([4, 3]), "end_positions": torch.tensor([5, 8])}


def checkpoint_activations(model, reentrant):
    """Enables gradient checkpointing, whose method has another name since transformers 5.23."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": reentrant})


@dataclass(frozen=True)
class Case:
    """A model class with its configuration and inputs.

    `extra` and `labels` are inputs in addition to TOKENS; `settings` are fields of its configuration in addition to
    SIZES, for a head those of the head; `implementations` begin with the default.
    """

    model: str
    config: str
    task: str
    auto: str
    extra: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    implementations: tuple = ("sdpa", "eager")

    @property
    def model_class(self):
        return getattr(qacg_models, self.model)

    @property
    def config_class(self):
        return getattr(qacg_models, self.config)

    @property
    def is_head(self):
        """Whether the model is a head over any encoder."""
        return "encoder" in self.config_class().to_dict()

    @property
    def inputs(self):
        return {name: t.clone() for name, t in {**TOKENS, **self.extra}.items()}

    def make_config(self, dropout=0.1, **settings):
        """Makes a configuration. For a head, settings in SIZES go to the encoder, and other settings to the head."""
        sizes = {**SIZES, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
        if not self.is_head:
            return self.config_class(**{**sizes, **self.settings, **settings})
        sizes.update({name: settings.pop(name) for name in list(settings) if name in sizes})
        own = "head_dropout" if self.model.startswith("Query") else "dropout"
        encoder = transformers.BertConfig(**sizes)
        return self.config_class(**{"encoder": encoder, own: dropout, **self.settings, **settings})

    def build(self, seed=1, **settings):
        """Makes a model in evaluation mode, with large weights."""
        torch.manual_seed(0)
        model = strengthen(self.model_class(self.make_config(**settings)), seed).eval()
        if hasattr(model, "encoder") and hasattr(model.encoder, "pos_emb"):
            model.encoder.pos_emb.reset_table()
        return model

    def scalar(self, model):
        """Runs a model and returns its loss; for a model without a loss, a weighted sum of its outputs."""
        out = model(**self.inputs, **self.labels)
        return out.loss if self.labels else weighted_sum(out.to_tuple())


_CONTEXTS = {"contexts": ["price", "safety", "general"]}
_SOFTMAX = ("sdpa", "fused", "eager")
_QUASI = ("fused", "eager")
_BASE = ("feature-extraction", "AutoModel")
_CLASSIFIER = ("text-classification", "AutoModelForSequenceClassification")
_ANSWERS = ("question-answering", "AutoModelForQuestionAnswering")
_QUERY = ("QueryAttentionForQuestionAnswering", "QueryAttentionConfig", *_ANSWERS, {})
_QUERY_LABELS = {**SPANS, "question_type": torch.tensor([5, 2])}


def _encoders(name, config, implementations, extra, settings):
    """The encoder and its sequence classifier."""
    classes = {"num_labels": 3, **settings}
    return {
        f"{name}Model": Case(f"{name}Model", config, *_BASE, extra, {}, settings, implementations),
        f"{name}ForSequenceClassification": Case(
            f"{name}ForSequenceClassification", config, *_CLASSIFIER, extra, CLASSES, classes, implementations
        ),
    }


CASES = {
    **_encoders("Bert", "PlainBertConfig", _SOFTMAX, {}, {}),
    "BertForQuestionAnswering": Case(
        "BertForQuestionAnswering", "PlainBertConfig", *_ANSWERS, {}, SPANS, implementations=_SOFTMAX
    ),
    **_encoders("AspectBert", "AspectBertConfig", _SOFTMAX, CONTEXT, _CONTEXTS),
    **_encoders("CGBert", "CGBertConfig", _SOFTMAX, CONTEXT, _CONTEXTS),
    **_encoders("QACGBert", "QACGBertConfig", _QUASI, CONTEXT, _CONTEXTS),
    "QueryAttention, linear": Case(*_QUERY, _QUERY_LABELS, {"sep_token_id": SEP}),
    "QueryAttention, convolutional": Case(
        *_QUERY, _QUERY_LABELS, {"sep_token_id": SEP, "head": "convolutional", "conv_channels": 7}
    ),
    "BertSum": Case(
        "BertSumForExtractiveSummarization",
        "BertSumConfig",
        "summarization",
        "AutoModel",
        SENTENCES,
        {"labels": torch.tensor([[1, 0, 0], [0, 1, -100]])},
        {"heads": 2, "ff_size": 20},
    ),
}
TASKS = {name: case for name, case in CASES.items() if case.labels}  # the other models are parts of these
