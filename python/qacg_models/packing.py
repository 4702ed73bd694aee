"""Packed batches: tokens of all sequences one after another, without padding. Re-exports."""

from qacg_models.data.collators import PackingCollator
from qacg_models.modules.packing import Packing, pack_visible, packing_of

__all__ = ["Packing", "PackingCollator", "pack_visible", "packing_of"]
