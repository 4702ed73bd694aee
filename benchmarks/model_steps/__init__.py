"""Names of the implementations and modes of whole model steps, as in records."""

TRAINING = "training"  # forward, loss and backward, without the optimizer
INFERENCE = "inference"
MODES = (TRAINING, INFERENCE)

RELEASED = "released"
EAGER = "eager padded"
COMPILED = "torch.compile of eager"
FUSED = "fused padded"
PACKED = "fused packed"
FOLDED = "fused packed, folded"
BERT = "plain BERT packed"
