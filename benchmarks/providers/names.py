"""Names of the rivals, as rows and tables show them; a backend has the name that `backend=` takes."""

EAGER = "eager"
COMPILED = "torch.compile"
ONE_MAP = "sdpa-one-map"
COMPOSITION = "composition"
