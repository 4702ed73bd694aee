"""`qacg convert`: a checkpoint of any kind as a folder of ours, or as one that other programs read.

| question | its home |
|---|---|
| which model a checkpoint is for | `model_choice.py` |
| models with BERT's names of tensors, and the folder that is written | `convert.py` |
| heads over any encoder | `convert_head.py` |
"""
