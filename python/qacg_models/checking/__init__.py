"""Checks of labelled data before training, for `qacg check`.

| subject | module |
|---|---|
| the checks and their text | `data_check.py` |
| truncated texts and unknown words, by the tokenizer of the model | `token_check.py` |
| expected macro-F1 for the number of sentences | `expected_quality.py` |
| doubtful labels, found by training the model | `thorough.py` |
"""
