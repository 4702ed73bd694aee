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

    def _sanitize_parameters(self, aspects: Sequence[str] | None = None, **unknown: Any) -> tuple[dict, dict, dict]:
        if unknown:
            name = next(iter(unknown))
            raise TypeError(f"{name}: expected only the parameter 'aspects', got an unknown parameter. Omit {name}.")
        return ({} if aspects is None else {"aspects": aspects}), {}, {}

    def preprocess(self, inputs: str, aspects: Sequence[str] | None = None) -> dict:
        """Returns a dictionary with the text as an example for each context.

        Args:
            inputs: the text.
            aspects: names of contexts of the model; None: all contexts.

        Raises:
            TypeError: the text is not a str.
            InputError: the text is empty or cannot be encoded as UTF-8, or `aspects` is invalid.
        """
        if not isinstance(inputs, str):
            raise TypeError(f"text: expected str, got {type(inputs).__name__}")
        if not inputs.strip():
            raise InputError("text: expected a sentence, got an empty text")
        check_text("text", inputs)
        return {"rows": [Example("", inputs, name, "", name, None, 0) for name in self._names(aspects)]}

    def _names(self, aspects: Sequence[str] | None) -> list[str]:
        if aspects is None:
            if self.contexts is None:
                raise InputError(
                    "aspects: expected a list of names, because the model's configuration has no contexts, got None."
                    " Pass aspects=[...]."
                )
            return list(self.contexts)
        if isinstance(aspects, str) or not aspects:
            raise InputError(f"aspects: expected at least one name in a list, got {aspects!r}.")
        if unknown := [name for name in aspects if self.contexts is not None and name not in self.contexts]:
            known = ", ".join(self.contexts or ())
            raise InputError(f"aspects: expected aspects of the model ({known}), got {unknown[0]!r}.")
        return list(aspects)

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
        """Returns, for each context of one text, a dictionary with aspect, label, score and probabilities.

        The score is the probability of the label.
        """
        labels, answers = self.model.config.id2label, []
        found = probabilities_of(np.array(model_outputs["logits"]), self.temperatures)
        for name, shares in zip(model_outputs["names"], found):
            probabilities = {labels[index]: float(share) for index, share in enumerate(shares)}
            label = labels[int(shares.argmax())]
            score = probabilities[label]
            answers.append({"aspect": name, "label": label, "score": score, "probabilities": probabilities})
        return answers


PIPELINE_REGISTRY.register_pipeline(
    ASPECT_SENTIMENT,
    pipeline_class=AspectSentimentPipeline,
    pt_model=AutoModelForSequenceClassification,
    type="text",
)
