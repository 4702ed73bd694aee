"""Export of a trained model to one file that other programs run without this package.

| question | module |
|---|---|
| the formats and their packages | `formats.py` |
| tracing the model | `traced.py` |
| writing and running a file | `onnx_file.py`, `torch_file.py` |
| comparing a file with the model, and on which examples | `check.py`, `check_rows.py` |
| writing, checking and then publishing a file | `write.py` |
"""
