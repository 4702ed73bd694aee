"""Re-exports `fold_context`, which merges the context weights of a QACG-BERT or CG-BERT for inference."""

from qacg_models.layers.context import fold_context

__all__ = ["fold_context"]
