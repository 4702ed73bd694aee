"""`qacg convert`: converts checkpoints to the file format of this package or of another program.

It reads checkpoints of this package, BERT, QACG-BERT, CG-BERT and BertSum.

| subject | module |
|---|---|
| the model class for a checkpoint | `model_choice.py` |
| models with the tensor names of BERT, and the output folder | `convert.py` |
| heads over any encoder | `convert_head.py` |
"""
