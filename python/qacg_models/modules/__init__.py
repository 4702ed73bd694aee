"""Layers, and code that several layers use. Modules of this package read no files.

Hidden states are (B, L, hidden), or (T, hidden) with a `Packing` for packed batches. B is the number of sequences and L
their padded length. T is the number of tokens of a packed batch, which has no padding. H is the number of heads and D
their size. N is the number of questions. A question is a text with one context, such as an aspect; questions may share
a text.
"""
