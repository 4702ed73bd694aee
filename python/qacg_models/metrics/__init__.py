"""Published metrics of aspect-based sentiment, calibration of probabilities, and the TF-IDF baseline."""

from qacg_models.metrics.metrics import (
    METRIC_CLASSES,
    Metrics,
    intervals,
    judge,
    judge_for,
    majority_probabilities,
    titles_of,
)

__all__ = ["METRIC_CLASSES", "Metrics", "intervals", "judge", "judge_for", "majority_probabilities", "titles_of"]
