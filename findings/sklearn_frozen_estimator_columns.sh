#!/usr/bin/env bash
# scikit-learn 1.9.1: cross_val_predict with a FrozenEstimator and numbers as labels.
#
# Guess: the probabilities of a frozen model are put into the columns of their labels, or an error names the labels that
# the model or the data lack.
# Seen: the labels are used as column numbers.
#   - Model with labels -1, 0, 1, data without 0: the column of -1 has the probabilities of 0.
#   - Model with labels 1 and 2, data with 1, 2, 3: the columns of 1, 2, 3 have 0 and the probabilities of 1 and 2.
# A RuntimeWarning speaks of the number of classes in a training fold, although a frozen model has no fold.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet scikit-learn==1.9.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import numpy as np
import sklearn
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

warnings.simplefilter("ignore")
draw = np.random.default_rng(0)
x = draw.normal(size=(600, 3))
sentiment, stars = x.argmax(axis=1) - 1, x.argmax(axis=1) + 1  # -1, 0, 1 and 1, 2, 3


def compare(y, fitted, given):
    """Predictions by cross_val_predict, and those of the model, which is fitted to some labels and given others."""
    model = LogisticRegression().fit(x[np.isin(y, fitted)], y[np.isin(y, fitted)])
    rows = np.isin(y, given)
    found = cross_val_predict(FrozenEstimator(model), x[rows], y[rows], method="predict_proba", cv=2)
    return found, model.predict_proba(x[rows])


found, own = compare(sentiment, [-1, 0, 1], [-1, 1])
print(f"scikit-learn {sklearn.__version__}: columns of -1, 1: {found[0].round(3)}; model, -1, 0, 1: {own[0].round(3)}")
assert np.array_equal(found, own[:, [1, 2]]), "the behaviour has changed"
found, own = compare(stars, [1, 2], [1, 2, 3])
print(f"columns of 1, 2, 3: {found[0].round(3)}; model, 1, 2: {own[0].round(3)}")
assert np.array_equal(found[:, 1:], own) and not found[:, 0].any(), "the behaviour has changed"
PYTHON
