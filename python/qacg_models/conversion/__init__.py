"""`qacg convert`: converts checkpoints to the file format of this package or of another program.

The command reads checkpoints of this package, and published checkpoints of BERT and of the models of this package.

| subject | module |
|---|---|
| the model class for a checkpoint | `model_choice.py` |
| models with the tensor names of BERT, and the output folder | `convert.py` |
| heads over any encoder | `convert_head.py` |
"""
