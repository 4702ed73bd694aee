"""The error that a user's input causes, as opposed to a fault of this package."""


class InputError(ValueError):
    """What the user gave cannot be used; the text is complete enough to be shown alone, on one line."""


class CheckpointError(InputError):
    """A checkpoint that cannot be used: the text names the file, and the tensor or field in question."""


class ModelFolderError(InputError):
    """A folder that is not a complete model of this package; the text begins with the folder."""
