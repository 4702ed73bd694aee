"""Layers, and code that several layers use. Modules of this package read no files.

Hidden states are (B, L, hidden), or (T, hidden) with a `Packing` for packed batches.
"""
