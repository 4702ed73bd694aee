"""The models, subclasses of transformers' PreTrainedModel.

| content | module |
|---|---|
| the table of models, with their names in commands and configurations | `auto.py` |
| one kind of model each | `bert.py`, `cg_bert.py`, `qacg_bert.py`, `bertsum.py`, `query_attention.py` |
| base classes of CG-BERT and QACG-BERT | `context_bert.py` |
| base classes of all encoders and their classifiers | `pretrained.py` |
| base class of models with a head over any encoder | `encoder_head.py` |
| the model card | `model_card.py` |
"""
