"""The sequence classifiers BERT, Aspect-BERT, CG-BERT and QACG-BERT by their formulas, one sequence at a time.

Nothing of this project is imported but the formulas that its oracles share. Weights come as a dict from checkpoint name
to tensor, in float64 for a reference. Differentiable by autograd.
"""

import torch
from oracle import bert, cg_bert, qacg_bert
from oracle.pieces import below, blocks_after_attention, cross_entropy, embed, linear, pool, together

EPS = 1e-12


def outputs(weights, config, batch):
    """Named outputs for a padded batch: those of `encode`, logits, and the loss if the batch has labels."""
    found = encode(weights, config, batch)
    found["logits"] = linear(weights, "classifier", found["pooled"])
    if "labels" in batch:
        found["loss"] = cross_entropy(found["logits"], batch["labels"])
    return found


def encode(weights, config, batch, head_mask=None):
    """The encoder without dropout: pooled, and lists over layers of hidden states (embeddings first), maps and gates.

    Args:
        weights: by checkpoint name; without a pooler, there is no pooled output.
        config: the configuration of the model, of which sizes and variants are read.
        batch: input_ids, attention_mask, token_type_ids, and context_ids (not for BERT).
        head_mask: None or (layers, H), by which the maps of BERT are multiplied.
    """
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids", "context_ids") if name in batch]
    return together(
        [encode_one(weights, config, head_mask, *one) for one in zip(*(batch[name] for name in names), strict=True)]
    )


def encode_one(w, config, head_mask, ids, visible, types, context=None):
    """ids, visible, types: (L). context: the id of a context. Returns a dict for one sequence."""
    visible = visible.bool()
    x = embed(below(w, "bert.embeddings."), ids, types, EPS)
    ec = None if context is None else w["bert.context_embeddings.weight"][int(context)].expand_as(x)
    out = {"hidden": [x]}
    for n in range(config.num_hidden_layers):
        layer = below(w, f"bert.encoder.layer.{n}.")
        attention = below(layer, "attention.self.")
        if config.model_type in ("cg_bert", "qacg_bert"):
            c = linear(w, f"bert.encoder.context_layer.{n}", torch.cat([ec, x], -1)) + ec
            attended, found = with_context(attention, config, x, c, visible)
        else:
            if config.model_type == "aspect_bert" and n == config.context_from_layer:
                x = x + ec
            kept = None if head_mask is None else head_mask[n]
            attended, a = bert.self_attention(attention, x, visible, config.num_attention_heads, kept)
            found = {"a": a}
        x = blocks_after_attention(layer, attended, x, EPS)
        for name, value in {"hidden": x, **found}.items():
            out.setdefault(name, []).append(value)
    if "bert.pooler.dense.weight" in w:
        out["pooled"] = pool(below(w, "bert.pooler."), x, visible, config.pooler)
    return out


def with_context(attention, config, x, c, visible):
    options = {"heads": config.num_attention_heads, "head_projection": config.context_projection == "head"}
    if config.model_type == "cg_bert":
        attended, *found = cg_bert.self_attention(attention, x, c, visible, **options, gate=config.gate_activation)
        return attended, dict(zip(("a", "lq", "lk"), found))
    options |= {"alpha": config.quasi_scale, "bias": config.quasi_bias, "beta": config.beta, "gamma": config.gamma}
    attended, *found = qacg_bert.self_attention(attention, x, c, visible, **options)
    return attended, dict(zip(("a", "p", "g", "lam"), found))
