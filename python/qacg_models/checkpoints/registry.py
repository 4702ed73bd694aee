"""The models of this package that the doctor can fill."""

from __future__ import annotations

import qacg_models
from qacg_models.checkpoints.loading import CheckpointLoading
from qacg_models.errors import CheckpointError


def models() -> dict[str, type[CheckpointLoading]]:
    """Every model class by name."""
    found = (getattr(qacg_models, name) for name in qacg_models.__all__)
    return {
        found_class.__name__: found_class
        for found_class in found
        if isinstance(found_class, type) and issubclass(found_class, CheckpointLoading)
    }


def model_class(name: str) -> type[CheckpointLoading]:
    """The model class of this name; CheckpointError lists the known ones."""
    known = models()
    if name not in known:
        raise CheckpointError(f"model: got {name!r}, wanted one of {', '.join(known)}")
    return known[name]


def model_types() -> tuple[str, ...]:
    """The model types of their configurations."""
    return tuple(dict.fromkeys(found.config_class.model_type for found in models().values()))
