"""Aspect-BERT by its formulas: one sequence, one head, one query at a time, in the dtype of the weights."""

from oracle.bert import self_attention
from oracle.pieces import below, blocks_after_attention, embed, linear, pool, together


def classify(w, ids, visible, types, contexts, *, layers, heads, pooler, from_layer, eps=1e-12):
    """The classifier without dropout.

    ids, types: (B, L) integers. visible: (B, L) booleans. contexts: (B) integers.
    from_layer: the layer that reads the hidden states plus the embedding of the context.
    Returns a dict: logits, pooled, and lists over layers hidden (embeddings first) and a, batched.
    """
    results = []
    for one_ids, one_visible, one_types, context in zip(ids, visible, types, contexts):
        x = embed(below(w, "bert.embeddings."), one_ids, one_types, eps)
        out = {"hidden": [x], "a": []}
        for n in range(layers):
            layer = below(w, f"bert.encoder.layer.{n}.")
            if n == from_layer:
                x = x + w["bert.context_embeddings.weight"][int(context)]
            attended, a = self_attention(below(layer, "attention.self."), x, one_visible, heads)
            x = blocks_after_attention(layer, attended, x, eps)
            out["hidden"].append(x)
            out["a"].append(a)
        out["pooled"] = pool(below(w, "bert.pooler."), x, one_visible, pooler)
        out["logits"] = linear(w, "classifier", out["pooled"])
        results.append(out)
    return together(results)
