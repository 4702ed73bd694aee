"""A study of quasi-attention: the same trainings for every model, over seeds, compared with intervals."""
