"""Fused softmax attention plus lambda-gated sigmoid quasi-attention."""
