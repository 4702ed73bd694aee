"""`qacg convert`: converts any checkpoint to a folder of this package, or of other programs.

| question | module |
|---|---|
| the model class for a checkpoint | `model_choice.py` |
| models with the tensor names of BERT, and the output folder | `convert.py` |
| heads over any encoder | `convert_head.py` |
"""
