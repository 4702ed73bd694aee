"""Layers of the models: attention, contexts, encoders and batches."""
