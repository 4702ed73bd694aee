#!/usr/bin/env bash
# dask 2026.8.0 with pandas 3.1.1 and pyarrow 26.0.1.
#
# Guess: dask.dataframe.from_pandas keeps the Python objects in a column of lists, dictionaries or arrays.
# Seen: it converts each to its text, without a warning: ["food"] becomes "['food']", and a list of aspects per row has
# the type string. With dataframe.convert-string set to False the lists stay. What map_partitions returns is not
# converted.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet 'dask[dataframe]==2026.8.0' pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - <<'PYTHON'
import warnings

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd

warnings.simplefilter("error")
frame = pd.DataFrame({"aspects": [["food"], []], "scores": [{"good": 0.5}, {}], "vector": [np.array([0.1, 0.9])] * 2})
given = dd.from_pandas(frame, npartitions=1)
found = given.compute().iloc[0].tolist()
with dask.config.set({"dataframe.convert-string": False}):
    kept = dd.from_pandas(frame, npartitions=1).compute()["aspects"].tolist()
meta = {**dict(given.dtypes), "made": object}
made = given.map_partitions(lambda part: part.assign(made=[[1.0]] * len(part)), meta=meta).compute()["made"].tolist()
print(f"dask {dask.__version__}: {found}; without conversion {kept}; from map_partitions {made}")
assert found == ["['food']", "{'good': 0.5}", "[0.1 0.9]"], "the behaviour has changed"
assert (kept, made) == ([["food"], []], [[1.0], [1.0]]), "the behaviour has changed"
PYTHON
