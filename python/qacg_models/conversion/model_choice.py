"""Which model of this package a checkpoint is for."""

from __future__ import annotations

from pathlib import Path

from qacg_models.checkpoints.config_fields import variant
from qacg_models.checkpoints.files import read_json
from qacg_models.checkpoints.head_loading import HeadCheckpointLoading
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.checkpoints.source import Source, config_file
from qacg_models.checkpoints.tensor_names import part_of
from qacg_models.configs.encoders import ENCODER_CONFIGS
from qacg_models.errors import CheckpointError
from qacg_models.models.auto import MODELS, load_class

DEFAULT_MODEL = "QACGBertForSequenceClassification"


def choose_head(weights: Path, name: str | None, config: Path | str | None) -> type[HeadCheckpointLoading] | None:
    """The class of a model with a head over any encoder: the one called `name`, or that of our own configuration.

    None: it is a model of another kind.
    """
    heads = [entry for entry in MODELS if entry.tensors == "head"]
    if name is not None:
        chosen = [entry for entry in heads if entry.name == name]
    else:
        path = config_file(weights, config)
        kind = None if path is None else read_json(path).get("model_type")
        chosen = [entry for entry in heads if entry.model_type == kind]
    return load_class(chosen[0]) if chosen else None


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
    fields = source.fields or {}
    if name is None and fields.get("model_type") in ENCODER_CONFIGS:
        name = next(iter(fields.get("architectures") or [None]))
    if name is None:
        name = _told_by_tensors(source, plain)
    for entry in MODELS:
        if entry.name == name and entry.tensors == "bert":
            return load_class(entry)
    raise CheckpointError(f"model: got {name!r}, wanted one of {', '.join(entry.name for entry in MODELS)}")


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
