"""Layers, and what they share: no configuration is loaded here and no file read.

Hidden states are (B, L, hidden), or packed, (T, hidden) with a `Packing`.
"""
