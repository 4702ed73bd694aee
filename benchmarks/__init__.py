"""Measures the operators against PyTorch's own attention; README.md in this folder has the rules."""
