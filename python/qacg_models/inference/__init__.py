"""Trained models at work.

| question | its home |
|---|---|
| a model folder loaded, and its probabilities | `trained_model.py` |
| aspects of texts | `aspect_sentiment.py`, `aspect_queries.py` |
| a model in int8 | `int8.py` |
| files of texts, of any size | `bulk_prediction.py`, `prediction_format.py` |
| answers to questions | `question_answering.py`, `span_decoding.py` |
| summaries | `summarization.py` |
"""
