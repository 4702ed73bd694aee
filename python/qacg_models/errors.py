"""Errors that a user's input causes, as opposed to bugs of this package."""


class InputError(ValueError):
    """Input that cannot be used; the text is one line, complete without a traceback."""


class CheckpointError(InputError):
    """A checkpoint that cannot be used; the text names the file and the tensor or field."""


class ModelFolderError(InputError):
    """A folder that is not a complete model of this package; the text begins with its path."""
