"""Folding the context path of a QACG-BERT or CG-BERT for inference: public names."""

from qacg_models.modules.context_fold import ContextFold, fold_context, folding_pays, mix_context, project_folded

__all__ = ["ContextFold", "fold_context", "folding_pays", "mix_context", "project_folded"]
