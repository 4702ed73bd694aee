"""The models, as transformers models.

| question | module |
|---|---|
| which models there are, and their names in commands and configurations | `auto.py` |
| one model | `bert.py`, `cg_bert.py`, `qacg_bert.py`, `bertsum.py`, `query_attention.py` |
| what CG-BERT and QACG-BERT share | `context_bert.py` |
| what all encoders and their classifiers share | `pretrained.py` |
| what heads over any encoder share | `encoder_head.py` |
| the model card | `model_card.py` |
"""
