"""Whether quasi-attention helps: the same trainings for every model, over seeds, and differences with intervals."""
