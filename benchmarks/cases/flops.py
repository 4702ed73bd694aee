"""The FLOP convention: how much work a case is, whoever does it.

Counted are the matrix products of L x S x D that the mathematics needs, at 2 FLOP a cell and feature, not what a
provider happens to run: a stored map is not computed again in its backward, and a tiled forward keeps both branches'
outputs and runs 8.
"""

from benchmarks.cases.case import BACKWARD, FORWARD, FORWARD_BACKWARD, TRAINING_FORWARD

# FLOP per (batch, head, query, key, feature), by pass.
QUASI_ATTENTION = {FORWARD: 6, TRAINING_FORWARD: 6, BACKWARD: 16, FORWARD_BACKWARD: 22}
SOFTMAX_MAP = {FORWARD: 4, TRAINING_FORWARD: 4, BACKWARD: 10, FORWARD_BACKWARD: 14}

CONVENTION = (
    "flops_per_cell x B x H x L x S x D; quasi-attention 6 forward (three products, the whole-row form; "
    "a tiled forward runs 8) and 16 backward (eight products), softmax attention on one map 4 and 10; "
    "the same count for every provider, whatever it stores or computes again"
)
