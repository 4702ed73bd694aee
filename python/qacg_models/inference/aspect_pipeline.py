"""A transformers pipeline for the task "aspect-sentiment".

After the first import of a name from `qacg_models`, `transformers.pipeline("aspect-sentiment", model=FOLDER)` finds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification
from transformers.pipelines import PIPELINE_REGISTRY
from transformers.pipelines.base import ChunkPipeline

from qacg_models.data import Example
from qacg_models.data.tokenization import check_text, encode_examples
from qacg_models.errors import InputError
from qacg_models.inference.trained_model import probabilities_of
from qacg_models.models.base import ASPECT_SENTIMENT

# Entries of a batch that are arguments of the model. `_forward` copies the other entries to its output, because
# the pipeline and `postprocess` read them.
_INPUTS = ("input_ids", "token_type_ids", "attention_mask", "context_ids")


class AspectSentimentPipeline(ChunkPipeline):
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
        contexts = getattr(config, "contexts", None)
        self.contexts: Sequence[str] | None = contexts or declared.get("contexts")
        self.by_id = contexts is not None
        self.max_length = min(
            declared.get("max_length", config.max_position_embeddings), config.max_position_embeddings
        )
        self.temperatures = tuple(declared.get("temperatures", (1.0,)))

    def _sanitize_parameters(self, aspects: Sequence[str] | None = None, **unknown: Any) -> tuple[dict, dict, dict]:
        if unknown:
            name = next(iter(unknown))
            raise TypeError(f"{name}: expected only the parameter 'aspects', got an unknown parameter. Omit {name}.")
        return ({} if aspects is None else {"aspects": aspects}), {}, {}

    def preprocess(self, inputs: str, aspects: Sequence[str] | None = None) -> Iterator[dict]:
        """Yields the model inputs of each pair of the text and a context.

        Args:
            inputs: the text.
            aspects: names of contexts of the model; None: all contexts.

        Yields:
            A dictionary with `aspect` (the context), `is_last`, and tensors for the model: (1, L) tokens and,
            if the configuration has contexts, a (1,) context id.

        Raises:
            TypeError: the text is not a str.
            InputError: the text is empty or cannot be encoded as UTF-8, or `aspects` is invalid.
        """
        if not isinstance(inputs, str):
            raise TypeError(f"text: expected str, got {type(inputs).__name__}")
        if not inputs.strip():
            raise InputError("text: expected a sentence, got an empty text")
        check_text("text", inputs)
        names = self._names(aspects)
        rows = [Example("", inputs, name, "", name, None, 0) for name in names]
        features, _ = encode_examples(
            rows,
            self.tokenizer,
            self.contexts if self.by_id else None,
            self.max_length,
            getattr(self.model.config, "context_standalone", False),
        )
        for place, (name, feature) in enumerate(zip(names, features)):
            tensors = {key: torch.tensor([value]) for key, value in feature.items()}
            mask = torch.ones_like(tensors["input_ids"])
            yield {"aspect": name, "is_last": place == len(names) - 1, **tensors, "attention_mask": mask}

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
        inputs = {name: value for name, value in model_inputs.items() if name in _INPUTS}
        others = {name: value for name, value in model_inputs.items() if name not in _INPUTS}
        return {**others, "logits": self.model(**inputs).logits}

    def postprocess(self, model_outputs: list[dict]) -> list[dict]:
        """Returns, for each context of one text, a dictionary with aspect, label, score and probabilities.

        The score is the probability of the label.
        """
        answers, names = [], self.model.config.id2label
        for output in model_outputs:
            logits = output["logits"].double().cpu().numpy().reshape(1, -1)
            shares = probabilities_of(logits, self.temperatures)[0]
            best = int(np.argmax(shares))
            aspect = output["aspect"] if isinstance(output["aspect"], str) else output["aspect"][0]
            answers.append(
                {
                    "aspect": aspect,
                    "label": names[best],
                    "score": float(shares[best]),
                    "probabilities": {names[index]: float(share) for index, share in enumerate(shares)},
                }
            )
        return answers


PIPELINE_REGISTRY.register_pipeline(
    ASPECT_SENTIMENT,
    pipeline_class=AspectSentimentPipeline,
    pt_model=AutoModelForSequenceClassification,
    type="text",
)
