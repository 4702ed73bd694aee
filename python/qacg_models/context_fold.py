"""Folding the context path of a QACG-BERT or CG-BERT for inference: public names."""

from qacg_models.modules.context_fold import fold_context

__all__ = ["fold_context"]
