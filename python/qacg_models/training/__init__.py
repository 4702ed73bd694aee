"""Training on the transformers Trainer.

| question | its home |
|---|---|
| one training, from data to a model folder | `run.py` |
| several seeds | `seeds.py` |
| the temperatures of the probabilities, the model card | `calibration.py`, `trained_card.py` |
| choices that the size of the data settles | `resolve_options.py` |
| the folder of an unfinished run, and when it may go on | `run_folder.py` |
| which checkpoint it goes on from, and what becomes of a damaged one | `checkpoints.py`, `whole_folders.py` |
| a model and tokenizer to begin from | `model_setup.py` |
| batches for which there is no memory at once | `micro_batches.py` |
| words that are hidden while training | `word_dropout.py` |
| saving checkpoints and the best weights, the order of rows | `trainer.py`, `sampling.py` |
| the released optimizer and schedule | `bert_adam.py` |
| the end: patience and the budget of minutes; the warning of a collapse | `callbacks.py` |
| the average of the weights, which is judged and kept where the end is open | `averaging.py` |
"""

from qacg_models.training.run import check_output, train
from qacg_models.training.seeds import train_seeds

__all__ = ["check_output", "train", "train_seeds"]
