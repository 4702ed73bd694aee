"""Layers and the code that they share. This package loads no configuration and reads no file.

Hidden states are (B, L, hidden), or (T, hidden) with a `Packing` for packed batches.
"""
