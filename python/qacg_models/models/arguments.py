"""The arguments of the models' `forward` methods: one text for each, and the decorator that documents a method.

Shapes are those of a padded batch of B sequences of L tokens.
"""

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import TypeVar

_ARGUMENTS = """\
input_ids: (B, L) int64 or int32 from 0 to vocab_size - 1, L at least 1; None with inputs_embeds.
attention_mask: (B, L), 1 for tokens and 0 for padding; None: no padding.
token_type_ids: (B, L) int64 or int32 from 0 to type_vocab_size - 1; None: all 0.
context_ids: (B) or (B, 1) int64 or int32 indices into `config.contexts`; (N) or (N, 1) with text_ids. The argument is
    required. `config.context_id(name)` returns the index of a context.
position_ids: (B, L) or (1, L) int64 or int32 from 0 to max_position_embeddings - 1; None: 0 to L - 1, or the default of
    an encoder of transformers.
text_ids: (N) int64 or int32, for N questions about the B sequences of the batch. Question i is the sequence text_ids[i]
    with the context context_ids[i]. Outputs and labels are those of a batch with N sequences. Layers below
    `config.context_from_layer` run once per sequence. None: one question about each sequence.
inputs_embeds: (B, L, width of the word embeddings), in place of input_ids.
head_mask: (H) or (layers, H), a factor for the attention matrix of each head; None: all heads are kept.
cu_seqlens: (B + 1) int32 or int64 offsets of a packed batch of T tokens, whose other inputs and outputs are (T) or
    (T, hidden_size), without attention_mask; `PackingCollator` builds it. None: a padded batch.
max_seqlen: at least the length of the longest packed sequence, at most max_position_embeddings; None: read from
    cu_seqlens, on the CPU and outside torch.compile only. A padded batch requires None.
num_tokens: the number of tokens of the N questions of a packed batch with text_ids; None: read from text_ids and
    cu_seqlens, which synchronises with a GPU. Other batches require None.
pooled_only: compute only what pooler_output requires; last_hidden_state is None. For a packed batch (by cu_seqlens or
    `config.unpad`) and the pooler "cls", the last layer then computes first tokens only.
tokens_only: compute only what last_hidden_state requires, also for padding; pooler_output is None.
labels: (B) int64 or int32 from 0 to num_labels - 1, or -100 for sequences that the loss leaves out; None: no loss.
start_positions: (B) or (B, 1) int64 or int32, index of the first token of each answer; for positions outside the
    sequence see `config.outside_positions`. None, like end_positions: no loss of the answer.
end_positions: (B) or (B, 1) int64 or int32, index of the last token of each answer.
output_attentions: return the attention matrix after dropout of every layer, (B, H, L, L) each, with L = max_seqlen for
    a packed batch; None: `config.output_attentions`.
output_gates: return the gates of every layer, (B, H, L) or packed (T, H) each: `lambdas` in QACG-BERT, `query_gates`
    and `key_gates` in CG-BERT. Aspect-BERT has no gates and raises ValueError.
output_hidden_states: return embeddings and the output of every layer; None: `config.output_hidden_states`.
"""
_END = """
Returns:
    A {output}; with return_dict=False a tuple of its fields that are not None.

Raises:
    TypeError: an argument has the wrong type or dtype; the message names it.
    ValueError: an argument has the wrong shape, device or value; the message names it. Values are checked on the CPU
        and outside torch.compile only.
"""
F = TypeVar("F", bound=Callable)


def documented(own: str = "") -> Callable[[F], F]:
    """Returns a decorator that adds arguments, result and errors to the summary in the docstring of a `forward`.

    `own` has the texts of arguments that the other models do not have, or that mean something else in them.
    """
    texts = {text.partition(":")[0]: text for text in re.split(r"\n(?=\w)", f"{_ARGUMENTS}{textwrap.dedent(own)}")}

    def decorate(forward: F) -> F:
        names = [name for name in inspect.signature(forward).parameters if name != "self"]
        arguments = "\n".join(texts[name].strip() for name in names)
        end = _END.format(output=forward.__annotations__["return"].__name__)
        forward.__doc__ = f"{forward.__doc__}\n\nArgs:\n{textwrap.indent(arguments, '    ')}\n{end}"
        return forward

    return decorate
