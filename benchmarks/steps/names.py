"""Names of what end-to-end steps are run by and in which mode, as their rows hold them."""

TRAINING = "training"  # forward, loss and backward, without the optimizer's step
INFERENCE = "inference"
MODES = (TRAINING, INFERENCE)

RELEASED = "released"
EAGER = "eager padded"
COMPILED = "torch.compile of eager"
FUSED = "fused padded"
PACKED = "fused packed"
FOLDED = "fused packed, folded"
BERT = "plain BERT packed"
