"""Training on the transformers Trainer.

| question | module |
|---|---|
| one training, from data to a model folder | `run.py` |
| several seeds | `seeds.py` |
| values for options that are not given | `resolve_options.py` |
| the folder of an unfinished run, with durable checkpoints | `run_folder.py` |
| initial model and tokenizer | `model_setup.py` |
| initial weights for aspects, from the names of the aspects | `context_start.py` |
| encoded rows, their order, augmentation | `encoded_splits.py`, `sampling.py`, `augmentation.py` |
| steps, checkpoints, best weights | `trainer.py`, with its arguments in `arguments.py` |
| batches that do not fit into memory | `micro_batches.py` |
| optimizer and schedule of the released code | `bert_adam.py` |
| average of the weights | `averaging.py` |
| metrics, early stopping, time limit, warning if one label is predicted for all rows, progress bar | `callbacks.py` |
| temperatures of the probabilities | `choose_temperatures.py` |
"""

from qacg_models.training.run import train
from qacg_models.training.run_folder import check_output
from qacg_models.training.seeds import train_seeds

__all__ = ["check_output", "train", "train_seeds"]
