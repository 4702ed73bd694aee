"""Names of the rivals, as rows and tables show them; a backend has the name that `backend=` takes."""

EAGER = "eager"
COMPILED = "torch.compile"
ONE_MAP = "sdpa-one-map"
COMPOSITION = "composition"


def graphed(backend: str) -> str:
    """A backend's calls, captured in a CUDA graph and replayed."""
    return f"{backend}, CUDA graph"


def compiled(backend: str) -> str:
    """A backend's calls within torch.compile(mode="reduce-overhead"), which replays graphs of its own."""
    return f"{backend}, reduce-overhead"
