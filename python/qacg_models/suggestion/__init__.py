"""Aspects proposed for unlabelled texts, and the sheet to label, which `qacg train` reads.

| subject | module |
|---|---|
| words, and detection of nouns | `words.py`, `function_words.py` |
| clusters of nouns with similar use | `clusters.py` |
| proposed aspects with words and examples | `proposals.py` |
| rows of the sheet, for training and evaluation | `sheet.py` |
| rows with the lowest confidence of a model | `uncertainty.py` |
"""

ASPECTS = 30  # default limit of proposed aspects
