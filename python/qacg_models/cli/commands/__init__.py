"""The subcommands of `qacg`, one module each.

A module has HELP (one line), optionally DESCRIPTION, USES_MODELS if it imports torch and transformers,
`add_arguments(parser)`, and `run(arguments)`, which returns the exit status. Importing a module is fast: `run` does the
heavy imports.
"""
