"""How good a model is by the number of sentences it was trained on, and the texts, invented and published."""
