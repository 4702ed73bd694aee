"""QACG-BERT with the operations of the released code, on the parameters of our model: the baseline of `end_to_end`.

Each operation of the released code is one operation here. The context is expanded to every token and concatenated with
the hidden states before each context layer. Each of the five projections is copied. Both matrices of masked
scores, both maps, lambda and lambda G are separate tensors. A, P, lambda G and lambda of every layer are cloned and
kept. LayerNorm and GELU consist of elementary operations. Batches are padded to their longest sequence, as in the
released training loop.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

if TYPE_CHECKING:
    from qacg_models import QACGBertForSequenceClassification

MASKED = -10000.0  # added to the score of a masked key


class ReleasedQACGBert(nn.Module):
    """The released forward on the parameters of `model`, which both modules then share."""

    def __init__(self, model: QACGBertForSequenceClassification):
        super().__init__()
        released = {
            "pooler": "cls",
            "context_projection": "hidden",
            "hidden_act": "gelu",
            "attention_naming": "released",
            "lambda_bias": True,
        }
        for field, value in released.items():
            if getattr(model.config, field) != value:
                raise ValueError(f"{field}: expected {value!r}, got {getattr(model.config, field)!r}")
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        context_ids: Tensor,
        labels: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Returns the loss (with labels), the logits (B, C), and lists over layers of A, P, lambda G and lambda.

        Ids and mask are (B, L), contexts and labels (B); A, P and lambda G are (B, H, L, L), lambda (B, H, L, 1).
        """
        model = self.model
        mask = (1.0 - attention_mask.unsqueeze(1).unsqueeze(2).float()) * MASKED
        hidden = _embed(model.bert.embeddings, input_ids, token_type_ids)
        context = model.bert.context_embeddings(context_ids)
        context = torch.stack([context] * input_ids.shape[1], dim=1)
        kept: tuple[list[Tensor], ...] = ([], [], [], [])
        encoder = model.bert.encoder
        for layer, context_layer in zip(encoder.layer, encoder.context_layer):
            mixed = context_layer(torch.cat([context, hidden], dim=-1)) + context
            attended, *maps = _attend(layer.attention.self, hidden, mixed, mask)
            attended = _residual(layer.attention.output, attended, hidden)
            hidden = _residual(layer.output, _gelu(layer.intermediate.dense(attended)), attended)
            for collected, this_layer in zip(kept, maps):
                collected.append(this_layer.clone())
        pooled = model.dropout(torch.tanh(model.bert.pooler.dense(hidden[:, 0])))
        logits = model.classifier(pooled)
        if labels is None:
            return logits, *kept
        return F.cross_entropy(logits, labels), logits, *kept


def _embed(embeddings: nn.Module, input_ids: Tensor, token_type_ids: Tensor) -> Tensor:
    positions = torch.arange(input_ids.shape[1], device=input_ids.device).unsqueeze(0).expand_as(input_ids)
    summed = (
        embeddings.word_embeddings(input_ids)
        + embeddings.position_embeddings(positions)
        + embeddings.token_type_embeddings(token_type_ids)
    )
    return embeddings.dropout(_layer_norm(embeddings.LayerNorm, summed))


def _attend(attention: nn.Module, hidden: Tensor, context: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    def split(x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], attention.num_heads, attention.head_dim).permute(0, 2, 1, 3)

    query, key = split(attention.query(hidden)), split(attention.key(hidden))
    value = split(attention.value(hidden))
    context_query = attention.dropout(split(attention.context_for_q(context)))
    context_key = attention.dropout(split(attention.context_for_k(context)))
    root = math.sqrt(attention.head_dim)

    scores = torch.matmul(query, key.transpose(-1, -2)) / root + mask
    softmax_map = torch.softmax(scores, dim=-1)
    context_scores = torch.matmul(context_query, context_key.transpose(-1, -2)) / root + mask
    quasi_map = 1.0 * attention.quasi_scale * torch.sigmoid(context_scores)

    query_gate = torch.sigmoid(attention.lambda_q_query_layer(query) + attention.lambda_q_context_layer(context_query))
    key_gate = torch.sigmoid(attention.lambda_k_key_layer(key) + attention.lambda_k_context_layer(context_key))
    lam = 1 - (attention.beta * query_gate + attention.gamma * key_gate)
    gated_map = lam * quasi_map

    combined = attention.dropout(softmax_map + gated_map)
    attended = torch.matmul(combined, value).permute(0, 2, 1, 3).contiguous()
    return attended.view(*attended.shape[:-2], -1), combined, softmax_map, gated_map, lam


def _residual(block: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
    return _layer_norm(block.LayerNorm, block.dropout(block.dense(x)) + residual)


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return norm.weight * ((x - mean) / torch.sqrt(variance + norm.eps)) + norm.bias


def _gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))
