"""Checks of labelled data before training, for `qacg check`.

| subject | module |
|---|---|
| the checks and their text | `data_check.py` |
| texts as the tokenizer of the model reads them | `token_check.py` |
| expected quality by the number of sentences | `expected_quality.py` |
| doubtful labels by the model itself | `thorough.py` |
"""
