"""Loading checkpoints of several programs, with a report about every tensor.

No missing tensor is initialised silently. A "head over any encoder" is BertSum or Query Attention: its encoder can be
BERT or any other text encoder without contexts.

| content | module |
|---|---|
| tensor names in checkpoints of other programs | `tensor_names.py`; for heads over any encoder `head_names.py` |
| reading files, and errors for damaged ones | `files.py` |
| a checkpoint that has been read | `source.py` |
| the configuration, and its comparison with the shapes of the tensors | `config_fields.py` |
| which tensor is loaded where, and which are missing | `fitting.py`; for heads `head_fitting.py` |
| the report about every tensor | `load_report.py` |
| what a user has to permit explicitly | `permissions.py` |
| `from_pretrained` | `loading.py`; for heads `head_loading.py`; shared code in `reported_loading.py` |
| weights that a Python package contains | `packaged.py` |
| a repository of the Hugging Face hub | `hub.py` |
"""
