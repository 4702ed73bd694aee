"""Names of the tensors of checkpoints, copied by hand from published files and code.

Tests compare `qacg_models.checkpoints.fitting` with these tables.
"""

import torch

# Our names; those of a converted TensorFlow file have no prefix `bert.`, and gamma and beta in LayerNorm.
EMBEDDINGS = """
bert.embeddings.word_embeddings.weight
bert.embeddings.position_embeddings.weight
bert.embeddings.token_type_embeddings.weight
bert.embeddings.LayerNorm.weight
bert.embeddings.LayerNorm.bias
bert.pooler.dense.weight
bert.pooler.dense.bias
"""
# Modules of a layer, each with a weight and a bias.
LAYER = """
attention.self.query
attention.self.key
attention.self.value
attention.output.dense
attention.output.LayerNorm
intermediate.dense
output.dense
output.LayerNorm
"""
# Our name of an attention layer, and its name in the other published naming.
COMPACT = """
query                   Wq
key                     Wk
value                   Wv
context_for_q           Wcq
context_for_k           Wck
lambda_q_query_layer    lambda_Q
lambda_q_context_layer  lambda_Qc
lambda_k_key_layer      lambda_K
lambda_k_context_layer  lambda_Kc
"""


def backbone_names(layers):
    """Lists the tensors of a BERT without a head, by their names in this package."""
    names = [f"{module}.{kind}" for module in LAYER.split() for kind in ("weight", "bias")]
    return EMBEDDINGS.split() + [f"bert.encoder.layer.{i}.{name}" for i in range(layers) for name in names]


def backbone(state):
    """The tensors of `state` that a plain BERT has, by the names in this package: embeddings, layers, pooler."""
    names = set(backbone_names(99))
    return {name: tensor for name, tensor in state.items() if name in names}


def as_converted(state):
    """Renames tensors as in the file that the released code starts from, whose names have no prefix `bert.`."""
    return {name.removeprefix("bert."): tensor for name, tensor in as_released(state, gate=False).items()}


def as_released(state, wrapped=False, gate=True):
    """Renames tensors as in a released state dict, with gamma and beta, and adds a gate that its code does not use."""
    norm = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    found = {}
    for name, tensor in state.items():
        for ours, theirs in norm.items():
            name = name.replace(ours, theirs)
        found[name] = tensor
    if gate:
        hidden = state["bert.pooler.dense.bias"].shape[0]
        shapes = {"0.weight": (32, hidden), "0.bias": (32,), "3.weight": (1, 32), "3.bias": (1,)}
        for n, (name, shape) in enumerate(shapes.items()):
            generator = torch.Generator().manual_seed(n)
            found[f"bert.pooler.attention_gate.{name}"] = torch.randn(shape, generator=generator)
    return {f"module.{name}" if wrapped else name: tensor for name, tensor in found.items()}


def as_compact(state):
    table = dict(line.split() for line in COMPACT.strip().split("\n"))
    found = {}
    for name, tensor in state.items():
        before, inside, after = name.partition(".attention.self.")
        layer, _, kind = after.partition(".")
        found[f"{before}{inside}{table[layer]}.{kind}" if inside else name] = tensor
    return found
