"""The encoder of BERT: softmax self-attention and the layers around it."""

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qacg_models.modules.bert_layers import AttentionBlock, BertIntermediate, BertResidualOutput
from qacg_models.modules.packing import Packing
from qacg_models.modules.softmax_attention import attend_split


class BertSelfAttention(nn.Module):
    """softmax(Q K^T / sqrt(D)) V for each head.

    Every call reads the implementation from the configuration, so `set_attn_implementation` takes effect at once.
    """

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.dropout = nn.Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Computes self-attention within each sequence.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden).
            mask: the packing; or (B, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return the attention matrix A.
            head_mask: (H), a factor for the attention matrix of each head; None: all heads are kept.

        Returns:
            The output in the shape of hidden_states; A after dropout and head_mask, (B, H, L, L) with L = max_seqlen if
            packed, or None without output_attentions.
        """
        query, key, value = (
            layer(hidden_states).unflatten(-1, (self.config.num_attention_heads, -1))
            for layer in (self.query, self.key, self.value)
        )
        attended, attention = attend_split(
            query,
            key,
            value,
            mask,
            dropout_p=self.dropout.p if self.dropout.training else 0.0,
            implementation=self.config._attn_implementation,
            want_map=output_attentions,
        )
        if head_mask is None:
            return attended, attention
        # (m A) V = m (A V), which does not require A.
        head_mask = head_mask.to(attended.dtype).unsqueeze(-1)
        attended = (attended.unflatten(-1, (self.config.num_attention_heads, -1)) * head_mask).flatten(-2)
        return attended, attention if attention is None else attention * head_mask.unsqueeze(-1)


class BertLayer(GradientCheckpointingLayer):
    """A layer of BERT: attention block and feed-forward block."""

    def __init__(self, config):
        super().__init__()
        self.attention = AttentionBlock(config, BertSelfAttention(config))
        self.intermediate = BertIntermediate(config)
        self.output = BertResidualOutput(config, config.intermediate_size)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Runs the attention block, then the feed-forward block.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden).
            mask: the packing; or (B, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return the attention matrix A.
            head_mask: (H), a factor for the attention matrix of each head; None: all heads are kept.
            first_only: after the attention, compute only the first token of each sequence; requires a packed batch.

        Returns:
            Hidden states in the shape of the input, or (B, hidden) with first_only; A after dropout and head_mask,
            (B, H, L, L) with L = max_seqlen if packed, or None without output_attentions.
        """
        attended, attention = self.attention(
            hidden_states, mask, first_only, output_attentions=output_attentions, head_mask=head_mask
        )
        return self.output(self.intermediate(attended), attended), attention


class BertEncoder(nn.Module):
    """The layers of BERT, one after another."""

    def __init__(self, config):
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,
        mask: Packing | Tensor | None,
        output_attentions: bool,
        head_mask: Tensor | None = None,
        first_only: bool = False,
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """Runs all layers.

        Args:
            hidden_states: (B, L, hidden), or packed (T, hidden).
            mask: the packing; or (B, 1, 1, L) booleans, True for tokens; or None for no padding.
            output_attentions: also return the attention matrices.
            head_mask: (layers, H), a factor for the attention matrix of each head; None: all heads are kept.
            first_only: after its attention, the last layer computes only the first token of each sequence; requires a
                packed batch.

        Returns:
            Two lists. The first has the input and the hidden states after each layer; with first_only the states after
            the last layer are (B, hidden). The second has, for each layer, the attention matrix after dropout and
            head_mask, (B, H, L, L) with L = max_seqlen if packed, or None without output_attentions.
        """
        every_hidden, every_map = [hidden_states], []
        for i, layer in enumerate(self.layer):
            # Positional arguments, since reentrant gradient checkpointing computes no gradients for keyword arguments.
            heads = () if head_mask is None else (head_mask[i],)
            only = {"first_only": True} if first_only and layer is self.layer[-1] else {}
            hidden, attention = layer(every_hidden[-1], mask, output_attentions, *heads, **only)
            every_hidden.append(hidden)
            every_map.append(attention)
        return every_hidden, every_map
