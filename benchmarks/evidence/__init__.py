"""A study of quasi-attention: trains every model in the same way with several seeds, and compares the metrics."""
