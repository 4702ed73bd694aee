"""`qacg convert`: converts checkpoints to the file format of this package or of another program.

The command reads checkpoints of this package, and published ones of BERT, QACG-BERT, CG-BERT and BertSum.

| subject | module |
|---|---|
| the model class for a checkpoint | `model_choice.py` |
| models with the tensor names of BERT, and the output folder | `convert.py` |
| heads over any encoder | `convert_head.py` |
"""
