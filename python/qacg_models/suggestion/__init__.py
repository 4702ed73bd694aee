"""Aspects proposed for unlabelled texts, and the sheet to label, which `qacg train` reads.

| subject | module |
|---|---|
| words, and detection of nouns | `words.py`, `function_words.py` |
| clusters of nouns that occur with the same words | `clusters.py` |
| proposed aspects with words and examples | `proposals.py` |
| rows of the sheet, for training and evaluation | `sheet.py` |
| rows for which the predictions of a model have the lowest probability | `uncertainty.py` |
"""

ASPECTS = 30  # default maximum number of proposed aspects
