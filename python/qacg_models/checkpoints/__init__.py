"""Checkpoints of any origin fitted to our models: every tensor accounted for, and none filled in silently.

| question | its home |
|---|---|
| what a tensor is called elsewhere | `tensor_names.py` |
| how a file is read, and what a damaged one is told | `files.py` |
| what a configuration says, and whether the tensors agree | `config_fields.py` |
| which tensor goes where, in which shape, and what is missing | `fitting.py` |
| `from_pretrained` | `loading.py`; what it shares with that of heads: `reported_loading.py` |
| what loading has to do with that of transformers | `transformers_hooks.py` |
| the same for heads over any encoder, BertSum's published names among them | `head_*.py` |
| a repository of the hub | `hub.py` |
"""
