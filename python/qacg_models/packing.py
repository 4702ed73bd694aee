"""Packed batches: tokens of all sequences one after another, without padding. Re-exports."""

from qacg_models.layers.batch import Packing, pack_visible, packing_of
from qacg_models.sentiment.encoding import PackingCollator

__all__ = ["Packing", "PackingCollator", "pack_visible", "packing_of"]
