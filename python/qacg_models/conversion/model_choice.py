"""Selection of the model class for a checkpoint."""

from pathlib import Path

from qacg_models.checkpoints.config_fields import variant
from qacg_models.checkpoints.files import read_json
from qacg_models.checkpoints.head_loading import HeadCheckpointLoading
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.checkpoints.source import Source, config_file
from qacg_models.checkpoints.tensor_names import part_of
from qacg_models.errors import CheckpointError
from qacg_models.models.auto import MODELS, load_class

DEFAULT_MODEL = "QACGBertForSequenceClassification"


def choose_head(weights: Path, name: str | None, config: Path | str | None) -> type[HeadCheckpointLoading] | None:
    """Returns the class of a model with a head over any encoder; None if the checkpoint is for another class.

    Args:
        weights: the file of weights, or the index of shards.
        name: name of a class; None: the model type in the configuration selects the class.
        config: the configuration file or its folder; None: the file beside the weights.

    Raises:
        CheckpointError: `config` names no configuration file, or the configuration file is no JSON object.
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
    """Returns the model class for a checkpoint.

    Args:
        source: the checkpoint.
        name: name of a class; None: the class in a configuration of this package, otherwise inferred from the tensors.
        plain: selects the class that is inferred if the checkpoint has no context tensors. True: the BERT class with
            the checkpoint's head, if any; False: DEFAULT_MODEL.

    Raises:
        CheckpointError: `name` is unknown or names a model with a head over any encoder, or the tensors fit several
            classes.
    """
    fields = source.fields or {}
    encoders = [entry for entry in MODELS if entry.tensors == "bert"]
    if name is None and any(entry.model_type == fields.get("model_type") for entry in encoders):
        name = next(iter(fields.get("architectures") or [None]))
    if name is None:
        name = _inferred_model(source, plain)
    for entry in encoders:
        if entry.name == name:
            return load_class(entry)
    raise CheckpointError(f"model: expected one of {', '.join(entry.name for entry in MODELS)}, got {name!r}")


def _inferred_model(source: Source, plain: bool) -> str:
    if any(part_of(name) == "context" for name in source.tensors):
        if not any("context_layer." in name for name in source.tensors):
            return "AspectBertForSequenceClassification" if "classifier.weight" in source.tensors else "AspectBertModel"
        fields = variant(source)
        # CG-BERT and QACG-BERT with equal values of these fields have tensors of the same names and shapes. Of the
        # published models, only the released QACG-BERT has the values below.
        if (fields.get("context_projection"), fields.get("lambda_bias")) == ("hidden", True):
            return DEFAULT_MODEL
        raise CheckpointError(
            f"{source.path}: model: expected the name of a class, since the tensors fit both QACG-BERT and CG-BERT, "
            "got none. Set model (qacg convert --model) to that name."
        )
    if not plain:
        return DEFAULT_MODEL
    if "qa_outputs.weight" in source.tensors:
        return "BertForQuestionAnswering"
    return "BertForSequenceClassification" if "classifier.weight" in source.tensors else "BertModel"
