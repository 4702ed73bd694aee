"""Configurations of the models. The fields of each model are checked; an error names the field.

| subject | module |
|---|---|
| the largest allowed value of a size | `limits.py` |
| checks of a single field | `field_checks.py` |
| fields that all encoders share | `encoder.py` |
| fields of encoders with a context | `context.py` |
| fields of one encoder | `bert.py`, `aspect_bert.py`, `cg_bert.py`, `qacg_bert.py` |
| fields of a head over any encoder | `encoder_head.py`, `bertsum.py`, `query_attention.py` |
| the encoders of this package, by model type | `encoders.py` |
"""
