"""Checks of labelled data before training, for `qacg check`."""
