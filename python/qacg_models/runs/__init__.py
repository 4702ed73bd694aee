"""Options and records of trainings. Importing options does not import torch.

| question | module |
|---|---|
| options of training, with limits, help texts and recipes (the defaults of options not given) | `options.py` |
| `training.json`, `run.yaml` and `train_texts.bin` of a model folder | `record.py` |
| `calibration.json`, the temperatures of the probabilities | `calibration.py` |
"""
