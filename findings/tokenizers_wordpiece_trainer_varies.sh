#!/usr/bin/env bash
# tokenizers 0.23.3: training a WordPiece vocabulary.
#
# Guess: the same texts and options give the same vocabulary in each process.
# Seen: the ids of WordPieceTrainer differ between processes, and often the pieces too, with or without
# TOKENIZERS_PARALLELISM. BpeTrainer on the same texts gives one vocabulary. So does WordPieceTrainer if each letter and
# each `##` letter is a special token.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tokenizers==0.23.3
cat > "$folder/train.py" <<'PYTHON'
import random
import string
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

draw = random.Random(0)
alphabet = string.ascii_lowercase[:10]
texts = [" ".join("".join(draw.choices(alphabet, k=draw.randint(2, 9))) for _ in range(20)) for _ in range(500)]
letters = [*alphabet, *(f"##{one}" for one in alphabet)]
model, trainer, special = {
    "WordPiece": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, ["[UNK]"]),
    "WordPiece with letters": (models.WordPiece(unk_token="[UNK]"), trainers.WordPieceTrainer, ["[UNK]", *letters]),
    "BPE": (models.BPE(unk_token="[UNK]"), trainers.BpeTrainer, ["[UNK]"]),
}[sys.argv[1]]
learner = Tokenizer(model)
learner.pre_tokenizer = pre_tokenizers.Whitespace()
learner.train_from_iterator(texts, trainer(vocab_size=600, special_tokens=special, show_progress=False))
print(sorted(learner.get_vocab().items()))
PYTHON
for name in "WordPiece" "WordPiece with letters" "BPE"; do
    for _ in 1 2 3 4 5; do "$folder/venv/bin/python" "$folder/train.py" "$name" | sha256sum; done > "$folder/sums"
    count=$(sort -u "$folder/sums" | wc -l)
    echo "$name: different vocabularies in 5 processes: $count"
    if [ "$name" = "WordPiece" ]; then test "$count" -gt 1; else test "$count" -eq 1; fi
done
