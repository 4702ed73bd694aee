"""A transformers pipeline for the task "aspect-sentiment".

After the first import of a name from `qacg_models`, `transformers.pipeline("aspect-sentiment", model=FOLDER)` finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from qacg_models.errors import InputError
from qacg_models.models.base import ASPECT_SENTIMENT
from qacg_models.sentiment.encoding import check_text
from qacg_models.sentiment.example import Example
from qacg_models.sentiment.trained_model import predict_logits, probabilities_of


class AspectSentimentPipeline(Pipeline):
    """Predicts the sentiment of each aspect of a text.

    A call takes a text or a list of texts, and `aspects`: a list of contexts of the model. A context is an aspect, or
    "target - aspect" for a model with targets. `aspects=None` selects all contexts, and raises InputError if the
    contexts are neither in `config.contexts` nor in `config.task_specific_params`. For each text, the call returns a
    list of {"aspect", "label", "score", "probabilities"}, one for each context.

    `qacg train` and `AspectSentiment.save_pretrained` store contexts, maximum length and temperatures in
    `config.task_specific_params`. With these, the probabilities equal those of `AspectSentiment` up to rounding.
    """

    _load_processor = False
    _load_image_processor = False
    _load_feature_extractor = False
    _load_tokenizer = True

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        config = self.model.config
        declared = (getattr(config, "task_specific_params", None) or {}).get(ASPECT_SENTIMENT, {})
        self.contexts: Sequence[str] | None = getattr(config, "contexts", None) or declared.get("contexts")
        self.max_length = min(
            declared.get("max_length", config.max_position_embeddings), config.max_position_embeddings
        )
        self.temperatures = tuple(declared.get("temperatures", (1.0,)))

    def _sanitize_parameters(self, aspects: Sequence[str] | None = None) -> tuple[dict, dict, dict]:
        return ({} if aspects is None else {"aspects": aspects}), {}, {}

    def preprocess(self, inputs: str, aspects: Sequence[str] | None = None) -> dict:
        """Returns {"rows": an example of the text for each context}; raises TypeError or InputError for bad input."""
        if not isinstance(inputs, str):
            raise TypeError(f"text: expected str, got {type(inputs).__name__}")
        if not inputs.strip():
            raise InputError("text: expected a sentence, got an empty text")
        check_text("text", inputs)
        known = self.contexts
        if aspects is None and known is None:
            raise InputError(
                "aspects: expected a list of names, because the model's configuration has no contexts, got None. Pass"
                " aspects=[...]."
            )
        names = known if aspects is None else aspects
        if isinstance(names, str) or not names:
            raise InputError(f"aspects: expected at least one name in a list, got {names!r}.")
        if known is not None and (unknown := [name for name in names if name not in known]):
            raise InputError(f"aspects: expected aspects of the model ({', '.join(known)}), got {unknown[0]!r}.")
        return {"rows": [Example("", inputs, name, "", name, None, 0) for name in names]}

    def _forward(self, model_inputs: dict) -> dict:
        """Returns the names of contexts and their logits; for a batch of texts, a list of each."""
        rows = model_inputs["rows"]
        texts = rows if isinstance(rows[0], list) else [rows]
        every = [row for text in texts for row in text]
        logits = predict_logits(self.model, self.tokenizer, every, self.max_length)
        parts = np.split(logits, np.cumsum([len(text) for text in texts])[:-1])
        found = {
            "names": [[row.context for row in text] for text in texts],
            "logits": [part.tolist() for part in parts],
        }
        return found if texts is rows else {name: values[0] for name, values in found.items()}

    def postprocess(self, model_outputs: dict) -> list[dict]:
        """Returns, for each context of one text, aspect, label, score (of the label) and probabilities."""
        labels, answers = self.model.config.id2label, []
        found = probabilities_of(np.array(model_outputs["logits"]), self.temperatures)
        for name, shares in zip(model_outputs["names"], found.tolist()):
            probabilities = {labels[index]: share for index, share in enumerate(shares)}
            label = max(probabilities, key=probabilities.__getitem__)
            answers.append(
                {"aspect": name, "label": label, "score": probabilities[label], "probabilities": probabilities}
            )
        return answers


PIPELINE_REGISTRY.register_pipeline(
    ASPECT_SENTIMENT,
    pipeline_class=AspectSentimentPipeline,
    pt_model=AutoModelForSequenceClassification,
    type="text",
)
