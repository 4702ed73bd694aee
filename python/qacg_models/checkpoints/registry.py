"""The models of this package that the doctor can fill, and which of them a checkpoint is for."""

from __future__ import annotations

import qacg_models
from qacg_models.checkpoints.fields import variant
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.checkpoints.names import part_of
from qacg_models.checkpoints.source import Source
from qacg_models.errors import CheckpointError

DEFAULT_MODEL = "QACGBertForSequenceClassification"


def models() -> dict[str, type[CheckpointLoading]]:
    """Every model class by name."""
    found = (getattr(qacg_models, name) for name in qacg_models.__all__)
    return {
        candidate.__name__: candidate
        for candidate in found
        if isinstance(candidate, type) and issubclass(candidate, CheckpointLoading)
    }


def model_types() -> tuple[str, ...]:
    """The model types of their configurations."""
    return tuple(dict.fromkeys(model.config_class.model_type for model in models().values()))


def choose_model(source: Source, name: str | None, *, plain: bool) -> type[CheckpointLoading]:
    """The model class for a checkpoint.

    Args:
        name: of a class, if somebody has chosen; None takes that of our own configuration, else what the
            tensors tell.
        plain: for a checkpoint without context, whether it stays a BERT (with the head that it has) or becomes
            the backbone of DEFAULT_MODEL.

    Raises:
        CheckpointError: no such model; or the tensors fit several that compute different things.
    """
    known = models()
    fields = source.fields or {}
    if name is None and fields.get("model_type") in model_types():
        name = next(iter(fields.get("architectures") or [None]))
    if name is None:
        name = _told_by_tensors(source, plain)
    if name not in known:
        raise CheckpointError(f"model: got {name!r}, wanted one of {', '.join(known)}")
    return known[name]


def _told_by_tensors(source: Source, plain: bool) -> str:
    if any(part_of(name) == "context" for name in source.tensors):
        told = variant(source)
        # The released CG-BERT and both published texts have the same tensors in the same shapes.
        if (told.get("context_projection"), told.get("lambda_bias")) == ("hidden", True):
            return DEFAULT_MODEL
        raise CheckpointError(
            f"{source.path}: its context projections and gates may be those of QACG-BERT or of CG-BERT, which compute "
            "different things; name the model"
        )
    if not plain:
        return DEFAULT_MODEL
    if "qa_outputs.weight" in source.tensors:
        return "BertForQuestionAnswering"
    return "BertForSequenceClassification" if "classifier.weight" in source.tensors else "BertModel"
