"""Files of plots. Needs matplotlib, which is imported when a plot is drawn."""


def pyplot():
    """matplotlib's pyplot, set to draw into files: text stays text, and the same rows give the same file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "qacg"})
    return plt


def save(figure, path: str) -> None:
    """Writes and closes a figure; the suffix of `path` is the format."""
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=160, metadata={"Date": None} if path.endswith(".svg") else None)
    plt.close(figure)
