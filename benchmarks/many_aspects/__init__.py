"""A study of models that classify one text for many aspects: their accuracy, and the cost of each aspect."""
