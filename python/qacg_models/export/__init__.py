"""A trained model as one file that programs without this package run.

| question | its home |
|---|---|
| which files there are, and what each needs | `formats.py` |
| the model as a graph of tensors | `traced.py` |
| writing and running a file | `onnx_file.py`, `torch_file.py`; in int8 `onnx_file.py` |
| whether a file answers as the model does, and on which rows | `check.py`, `check_rows.py` |
| a file written, checked, and only then published | `write.py` |
"""
