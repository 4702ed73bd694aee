"""Attribution of a predicted logit to tokens: gradient sensitivity and layer-wise relevance."""
