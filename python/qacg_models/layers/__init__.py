"""Layers of the models: attention, contexts, encoders, batches and losses."""
