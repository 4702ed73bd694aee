"""Errors that a user's input causes, as opposed to bugs of this package."""


class InputError(ValueError):
    """Input that cannot be used; the message explains the problem without a traceback."""


class CheckpointError(InputError):
    """A checkpoint that cannot be used; the message names the file, folder or argument at fault."""


class ModelFolderError(InputError):
    """A folder that is not a complete model of this package; the message begins with the path of the folder or file."""
