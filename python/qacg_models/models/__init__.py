"""The models as transformers knows them.

| question | its home |
|---|---|
| which models there are, and what each is called elsewhere | `auto.py` |
| one model | `bert.py`, `cg_bert.py`, `qacg_bert.py`, `bertsum.py`, `query_attention.py` |
| what encoders share | `pretrained.py`, `outputs.py` |
| what heads over any encoder share | `encoder_head.py` |
| folding the context path for inference | `context_folding.py` |
"""
