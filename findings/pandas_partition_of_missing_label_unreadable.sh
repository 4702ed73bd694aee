#!/usr/bin/env bash
# pandas 3.1.1 with pyarrow 26.0.1: a Parquet folder with one partition per label.
#
# Guess: pandas reads the folder that it wrote, and a missing label is missing again, or a text.
# Seen: to_parquet writes a partition for rows without a label, and read_parquet raises ArrowInvalid, "Cannot yet unify
# dictionaries with nulls". Without the column `label` (`columns=`) it reads all rows. A label 01 comes back as the
# integer 1.
#
# Not run in CI. Exits with 1 if the behaviour changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pandas==3.1.1 pyarrow==26.0.1 numpy==2.4.6
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import pandas as pd
import pyarrow as pa

folder = sys.argv[1]
pd.DataFrame({"text": ["a", "b"], "label": ["good", None]}).to_parquet(f"{folder}/missing", partition_cols=["label"])
try:
    pd.read_parquet(f"{folder}/missing")
    found = "read"
except pa.ArrowInvalid as error:
    found = str(error)
texts = sorted(pd.read_parquet(f"{folder}/missing", columns=["text"])["text"])
pd.DataFrame({"text": ["a", "b"], "label": ["01", "02"]}).to_parquet(f"{folder}/numbers", partition_cols=["label"])
numbers = pd.read_parquet(f"{folder}/numbers")["label"].tolist()
print(f"pandas {pd.__version__}, pyarrow {pa.__version__}: {found}; texts {texts}; labels {numbers}")
assert found == "Cannot yet unify dictionaries with nulls" and texts == ["a", "b"], "the behaviour has changed"
assert numbers == [1, 2], "the behaviour has changed"
PYTHON
