"""Trains on packed sequences, without padding: python docs/examples/packed_training.py"""

import torch
from qacg_models import PackingCollator, QACGBertConfig, QACGBertForSequenceClassification

WORDS = {"good": 5, "bad": 6, "food": 7, "price": 8, "the": 9, "was": 10, "and": 11}


def examples(count):
    """Returns sentences of 7 to 12 words; the label is 1 if "good" follows the word of the aspect, 0 if "bad" does."""
    rows = []
    for _ in range(count):
        aspect = int(torch.randint(0, 2, ()))
        verdicts = torch.randint(0, 2, (2,)).tolist()
        words = ["the", "food", ("bad", "good")[verdicts[0]], "and", "the", "price", ("bad", "good")[verdicts[1]]]
        words += ["the"] * int(torch.randint(0, 6, ()))
        ids = [2, *(WORDS[word] for word in words), 3]
        rows.append({"input_ids": ids, "context_ids": aspect, "labels": verdicts[aspect]})
    return rows


def main(steps=200):
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    # Layers this narrow require initial weights with a larger standard deviation than BERT's 0.02.
    config = QACGBertConfig(contexts=["food", "price"], num_labels=2, vocab_size=12, initializer_range=0.1, **sizes)
    model = QACGBertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    collate = PackingCollator()
    for step in range(steps):
        batch = collate(examples(64))
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step}: {batch['input_ids'].numel()} tokens without padding, loss {loss.item():.3f}")
    batch = collate(examples(500))
    model.eval()
    right = (model(**batch).logits.argmax(-1) == batch["labels"]).float().mean().item()
    print(f"accuracy on new sentences: {right:.2f}")
    return right


if __name__ == "__main__":
    main()
