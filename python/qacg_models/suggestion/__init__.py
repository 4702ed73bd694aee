"""From texts without labels to a sheet to fill in, which `qacg train` reads.

| question | its home |
|---|---|
| words, and which of them are nouns | `words.py`, `function_words.py` |
| nouns of like use | `clusters.py` |
| aspects with their words and examples | `proposals.py` |
| rows of the sheet, for training and for evaluation | `sheet.py` |
| rows of which a model is least sure | `uncertainty.py` |
"""

ASPECTS = 30  # that are proposed where nothing else is said: what fewer people write about comes late in the list
