"""Predictions of trained models.

| subject | module |
|---|---|
| loading a model folder, logits and probabilities | `trained_model.py` |
| aspect sentiment of texts | `aspect_predictor.py`, `aspect_queries.py` |
| aspect sentiment as a transformers pipeline | `aspect_pipeline.py` |
| saving a model folder, and its card | `saving.py`, `trained_card.py` |
| dividing texts into sentences, and combining predictions of sentences | `pieces.py` |
| int8 inference | `int8.py` |
| prediction of many texts, to a file | `bulk_prediction.py`, `prediction_format.py` |
| question answering | `question_answering.py`, `span_decoding.py` |
| extractive summaries | `summarization.py` |
"""
