"""Published metrics of aspect-based sentiment, their confidence intervals, calibration and baselines.

| subject | module |
|---|---|
| base class of a set of metrics | `base.py` |
| definitions of the metrics | `sentihood.py`, `semeval.py`, `classification.py` |
| the metrics of a task, and the majority baseline | `task_metrics.py` |
| precision, recall and F1 of each class | `class_scores.py` |
| confidence intervals of metrics, and of a share | `bootstrap.py`, `wilson.py` |
| calibration error, accuracy by coverage | `reliability.py` |
| fitting temperatures | `temperature.py` |
| the TF-IDF baseline | `tfidf.py` |
| doubtful labels | `doubts.py` |
"""

from qacg_models.metrics.base import Metrics
from qacg_models.metrics.bootstrap import intervals
from qacg_models.metrics.task_metrics import METRIC_CLASSES, judge, judge_for, majority_probabilities, titles_of

__all__ = ["METRIC_CLASSES", "Metrics", "intervals", "judge", "judge_for", "majority_probabilities", "titles_of"]
