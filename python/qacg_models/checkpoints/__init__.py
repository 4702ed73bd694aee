"""Loading checkpoints of several programs, with a report about every tensor.

No missing tensor is initialised silently. A "head over any encoder" is BertSum or Query Attention: its encoder can be
BERT or any other text encoder without contexts.

| content | module |
|---|---|
| `from_pretrained`, and the configuration for a checkpoint | `loading.py` |
| finding and reading files, and errors for damaged ones | `files.py` |
| tensor names in checkpoints of other programs | `names.py` |
| which tensor is loaded where, conversion of shapes, and what a user has to permit | `fitting.py` |
| the report about every tensor | `report.py` |
| weights that a Python package contains | `packaged.py` |
"""
