"""Folding the context path of a QACG-BERT or CG-BERT for inference. Public; see `models/context_folding.py`."""

from qacg_models.models.context_folding import fold_context
from qacg_models.modules.context_fold import ContextFold, folding_pays, mix_context, project_folded

__all__ = ["ContextFold", "fold_context", "folding_pays", "mix_context", "project_folded"]
