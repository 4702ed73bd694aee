"""Names and orientation of the tensors of checkpoints, copied by hand from published files and code.

Tests compare `qacg_models.checkpoints.tensor_names` with these tables.
"""

import torch

# Our name, TensorFlow's name (a star: the matrix is transposed there), and the name in a converted TensorFlow file.
EMBEDDINGS = """
bert.embeddings.word_embeddings.weight bert/embeddings/word_embeddings embeddings.word_embeddings.weight
bert.embeddings.position_embeddings.weight bert/embeddings/position_embeddings embeddings.position_embeddings.weight
bert.embeddings.token_type_embeddings.weight bert/embeddings/token_type_embeddings \
    embeddings.token_type_embeddings.weight
bert.embeddings.LayerNorm.weight bert/embeddings/LayerNorm/gamma embeddings.LayerNorm.gamma
bert.embeddings.LayerNorm.bias bert/embeddings/LayerNorm/beta embeddings.LayerNorm.beta
"""
LAYER = """
attention.self.query.weight         attention/self/query/kernel*        attention.self.query.weight
attention.self.query.bias           attention/self/query/bias           attention.self.query.bias
attention.self.key.weight           attention/self/key/kernel*          attention.self.key.weight
attention.self.key.bias             attention/self/key/bias             attention.self.key.bias
attention.self.value.weight         attention/self/value/kernel*        attention.self.value.weight
attention.self.value.bias           attention/self/value/bias           attention.self.value.bias
attention.output.dense.weight       attention/output/dense/kernel*      attention.output.dense.weight
attention.output.dense.bias         attention/output/dense/bias         attention.output.dense.bias
attention.output.LayerNorm.weight   attention/output/LayerNorm/gamma    attention.output.LayerNorm.gamma
attention.output.LayerNorm.bias     attention/output/LayerNorm/beta     attention.output.LayerNorm.beta
intermediate.dense.weight           intermediate/dense/kernel*          intermediate.dense.weight
intermediate.dense.bias             intermediate/dense/bias             intermediate.dense.bias
output.dense.weight                 output/dense/kernel*                output.dense.weight
output.dense.bias                   output/dense/bias                   output.dense.bias
output.LayerNorm.weight             output/LayerNorm/gamma              output.LayerNorm.gamma
output.LayerNorm.bias               output/LayerNorm/beta               output.LayerNorm.beta
"""
POOLER = """
bert.pooler.dense.weight            bert/pooler/dense/kernel*           pooler.dense.weight
bert.pooler.dense.bias              bert/pooler/dense/bias              pooler.dense.bias
"""
CLASSIFIER = """
classifier.weight                   output_weights                      classifier.weight
classifier.bias                     output_bias                         classifier.bias
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


def rows(layers):
    """Lists all tensors of a BERT with a classifier.

    Each row has the name in this package, the name in TensorFlow, whether TensorFlow stores the tensor transposed, and
    the name in a converted TensorFlow file.
    """
    table = [line.split() for line in (EMBEDDINGS + POOLER + CLASSIFIER).split("\n") if line]
    for i in range(layers):
        for line in LAYER.strip().split("\n"):
            ours, path, converted = line.split()
            table.append(
                [
                    f"bert.encoder.layer.{i}.{ours}",
                    f"bert/encoder/layer_{i}/{path}",
                    f"encoder.layer.{i}.{converted}",
                ]
            )
    return [(ours, path.rstrip("*"), path.endswith("*"), converted) for ours, path, converted in table]


def backbone(state):
    """The tensors of `state` that a plain BERT has, by the names in this package: embeddings, layers, pooler."""
    names = {ours for ours, *_ in rows(99) if not ours.startswith("classifier")}
    return {name: tensor for name, tensor in state.items() if name in names}


def as_tensorflow(state):
    table = {ours: (path, transposed) for ours, path, transposed, _ in rows(99)}
    found = {}
    for name, tensor in state.items():
        path, transposed = table[name]
        found[path] = tensor.t().contiguous() if transposed else tensor
    return found


def as_converted(state):
    """Renames tensors as in the file that the released code starts from, whose names have no prefix `bert.`."""
    table = {ours: converted for ours, _, _, converted in rows(99)}
    return {table[name]: tensor for name, tensor in state.items()}


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
