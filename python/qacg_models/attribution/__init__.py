"""What each token of an input means for a verdict: gradients, and layer-wise relevance."""
