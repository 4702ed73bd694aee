"""Layers, and code that several layers use. Modules of this package read no files.

Hidden states are (B, L, hidden), or (T, hidden) with a `Packing` for packed batches. B is the number of sequences and L
their padded length. T is the number of tokens of a packed batch, which has no padding. H is the number of heads and D
their size. If several sequences are the same text with different contexts, N is the number of sequences and B that of
the texts.

| content | module |
|---|---|
| inputs: checks, and the batch that an encoder processes | `batch.py` |
| packed batches | `packing.py` |
| embeddings, dropout, poolers | `embeddings.py` |
| attention, with every mask | `attention.py`; for other models of transformers `transformers_attention.py` |
| layers and encoders, where a context enters | `encoder.py`, `context.py` |
| layers over sentences | `bertsum.py` |
| losses | `losses.py` |
"""
