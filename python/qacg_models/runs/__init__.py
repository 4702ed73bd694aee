"""Options and records of trainings. Importing options does not import torch.

| question | module |
|---|---|
| options of training, with limits, help texts and recipes (the defaults of options not given) | `options.py` |
| `training.json` and `run.yaml` of a model folder | `record.py` |
| `calibration.json`, the temperatures of the probabilities | `calibration.py` |
"""
