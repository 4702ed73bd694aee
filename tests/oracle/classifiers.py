"""Outputs of the sequence classifiers BERT, Aspect-BERT, CG-BERT and QACG-BERT by their formulas."""

from oracle import aspect_bert, bert, cg_bert, qacg_bert
from oracle.pieces import classification_loss, linear


def outputs(weights, config, batch):
    """Named outputs for a padded batch: logits, loss, pooled, and lists over layers of hidden states, maps and gates.

    Args:
        weights: by checkpoint name.
        config: the configuration of the model, of which sizes and variants are read.
        batch: input_ids, attention_mask, token_type_ids, context_ids (not for BERT) and labels.
    """
    inputs = [weights, batch["input_ids"], batch["attention_mask"].bool(), batch["token_type_ids"]]
    sizes = {"layers": config.num_hidden_layers, "heads": config.num_attention_heads, "pooler": config.pooler}
    if config.model_type == "plain_bert":
        found = bert.encode(*inputs, **sizes)
        found["logits"] = linear(weights, "classifier", found["pooled"])
    elif config.model_type == "aspect_bert":
        inputs.append(batch["context_ids"])
        found = aspect_bert.classify(*inputs, **sizes, from_layer=config.context_from_layer)
    else:
        inputs.append(batch["context_ids"])
        sizes["head_projection"] = config.context_projection == "head"
        if config.model_type == "cg_bert":
            found = cg_bert.classify(*inputs, **sizes, gate=config.gate_activation)
        else:
            scalars = {"alpha": config.quasi_scale, "beta": config.beta, "gamma": config.gamma}
            scalars["bias"] = config.quasi_bias
            found = qacg_bert.classify(*inputs, **sizes, **scalars)
    found["loss"] = classification_loss(found["logits"], batch["labels"])
    return found
