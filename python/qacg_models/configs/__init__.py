"""Configurations of the models: their fields, each checked with an error that names it.

| question | its home |
|---|---|
| the most that a size may be | `limits.py` |
| fields that all encoders here have | `encoder.py` |
| fields of encoders that are told a context | `context.py`, `gated_context.py` |
| fields of one encoder | `bert.py`, `cg_bert.py`, `qacg_bert.py` |
| fields of a head over any encoder | `encoder_head.py`, `bertsum.py`, `query_attention.py` |
| which encoders of this package there are, by model type | `encoders.py` |
"""
