"""Checks of labelled data before training, for `qacg check`.

A label is doubtful if a classifier that was not trained on its row gives another label a higher probability, which also
reaches the threshold of that other label (`metrics/doubts.py`).

| subject | module |
|---|---|
| all checks, and their results as text or JSON | `data_check.py` |
| truncated texts and unknown words, by the tokenizer of the model | `token_check.py` |
| expected macro-F1 for the number of sentences | `expected_quality.py` |
| doubtful labels, found by training the model | `thorough.py` |
"""
