"""`python -m qacg_models.demos.summarization`: trains a small BertSum on invented minutes, and prints a summary.

The sentences of the documents are generated from the phrases in sample/minutes.json. Some of them report decisions,
which are the summary; the others are talk. The demo shows that training and selection work; its results say nothing
about summaries of other texts.
"""

import json
import random
from dataclasses import dataclass

import torch
from transformers import BertConfig

from qacg_models.data import sample_directory
from qacg_models.data.tokenization import train_tokenizer
from qacg_models.inference.summarization import ExtractiveSummarizer, encode_document, pad_documents
from qacg_models.models.bertsum import BertSumConfig, BertSumForExtractiveSummarization

STEPS = 180
BATCH = 8
LEARNING_RATE = 3e-3


@dataclass(frozen=True)
class Minutes:
    """A document: its sentences, and for each sentence whether it reports a decision."""

    sentences: list[str]
    decisions: list[bool]


def invented_minutes(count: int, seed: int) -> list[Minutes]:
    """Returns documents of six to nine sentences, two of them decisions; equal arguments give equal documents."""
    phrases = _phrases()
    draw = random.Random(seed)

    def sentence(kind: str) -> str:
        slots = {name: draw.choice(phrases[name]) for name in ("action", "when", "who", "thing")}
        text = draw.choice(phrases[kind]).format(**slots)
        return text[0].upper() + text[1:]

    documents = []
    for _ in range(count):
        kinds = ["decisions"] * 2 + ["talk"] * draw.randint(4, 7)
        draw.shuffle(kinds)
        documents.append(Minutes([sentence(kind) for kind in kinds], [kind == "decisions" for kind in kinds]))
    return documents


def text_of_the_example() -> list[str]:
    """Returns the sentences of minutes that were written by hand; two of them are decisions."""
    return _phrases()["text"]


def train_summarizer(documents: list[Minutes], seed: int = 0) -> ExtractiveSummarizer:
    """Trains a tokenizer and a BertSum from scratch, in a few seconds on one CPU core, and returns a summarizer.

    Args:
        documents: at least BATCH documents.
        seed: seed of initial weights and batches.
    """
    torch.manual_seed(seed)
    tokenizer = train_tokenizer([s for document in documents for s in document.sentences], vocab_size=600)
    encoder = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=256,
        initializer_range=0.1,
    )
    model = BertSumForExtractiveSummarization(BertSumConfig(encoder=encoder, inter_layers=1, heads=4, ff_size=96))
    _attend_nearby_at_first(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    draw = random.Random(seed)
    model.train()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - step / STEPS)
        chosen = draw.sample(documents, BATCH)
        batch = pad_documents(
            [encode_document(d.sentences, tokenizer, encoder.max_position_embeddings) for d in chosen],
            tokenizer.pad_token_id,
        )
        labels = torch.zeros_like(batch["sentence_positions"])
        for row, document in enumerate(chosen):
            labels[row, : len(document.decisions)] = torch.tensor(document.decisions)
        loss = model(**batch, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return ExtractiveSummarizer(model.eval(), tokenizer)


@torch.no_grad()
def _attend_nearby_at_first(model: BertSumForExtractiveSummarization) -> None:
    """Sets position embeddings to sinusoids, and the weights of keys to those of queries.

    Near tokens then have higher attention scores from the start. From random weights, training takes thousands of steps
    until each [CLS] attends to its own sentence.
    """
    positions = model.bert.embeddings.position_embeddings.weight
    positions.copy_(0.3 * model.encoder.pos_emb.positions(len(positions))[0])
    for layer in model.bert.encoder.layer:
        layer.attention.self.key.weight.copy_(layer.attention.self.query.weight)


def found_share(summarizer: ExtractiveSummarizer, documents: list[Minutes]) -> tuple[float, float]:
    """Returns two shares of the decisions in all documents.

    The first is the share that the summarizer selects; the second is the share in the first two sentences of each
    document, as a baseline.

    Args:
        summarizer: selects two sentences of each document.
        documents: at least one document.
    """
    found = first = total = 0
    for document in documents:
        chosen = summarizer.summarize(document.sentences, count=2, block_trigrams=False).indices
        found += sum(document.decisions[i] for i in chosen)
        first += sum(document.decisions[:2])
        total += sum(document.decisions)
    return found / total, first / total


def main() -> None:
    summarizer = train_summarizer(invented_minutes(240, seed=1))
    found, first = found_share(summarizer, invented_minutes(40, seed=2))
    print(
        f"On 40 invented documents that training did not see, {found:.0%} of the decisions are selected; "
        f"the first two sentences of each document contain {first:.0%}.\n"
    )
    summary = summarizer.summarize(text_of_the_example(), count=2)
    for i, (sentence, score) in enumerate(zip(text_of_the_example(), summary.scores)):
        print(f"{'->' if i in summary.indices else '  '} {score:.2f}  {sentence}")


def _phrases() -> dict[str, list[str]]:
    return json.loads((sample_directory() / "minutes.json").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
