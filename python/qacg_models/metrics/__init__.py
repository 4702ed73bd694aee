"""Published metrics of aspect-based sentiment, the baseline beside them, and how sure a figure is.

| question | its home |
|---|---|
| what a set of figures is | `base.py` |
| what each figure means | `sentihood.py`, `semeval.py`, `classification.py` |
| which set judges a task | `task_metrics.py` |
| confidence intervals | `bootstrap.py` |
"""

from qacg_models.metrics.base import Figures
from qacg_models.metrics.bootstrap import intervals
from qacg_models.metrics.task_metrics import FIGURES, judge, judge_for, majority_probabilities

__all__ = ["FIGURES", "Figures", "intervals", "judge", "judge_for", "majority_probabilities"]
