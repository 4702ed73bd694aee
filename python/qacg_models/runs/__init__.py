"""A run on paper: what is asked of it, and what it left on record. Importing this loads neither torch nor numpy.

| question | its home |
|---|---|
| every choice of training, with its limits and its help text | `options.py` |
| what a choice comes to that nobody made | `recipes.py` |
| `run.yaml`, the choices that give a run again | `run_config.py` |
| `training.json`, the record of a run | `record.py` |
"""
