"""Training on the transformers Trainer.

| question | module |
|---|---|
| one training or several seeds, from data to model folders | `run.py` |
| values for options that are not given; initial model and tokenizer | `start.py` |
| the folder of an unfinished run, with durable checkpoints | `run_folder.py` |
| encoded rows, their order, augmentation | `rows.py` |
| steps, checkpoints, best weights, average of the weights, end of training, progress bar | `trainer.py` |
| optimizer and schedule of the released code | `bert_adam.py` |
| temperatures of the probabilities | `choose_temperatures.py` |
"""

from qacg_models.sentiment.training.run import summarize, train, train_seeds
from qacg_models.sentiment.training.run_folder import check_output

__all__ = ["check_output", "summarize", "train", "train_seeds"]
