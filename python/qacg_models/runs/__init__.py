"""Options, recipes and records of trainings. Importing options and recipes does not import torch.

| question | module |
|---|---|
| options of training, with limits and help texts | `options.py` |
| defaults of options that are not given | `recipes.py` |
| `run.yaml`, the options with which a run can be repeated | `run_config.py` |
| `training.json`, the record of a run | `record.py` |
| `calibration.json`, the temperatures of the probabilities | `calibration.py` |
| `train_texts.bin`, hashes of the training texts | `training_texts.py` |
"""
