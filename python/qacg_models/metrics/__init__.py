"""Published metrics of aspect-based sentiment, the baseline beside them, and how sure a metric is.

| question | its home |
|---|---|
| what a set of metrics is | `base.py` |
| what each metric means | `sentihood.py`, `semeval.py`, `classification.py` |
| which set judges a task | `task_metrics.py` |
| confidence intervals | `bootstrap.py` |
| how far probabilities may be believed | `reliability.py` |
| the temperatures that make them so | `temperature.py` |
| the simple model that every training is held against | `tfidf.py` |
"""

from qacg_models.metrics.base import Metrics
from qacg_models.metrics.bootstrap import intervals
from qacg_models.metrics.task_metrics import METRIC_CLASSES, judge, judge_for, majority_probabilities

__all__ = ["METRIC_CLASSES", "Metrics", "intervals", "judge", "judge_for", "majority_probabilities"]
