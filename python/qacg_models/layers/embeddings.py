"""What is before and after the layers of an encoder: embeddings, dropout and poolers.

Parameters have the names of BERT checkpoints.
"""

import torch
from torch import Tensor, nn

from qacg_models.layers.batch import Packing

GATE_WIDTH = 32  # width of the hidden layer of the attention pooler, as published
_LEVELS = 1 << 16  # a dropout probability is rounded to a multiple of 1 / _LEVELS
_PER_DRAW = 4  # entries that the 64 bits of one draw decide


class Dropout(nn.Dropout):
    """Dropout with 16 random bits per entry on the CPU, and torch's dropout elsewhere.

    Torch's dropout on the CPU draws one number per entry from a serial generator, which takes a sixth of a training
    step. This class rounds a probability p < 1 to a multiple of 2^-16 below 1, as the attention kernels do, and scales
    kept entries with the rounded p, so the mean is exact. The dropped entries depend on torch.manual_seed, and are the
    same when gradient checkpointing repeats a forward.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Returns x, of any shape, with dropped entries set to 0; x itself in evaluation mode."""
        if not self.training or self.p in (0, 1) or x.device.type != "cpu" or torch.compiler.is_compiling():
            return super().forward(x)
        dropped = min(round(self.p * _LEVELS), _LEVELS - 1)
        draws = torch.empty((x.numel() + _PER_DRAW - 1) // _PER_DRAW, dtype=torch.int64, device=x.device)
        bits = draws.random_(-(2**63), None).view(torch.int16)[: x.numel()].view(x.shape)
        kept = bits >= dropped - _LEVELS // 2
        return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - dropped))


class BertEmbeddings(nn.Module):
    """dropout(LayerNorm(x)), where x is the sum of word, position and token-type embeddings.

    With rotary positions there are no position embeddings. With `config.embedding_size`, embeddings have that width,
    and a linear layer maps them to hidden_size. All rows are trained, as in the published code. Transformers' BERT does
    not train the row of the padding token.
    """

    def __init__(self, config):
        super().__init__()
        size = config.embedding_size or config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, size)
        if config.modernbert is None:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size)
        self.LayerNorm = nn.LayerNorm(size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.project = nn.Identity() if config.embedding_size is None else nn.Linear(size, config.hidden_size)

    def forward(
        self,
        input_ids: Tensor | None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Embeds the tokens of an `EncoderBatch`; returns (B, L, hidden_size) or packed (T, hidden_size)."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if position_ids is None:
            position_ids = torch.arange(words.shape[-2], device=words.device)
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:-1], dtype=torch.long, device=words.device)
        embedded = words + self.token_type_embeddings(token_type_ids)
        if hasattr(self, "position_embeddings"):
            embedded = embedded + self.position_embeddings(position_ids)
        return self.project(self.dropout(self.LayerNorm(embedded)))


class ClsPooler(nn.Module):
    """tanh(dense(first token))."""

    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor, layout: Packing | Tensor | None) -> Tensor:
        """Pools (B, L, hidden_size), or (T, hidden_size) with a packing, to (B, hidden_size).

        A mask is ignored: the first token of a sequence is assumed not to be padding. For a packed sequence without
        tokens, the input of the dense layer is 0.
        """
        first = layout.cleared(layout.first(hidden_states)) if isinstance(layout, Packing) else hidden_states[:, 0]
        return torch.tanh(self.dense(first))


class AttentionPooler(nn.Module):
    """tanh(dense(weighted average of the tokens)), where the weights are the softmax of a learned score per token."""

    def __init__(self, config):
        super().__init__()
        self.attention_gate = nn.Sequential(
            nn.Linear(config.hidden_size, GATE_WIDTH),
            nn.ReLU(),
            Dropout(config.hidden_dropout_prob),
            nn.Linear(GATE_WIDTH, 1),
        )
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor, layout: Packing | Tensor | None) -> Tensor:
        """Pools (B, L, hidden_size), or (T, hidden_size) with a packing, to (B, hidden_size).

        `layout` is the packing; or (B, L) booleans, True for tokens; or None for no padding. The average is 0 for a
        packed sequence without tokens, and the mean of all positions for a padded sequence without tokens.
        """
        weights = self.weights(hidden_states, layout)
        if isinstance(layout, Packing):
            average = layout.total(weights.unsqueeze(-1) * hidden_states)
        else:
            average = (weights.unsqueeze(1) @ hidden_states).squeeze(1)
        return torch.tanh(self.dense(average))

    def weights(self, hidden_states: Tensor, layout: Packing | Tensor | None) -> Tensor:
        """Returns the weight of each token in the average, (B, L) or packed (T), for the arguments of `forward`."""
        scores = self.attention_gate(hidden_states).squeeze(-1)
        # The lowest finite number, since -inf would give NaN for a sequence that consists of padding only.
        lowest = torch.finfo(scores.dtype).min
        if isinstance(layout, Packing):
            return layout.unpad(layout.pad(scores, lowest).softmax(-1))
        if layout is not None:
            scores = scores.masked_fill(~layout, lowest)
        return scores.softmax(-1)


POOLERS = {"cls": ClsPooler, "attention": AttentionPooler}
