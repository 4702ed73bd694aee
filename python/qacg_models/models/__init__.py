"""The models, subclasses of transformers' PreTrainedModel, each with its configuration.

| content | module |
|---|---|
| the table of models, with their names in commands and configurations | `auto.py` |
| encoders with their classifiers, one encoder per module | `bert.py`, `aspect_bert.py`, `cg_bert.py`, `qacg_bert.py` |
| heads over any encoder, one head per module | `bertsum.py`, `query_attention.py` |
| base classes of Aspect-BERT, CG-BERT and QACG-BERT | `context_bert.py` |
| base classes of models with a head over any encoder | `encoder_head.py` |
| base classes of all configurations | `configuration.py` |
| base classes of all encoders and their classifiers; arguments of `forward`; model cards | `base.py` |
"""
