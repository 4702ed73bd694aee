"""Measurements of the operators against what PyTorch offers; see README.md in this folder for the rules."""
