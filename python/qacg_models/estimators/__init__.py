"""Training and prediction in Python, for data in memory.

| subject | module |
|---|---|
| `AspectSentiment`: train on a DataFrame, predict, evaluate, save, upload | `aspect_sentiment.py` |
| `AspectSentimentClassifier`: a scikit-learn estimator around `AspectSentiment` | `classifier.py` |

There are two classes because scikit-learn creates estimators from parameters and requires `predict` to return one label
per row. `AspectSentiment` is created from a trained model, and its predictions have an aspect and probabilities.
"""
