"""Keeping other libraries' output off the terminal."""


def hide_other_bars() -> None:
    """Keeps the libraries' own progress bars off the terminal; ours stays, and so do warnings."""
    from transformers.utils import logging

    logging.disable_progress_bar()
