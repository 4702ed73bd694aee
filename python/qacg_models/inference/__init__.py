"""Predictions of trained models.

| subject | module |
|---|---|
| aspect sentiment of the texts of a DataFrame | `predictor.py`; sentences of long texts: `pieces.py` |
| a file of predictions, and its lines | `partial_file.py`, `prediction_format.py` |
| aspect sentiment as a transformers pipeline | `aspect_pipeline.py` |
| loading a model folder, logits and metrics; int8 | `trained_model.py`, `int8.py` |
| saving a model folder, and its card | `saving.py`, `trained_card.py` |
| question answering | `question_answering.py` |
| extractive summaries | `summarization.py` |
"""
