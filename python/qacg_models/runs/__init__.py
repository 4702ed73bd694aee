"""A run on paper: what is asked of it, and what it left on record. Options and recipes load nothing heavy.

| question | its home |
|---|---|
| every choice of training, with its limits and its help text | `options.py` |
| what a choice comes to that nobody made | `recipes.py` |
| `run.yaml`, the choices that give a run again | `run_config.py` |
| `training.json`, the record of a run | `record.py` |
| `calibration.json`, the temperatures of a model's probabilities | `calibration.py` |
"""
