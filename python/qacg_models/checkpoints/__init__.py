"""Loading checkpoints of several programs, with a report about every tensor: no missing one is initialised silently.

A "head over any encoder" is BertSum or Query Attention: its encoder can be BERT or any other text encoder without
contexts. `loading.py` has `from_pretrained` and the configuration for a checkpoint, `files.py` finds and reads files,
and `fitting.py` has the names of tensors in other programs, conversions of shapes, permissions and the report.
"""
